"""Build the functions of stages: copies of some ops of a step, with the values that they take and return."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set

import attrs
from xdsl.dialects.builtin import ArrayAttr, StringAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, BlockArgument, Operation, Region, SSAValue

from spmdir.dialects.function_checks import GIVEN
from spmdir.dialects.names import copy_name, is_number, keep_name, name_of
from spmdir.dialects.values import function_attrs, sharding_of, signature_attrs, signature_name
from spmdir.pipelined.actions import Kind
from spmdir.transforms.stages.step_parts import StepParts

_OF_THE_STEP = (GIVEN, "spmd.outputs")
"""The attributes of a step that its stages do not have."""


@attrs.frozen(eq=False)
class StageFunction:
    """A function of a stage, before it is built.

    Attributes:
        stage, kind: its part of the step.
        name: its name.
        ops: its ops, in the order of the program.
        returned: (value, its name), in order.
        renamed: value → its name as an argument, if that differs from the name of the value.
        copies_free: whether free ops that its ops use are copied into it.
    """

    stage: int
    kind: Kind
    name: str
    ops: Sequence[Operation]
    returned: Sequence[tuple[SSAValue, str]]
    renamed: Mapping[SSAValue, str] = attrs.field(factory=dict)
    copies_free: bool = True


class ValueNames:
    """The names of the values of a step, each different from the names of its inputs and its state."""

    def __init__(self, parts: StepParts):
        function = parts.function
        self._names: dict[SSAValue, str] = {
            value: signature_name(function, "arg_attrs", value.index) for value in function.args
        }
        self._used = {*self._names.values()}
        self._kept = {name.partition(".")[0] for name in parts.state}

    def of(self, value: SSAValue) -> str:
        """Return the name of a value: its SSA name, with a number if it is used; `v2` for a value `%2`.

        A name that begins like that of state, such as `gradients.x`, gets the prefix `of_`.
        """
        if value not in self._names:
            name = name_of(value) or f"v{value.name_hint[1:] if value.name_hint and is_number(value.name_hint) else ''}"
            name = f"of_{name}" if name.partition(".")[0] in self._kept else name
            candidate, number = name, 0
            while candidate in self._used:
                number += 1
                candidate = f"{name}_{number}"
            self._names[value] = candidate
            self._used.add(candidate)
        return self._names[value]


def build_function(
    source: FuncOp, free_ops: Set[Operation], name_of_value: Callable[[SSAValue], str], planned: StageFunction
) -> FuncOp:
    """Return the function of a plan. Its arguments are the values that its ops use and do not compute.

    Args:
        source: the function with its ops.
        free_ops: the ops of `source` that each function runs again.
        name_of_value: value → its name as an argument.
    """
    returned = [value for value, _ in planned.returned]
    needed, ops = _needed_values(planned, free_ops)
    position_of = {value: index for index, value in enumerate(_values_of(source))}
    inputs = sorted(needed, key=position_of.__getitem__)
    block = Block(arg_types=[value.type for value in inputs])
    mapping: dict[SSAValue, SSAValue] = dict(zip(inputs, block.args, strict=True))
    arg_attrs = []
    for value, argument in zip(inputs, block.args, strict=True):
        name = planned.renamed.get(value) or name_of_value(value)
        keep_name(argument, name)
        kept = function_attrs(source, "arg_attrs", value.index) if isinstance(value, BlockArgument) else {}
        attributes = signature_attrs(name, "input", sharding_of(value), argument)
        extra = {"spmd.keep": kept["spmd.keep"]} if "spmd.keep" in kept else {}
        arg_attrs.append(type(attributes)({**attributes.data, **extra}))
    for op in source.body.block.ops:
        if op in ops:
            copy = op.clone(mapping)
            copy.location = op.location
            block.add_op(copy)
            for old, new in zip(op.results, copy.results, strict=True):
                copy_name(new, old)
    results = [mapping[value] for value in returned]
    block.add_op(ReturnOp(*results))
    function = FuncOp(
        planned.name,
        ([value.type for value in block.args], [value.type for value in results]),
        Region(block),
        visibility=StringAttr("private"),
        arg_attrs=ArrayAttr(arg_attrs),
        res_attrs=ArrayAttr(signature_attrs(name, "output", sharding_of(value)) for value, name in planned.returned),
    )
    function.attributes.update({key: value for key, value in source.attributes.items() if key not in _OF_THE_STEP})
    function.location = planned.ops[0].location if planned.ops else source.location
    return function


def _needed_values(planned: StageFunction, free_ops: Set[Operation]) -> tuple[list[SSAValue], set[Operation]]:
    """Return the values that the function of a plan takes as arguments, and all its ops.

    Its ops are the planned ones, and the free ones that compute their operands, if the plan copies these.
    """
    ops = set(planned.ops)
    needed: dict[SSAValue, None] = {}
    stack = [*(operand for op in planned.ops for operand in op.operands), *(value for value, _ in planned.returned)]
    while stack:
        value = stack.pop()
        owner = value.owner
        if not isinstance(owner, Operation):
            needed[value] = None
        elif owner in ops:
            continue
        elif planned.copies_free and owner in free_ops:
            ops.add(owner)
            stack += owner.operands
        else:
            needed[value] = None
    return list(needed), ops


def _values_of(function: FuncOp) -> list[SSAValue]:
    return [*function.args, *(result for op in function.body.block.ops for result in op.results)]
