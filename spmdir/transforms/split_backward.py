"""The program of one rank that computes outputs and gradients, as two: one to be called forward, one backward."""

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
from spmdir.dialects.names import take_name
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import function_attrs, is_of_backward, sharding_of


@attrs.frozen(eq=False)
class SplitProgram:
    """A program in two parts.

    Attributes:
        forward: takes the arguments but the tangents; returns the results but the gradients, then what backward reads.
        backward: takes what the forward returned for it, then the tangents; returns the gradients.
        saved: how many results of the forward are for the backward.
    """

    forward: ModuleOp
    backward: ModuleOp
    saved: int


def split_backward(module: ModuleOp, gradients: Collection[int]) -> SplitProgram:
    """Return the two parts of a localized program; both keep the order of ops, so all ranks send in one order.

    Forward is what its results need, and what draws random numbers without reading a tangent; all else, such as what
    is computed again to save memory, is backward. Nothing is in flight between them, and local forms stay whole.

    Args:
        module: its arguments of the kinds `tangent` and `late_buffer` are given to the backward.
        gradients: which results the backward returns.
    """
    function = ir.main_function(module)
    block, returned = function.body.block, ir.terminator(function).operands
    tangents = [at for at in range(len(block.args)) if is_of_backward(function, at)]
    outputs = [index for index in range(len(returned)) if index not in gradients]
    units = [ops for _, ops in units_of(block)]
    is_forward = _forward_ops(units, [returned[i] for i in outputs], [block.args[i] for i in tangents])
    is_backward = {op for op in block.ops if op not in is_forward and isinstance(op, ValueOp)}
    read = {value for op in is_backward for value in op.operands} | {returned[index] for index in gradients}
    values = [*block.args, *_results(block.ops)]
    saved = [value for value in values if value in read and _is_given(value, is_forward, tangents)]
    places = {value: place for place, value in enumerate(values)}
    inputs = [index for index in range(len(block.args)) if index not in tangents]
    forward = _part(module, places, [block.args[i] for i in inputs], outputs, saved, is_forward)
    late = [*saved, *(block.args[index] for index in sorted(tangents))]
    backward = _part(module, places, late, sorted(gradients), [], is_backward)
    return SplitProgram(forward, backward, len(saved))


def _is_given(value: SSAValue, is_forward: Set[Operation], tangents: Collection[int]) -> bool:
    """Return whether the backward gets `value` from the forward."""
    return value.index not in tangents if isinstance(value, BlockArgument) else value.owner in is_forward


def _results(ops: Iterable[Operation]) -> list[SSAValue]:
    return [result for op in ops for result in op.results]


def _forward_ops(units: Sequence[Unit], outputs: Iterable[SSAValue], tangents: Iterable[SSAValue]) -> set[Operation]:
    """Return the ops of the units that are forward."""
    unit_of = {op: unit for unit in units for op in unit}
    late: set[SSAValue] = set(tangents)
    found: set[Operation] = set()

    def add(values: Iterable[SSAValue]) -> None:
        open_ = list(values)
        while open_:
            owner: Any = open_.pop().owner
            if owner in unit_of and owner not in found:
                found.update(unit_of[owner])
                open_ += [operand for op in unit_of[owner] for operand in op.operands]

    add(outputs)
    for unit in units:
        if any(operand in late for op in unit for operand in op.operands):
            late.update(_results(unit))
        elif not all(map(is_side_effect_free, unit)):
            add(_results(unit))
    count = -1
    while count != len(found):
        count = len(found)
        for unit in units:
            if any(isinstance(o.type, PendingType) and o.owner in found for op in unit for o in op.operands):
                add(_results(unit))
    return found


def _part(
    module: ModuleOp,
    places: dict[SSAValue, int],
    arguments: Sequence[SSAValue],
    results: Sequence[int],
    saved: Sequence[SSAValue],
    kept: Set[Operation],
) -> ModuleOp:
    """Return a copy with the ops `kept`, which takes `arguments` and returns results of `module`, then `saved`."""
    function = ir.main_function(module)
    copy = module.clone()
    part = ir.main_function(copy)
    block, end = part.body.block, ir.terminator(part)
    values = [*block.args, *_results(block.ops)]
    ops = dict(zip(function.body.block.ops, block.ops, strict=True))
    held = len(block.args)
    for place, argument in enumerate(arguments):
        old = values[places[argument]]
        new = block.insert_arg(old.type, held + place)
        take_name(new, old)
        old.replace_all_uses_with(new)
        values[places[argument]] = new
    returned = [*(end.operands[index] for index in results), *(values[places[value]] for value in saved)]
    end.operands = returned
    for original, op in reversed(ops.items()):
        if original not in kept and isinstance(op, ValueOp):
            op.detach()
            op.erase(safe_erase=False)
    for argument in list(block.args[:held]):
        block.erase_arg(argument, safe_erase=False)
    given = [_attributes(function, value) for value in arguments]
    told = [function_attrs(function, "res_attrs", index) for index in results]
    told += [{"spmd.sharding": found} for value in saved if (found := _attributes(function, value)["spmd.sharding"])]
    part.properties["function_type"] = FunctionType.from_lists(
        [value.type for value in block.args], [value.type for value in returned]
    )
    part.properties["arg_attrs"] = ArrayAttr(map(DictionaryAttr, given))
    part.properties["res_attrs"] = ArrayAttr(map(DictionaryAttr, told))
    part.attributes.pop("spmd.outputs", None)
    return copy


def _attributes(function: FuncOp, value: SSAValue) -> dict[str, Attribute]:
    """Return what the signature says of `value` where it is an argument."""
    if isinstance(value, BlockArgument):
        return function_attrs(function, "arg_attrs", value.index)
    sharding, owner = sharding_of(value), value.owner
    assert isinstance(value, OpResult) and isinstance(owner, ValueOp) and sharding is not None  # localize keeps it
    shape = owner.of.data[value.index] if owner.of else None
    of: dict[str, Attribute] = {} if shape is None else {"spmd.of": ShapesAttr((shape,))}
    return {"spmd.sharding": sharding_attr(sharding), **of}
