"""Split the sum of gradients of a tied parameter into one sum for each of its uses.

A parameter of two stages, such as an embedding that is also the head, has the gradient `a + b`. Stage 0 sums `a`, the
last stage sums `b`, and the update adds the two sums, once a step:

    sum.new = sum + (a + b) / m    ⇒    sum.new = sum + b / m;  part.new = part + a / m;  total = sum.new + part.new
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xdsl.dialects.builtin import ArrayAttr, FunctionType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, OpResult, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from spmdir.dialects import ir
from spmdir.dialects.aten import AtenOp
from spmdir.dialects.collectives import Collective
from spmdir.dialects.names import Names, keep_name, name_of
from spmdir.dialects.reshard_ops import ReshardOp
from spmdir.dialects.values import sharding_of, signature_attrs, signature_name
from spmdir.transforms.stages.backward_cut import ForwardStages
from spmdir.transforms.stages.step_parts import StepParts

_LINEAR = (
    "aten.div.Tensor",
    "aten.div.Scalar",
    "aten.mul.Tensor",
    "aten.mul.Scalar",
    "aten._to_copy",
    "aten.t",
    "aten.transpose.int",
    "aten.permute",
    "aten.view",
    "aten.reshape",
    "aten.clone",
)
"""Ops that are linear if they have one tensor operand."""


def split_tied_sums(parts: StepParts, forward: ForwardStages) -> bool:
    """Split the sums of parameters of several stages, and return whether there are any. Changes the function."""
    changed = False
    for name, value in parts.sums.items():
        parameter = parts.state.get(f"parameters.{name.partition('.')[2]}")
        if name == "loss" or parameter is None or len(forward.homes.get(parameter, ())) < 2:
            continue
        chain, terms = _terms(value, parts.state[name])
        if len(terms) > 1:
            _split(parts.function, name, value, chain, terms)
            changed = True
    return changed


def _terms(value: SSAValue, argument: SSAValue) -> tuple[list[Operation], list[SSAValue]]:
    """Return the linear ops between a sum and its gradient, last first, and the terms of the gradient.

    For example, `sum.new = sum + (a + b) / m` has the linear op `/ m` and the terms a and b. Both lists are empty if
    `value` has another form.

    Args:
        value: the new value of the sum.
        argument: the old value of the sum.
    """
    if not (isinstance(value, OpResult) and _is_add(value.op) and argument in value.op.operands):
        return [], []
    # Both operands are the argument if the value is twice the argument.
    current = next((operand for operand in value.op.operands if operand is not argument), argument)
    chain: list[Operation] = []
    while isinstance(current, OpResult) and _is_linear(current.op) and len(list(current.uses)) == 1:
        chain.append(current.op)
        current = current.op.operands[0]
    return chain, list(_summands(current))


def _summands(value: SSAValue) -> Iterator[SSAValue]:
    """Yield the values that `value` is the sum of."""
    is_sum = isinstance(value, OpResult) and _is_add(value.op) and len(list(value.uses)) == 1
    if is_sum and all(_layout(operand) == _layout(value) for operand in value.owner.operands):  # type: ignore[union-attr]
        for operand in value.owner.operands:  # type: ignore[union-attr]
            yield from _summands(operand)
    else:
        yield value


def _layout(value: SSAValue) -> tuple[object, object]:
    return value.type, sharding_of(value)


def _is_add(op: Operation) -> bool:
    return isinstance(op, AtenOp) and op.name == "aten.add.Tensor" and len(op.operands) == 2 and not op.argument


def _is_linear(op: Operation) -> bool:
    is_moved = isinstance(op, (Collective, ReshardOp))
    return (is_moved or op.name in _LINEAR) and len(op.operands) == 1 and len(op.results) == 1


def _split(function: FuncOp, name: str, value: SSAValue, chain: list[Operation], terms: list[SSAValue]) -> None:
    """Replace the sum of a gradient by one sum for each term of the gradient.

    The first sum keeps its argument and name. The others get new arguments, such as `gradients.tied1.wte.weight`.
    In the update, the total of all sums replaces the old sum.

    Args:
        name: the name of the old sum, such as `gradients.wte.weight`.
        value: the new value of the old sum: the result of an addition of its argument and the gradient.
        chain: the linear ops between the terms and this addition, the last one first. They are applied to each term.
        terms: the values whose sum is the gradient.
    """
    assert isinstance(value, OpResult)
    add, block, names = value.op, function.body.block, Names(function.body.block)

    def insert_copy(op: Operation, operands: Sequence[SSAValue], suffix: str) -> SSAValue:
        """Insert a copy of `op` with other operands before the old addition, and return its result."""
        copy = op.clone()
        copy.operands = operands
        copy.location = op.location
        Rewriter.insert_op(copy, InsertPoint.before(add))
        names.assign_name(copy.results[0], op.results[0], suffix)
        return copy.results[0]

    old_argument = next(operand for operand in add.operands if signature_of(function, operand) == name)
    arguments: list[SSAValue] = [old_argument]
    for number in range(1, len(terms)):
        sum_name = f"gradients.tied{number}.{name.partition('.')[2]}"
        argument = block.insert_arg(old_argument.type, len(block.args))
        keep_name(argument, sum_name)
        _append(function, "arg_attrs", signature_attrs(sum_name, "input", sharding_of(old_argument), argument))
        arguments.append(argument)
    sums: list[SSAValue] = []
    for number, (term, argument) in enumerate(zip(terms, arguments, strict=True)):
        addend = term
        for op in reversed(chain):
            addend = insert_copy(op, [addend], f"tied{number}")
        operands = [argument if operand is old_argument else addend for operand in add.operands]
        sums.append(insert_copy(add, operands, f"tied{number}"))
    total = sums[0]
    for other in sums[1:]:
        total = insert_copy(add, [total, other], "total")
    value.replace_all_uses_with(total)
    end = ir.terminator(function)
    end.operands = [*end.operands, *sums]
    for sum_value, argument in zip(sums, arguments, strict=True):
        sum_name = name if argument is old_argument else name_of(argument)
        _append(function, "res_attrs", signature_attrs(sum_name, "output", sharding_of(sum_value)))
    function.properties["function_type"] = FunctionType.from_lists(
        [argument.type for argument in block.args], [operand.type for operand in end.operands]
    )
    Rewriter.erase_op(add)
    for op in chain:
        Rewriter.erase_op(op)


def signature_of(function: FuncOp, value: SSAValue) -> str | None:
    """Return the name of an argument in the signature; None for other values."""
    return None if isinstance(value, OpResult) else signature_name(function, "arg_attrs", value.index)  # type: ignore[attr-defined]


def _append(function: FuncOp, attribute: str, attributes: object) -> None:
    """Append the attributes of a new last argument (`arg_attrs`) or result (`res_attrs`) to the signature.

    The argument is in the block already, but the result is not in the function type yet.
    """
    attrs = getattr(function, attribute)
    # The number of old arguments or results, which have no attributes if `attrs` is None.
    count = len(function.body.block.args) - 1 if attribute == "arg_attrs" else len(function.function_type.outputs.data)
    entries = list(attrs.data) if attrs is not None else [signature_attrs(None, "input", None)] * count
    function.properties[attribute] = ArrayAttr([*entries, attributes])  # type: ignore[list-item]
