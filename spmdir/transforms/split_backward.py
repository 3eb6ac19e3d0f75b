"""Split a local program that computes outputs and gradients into a forward program and a backward program."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence, Set
from typing import Any

import attrs
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, FunctionType, ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, BlockArgument, Operation, OpResult, SSAValue
from xdsl.traits import is_side_effect_free

from spmdir.analysis.local_programs.globalize import Unit, units_of
from spmdir.dialects import ir
from spmdir.dialects.attributes import PendingType, ShapesAttr, sharding_attr
from spmdir.dialects.names import copy_name
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import function_attrs, is_backward_input, sharding_of


@attrs.frozen(eq=False)
class SplitProgram:
    """A forward program and a backward program.

    Attributes:
        forward: its arguments are those of the program without the tangents. Its results are the outputs, then the
            saved values.
        backward: its arguments are the saved values, then the tangents. Its results are the gradients.
        saved: the number of saved values: results of the forward program that the backward program uses.
    """

    forward: ModuleOp
    backward: ModuleOp
    saved: int


def split_backward(module: ModuleOp, gradients: Collection[int]) -> SplitProgram:
    """Split a localized program. Both parts keep the order of ops, so all ranks run collectives in the same order.

    A tangent is the gradient of an output, which the caller passes to the backward. The forward part has the ops that
    outputs depend on, and the random ops that do not depend on a tangent. All other ops, such as recomputations, are in
    the backward part. No transfer is in flight between the parts, and local forms are not divided.

    Args:
        module: arguments of the kinds `tangent` and `late_buffer` become arguments of the backward part.
        gradients: the indices of the results that the backward part returns.
    """
    function = ir.main_function(module)
    block, returned = function.body.block, ir.terminator(function).operands
    tangents = [
        argument_index for argument_index in range(len(block.args)) if is_backward_input(function, argument_index)
    ]
    outputs = [index for index in range(len(returned)) if index not in gradients]
    units = [ops for _, ops in units_of(block)]
    returned_outputs = [returned[index] for index in outputs]
    forward_ops = _forward_ops(units, returned_outputs, [block.args[index] for index in tangents])
    backward_ops = {op for op in block.ops if op not in forward_ops and isinstance(op, ValueOp)}
    used = {value for op in backward_ops for value in op.operands} | {returned[index] for index in gradients}
    values = [*block.args, *_results(block.ops)]
    saved = [value for value in values if value in used and _comes_from_forward(value, forward_ops, tangents)]
    position_of = {value: position for position, value in enumerate(values)}
    inputs = [index for index in range(len(block.args)) if index not in tangents]
    forward_arguments = [block.args[index] for index in inputs]
    forward = _copy_part(module, position_of, forward_arguments, outputs, saved, forward_ops)
    backward_arguments = [*saved, *(block.args[index] for index in sorted(tangents))]
    backward = _copy_part(module, position_of, backward_arguments, sorted(gradients), [], backward_ops)
    return SplitProgram(forward, backward, len(saved))


def _comes_from_forward(value: SSAValue, forward_ops: Set[Operation], tangents: Collection[int]) -> bool:
    """Return whether the forward part has `value`: an argument that is not a tangent, or a result of a forward op."""
    return value.index not in tangents if isinstance(value, BlockArgument) else value.owner in forward_ops


def _results(ops: Iterable[Operation]) -> list[SSAValue]:
    """Return the results of ops, in order."""
    return [result for op in ops for result in op.results]


def _forward_ops(units: Sequence[Unit], outputs: Iterable[SSAValue], tangents: Iterable[SSAValue]) -> set[Operation]:
    """Return the ops of the forward part.

    These are the ops that compute outputs, the random ops that do not depend on tangents, and the waits for transfers
    that these ops start, each with its whole unit and all producers.
    """
    unit_of = {op: unit for unit in units for op in unit}
    tangent_values: set[SSAValue] = set(tangents)
    forward_ops: set[Operation] = set()

    def add(values: Iterable[SSAValue]) -> None:
        """Add the units that compute `values`, with all their producers."""
        stack = list(values)
        while stack:
            owner: Any = stack.pop().owner
            if owner in unit_of and owner not in forward_ops:
                forward_ops.update(unit_of[owner])
                stack += [operand for op in unit_of[owner] for operand in op.operands]

    add(outputs)
    for unit in units:
        if any(operand in tangent_values for op in unit for operand in op.operands):
            tangent_values.update(_results(unit))
        elif not all(map(is_side_effect_free, unit)):
            add(_results(unit))
    # A wait may need further producers, which may be starts of other transfers: repeat until nothing is added.
    previous_count = -1
    while previous_count != len(forward_ops):
        previous_count = len(forward_ops)
        for unit in units:
            operands = [operand for op in unit for operand in op.operands]
            if any(isinstance(operand.type, PendingType) and operand.owner in forward_ops for operand in operands):
                add(_results(unit))
    return forward_ops


def _copy_part(
    module: ModuleOp,
    position_of: dict[SSAValue, int],
    arguments: Sequence[SSAValue],
    results: Sequence[int],
    saved: Sequence[SSAValue],
    kept_ops: Set[Operation],
) -> ModuleOp:
    """Return a copy of `module` with the ops `kept_ops` only.

    Args:
        position_of: value of `module` → its position among all values.
        arguments: the values that become the arguments.
        results: the indices of the results to return.
        saved: further values to return after these.
    """
    function = ir.main_function(module)
    copy = module.clone()
    part = ir.main_function(copy)
    block, end = part.body.block, ir.terminator(part)
    values = [*block.args, *_results(block.ops)]
    copy_of_op = dict(zip(function.body.block.ops, block.ops, strict=True))
    old_count = len(block.args)  # new arguments are added after the old ones, which are then erased
    for position, argument in enumerate(arguments):
        old = values[position_of[argument]]
        new = block.insert_arg(old.type, old_count + position)
        copy_name(new, old)
        old.replace_all_uses_with(new)
        values[position_of[argument]] = new
    returned = [*(end.operands[index] for index in results), *(values[position_of[value]] for value in saved)]
    end.operands = returned
    for original, op in reversed(copy_of_op.items()):
        if original not in kept_ops and isinstance(op, ValueOp):
            op.detach()
            op.erase(safe_erase=False)
    for argument in list(block.args[:old_count]):
        block.erase_arg(argument, safe_erase=False)
    argument_attributes = [_attributes(function, value) for value in arguments]
    result_attributes = [function_attrs(function, "res_attrs", index) for index in results]
    result_attributes += [{"spmd.sharding": _attributes(function, value)["spmd.sharding"]} for value in saved]
    part.properties["function_type"] = FunctionType.from_lists(
        [value.type for value in block.args], [value.type for value in returned]
    )
    part.properties["arg_attrs"] = ArrayAttr(map(DictionaryAttr, argument_attributes))
    part.properties["res_attrs"] = ArrayAttr(map(DictionaryAttr, result_attributes))
    part.attributes.pop("spmd.outputs", None)
    return copy


def _attributes(function: FuncOp, value: SSAValue) -> dict[str, Attribute]:
    """Return the attributes of an argument of a part that is `value`."""
    if isinstance(value, BlockArgument):
        return function_attrs(function, "arg_attrs", value.index)
    sharding, owner = sharding_of(value), value.owner
    assert (
        isinstance(value, OpResult) and isinstance(owner, ValueOp) and sharding is not None
    )  # localize preserves shardings
    shape = owner.of.data[value.index] if owner.of else None
    of: dict[str, Attribute] = {} if shape is None else {"spmd.of": ShapesAttr((shape,))}
    return {"spmd.sharding": sharding_attr(sharding), **of}
