"""The parts of a training step of one micro-batch: forward, backward with sums of gradients, and update.

Some ops are *free*: each function that uses them runs them again, so they are neither saved nor sent. An op is free if
it depends only on the batch, or only on state: masks, positions, casts and transposes of parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs
from xdsl.dialects.func import FuncOp
from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue
from xdsl.traits import is_side_effect_free

from spmdir.core.errors import SpmdirError, UnsupportedError, raise_all
from spmdir.dialects import ir
from spmdir.dialects.locations import location_of
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import signature_name

SUMS = ("gradients", "loss")
"""The names, before the first dot, of the sums over micro-batches in the state of a training step."""

ACCUMULATED = (*SUMS, "buffers")
"""The names of the tensors of the state that each micro-batch changes."""


@attrs.frozen(eq=False)
class StepParts:
    """The parts of a training step.

    Attributes:
        function: the step.
        batch: the inputs that differ between micro-batches.
        state: name → argument, for the tensors that the step keeps.
        sums: name → new value, for the sums over micro-batches.
        buffers: name → new value, for the other tensors that each micro-batch changes.
        updates: name → new value, for the tensors that only the update changes.
        outputs: the results that are not new values of arguments.
        free: the ops that depend only on the batch, or only on state.
        forward, backward, update: the other ops, in the order of the program.
    """

    function: FuncOp
    batch: tuple[BlockArgument, ...]
    state: Mapping[str, BlockArgument]
    sums: Mapping[str, SSAValue]
    buffers: Mapping[str, SSAValue]
    updates: Mapping[str, SSAValue]
    outputs: tuple[SSAValue, ...]
    free: frozenset[Operation]
    forward: tuple[Operation, ...]
    backward: tuple[Operation, ...]
    update: tuple[Operation, ...]

    @property
    def parameters(self) -> dict[str, BlockArgument]:
        """Return name → argument of the parameters."""
        return {name: value for name, value in self.state.items() if name.startswith("parameters.")}


def find_parts(function: FuncOp) -> StepParts:
    """Return the parts of a training step.

    A result with the name of an argument is the new value of that argument. New values of `loss` and `gradients.…` are
    sums over micro-batches, and those of `buffers.…` are changed by each micro-batch. All other new values, and the
    outputs, belong to the update. The forward computes the sum of the loss and the buffers, the backward the other
    sums.

    Raises:
        UnsupportedError: the function is not a step that accumulates gradients, or it draws random numbers; located.
    """
    names = {value: signature_name(function, "arg_attrs", value.index) for value in function.args}
    returned = ir.terminator(function).operands
    result_names = [signature_name(function, "res_attrs", index) for index in range(len(returned))]
    state = {name: value for value, name in names.items() if name in result_names}
    changed = [
        (name, value)
        for name, value in zip(result_names, returned, strict=True)
        if name in state and _original(value) is not state[name]
    ]
    sums = {name: value for name, value in changed if _class_of(name) in SUMS}
    buffers = {name: value for name, value in changed if _class_of(name) == "buffers"}
    # The sum of a tied parameter has two results: first the total of all stages, then the sum of the first stage.
    updates = {name: value for name, value in changed if value not in (sums.get(name), buffers.get(name))}
    if "loss" not in sums or not any(_class_of(name) == "gradients" for name in sums):
        raise UnsupportedError(
            "the function does not accumulate a loss and gradients; expected the step of one micro-batch of "
            "training_step(…, accumulate=N) with N > 1",
            location_of(function),
        )
    outputs = tuple(value for name, value in zip(result_names, returned, strict=True) if name not in state)
    accumulating = ops_before([*sums.values(), *buffers.values()])
    _reject_random(op for op in function.body.block.ops if op in accumulating)
    batch = tuple(value for value in function.args if value not in state.values())
    free = _free_ops(function, batch, state) - {value.owner for value in buffers.values()}
    forward = ops_before([sums["loss"], *buffers.values()])
    summed = {*sums.values(), *buffers.values()}
    update = ops_before([*updates.values(), *outputs], summed)
    _reject_unsummed(update, accumulating - free, summed)
    order = [op for op in function.body.block.ops if isinstance(op, ValueOp)]
    return StepParts(
        function,
        batch,
        state,
        sums,
        buffers,
        updates,
        outputs,
        frozenset(free),
        tuple(op for op in order if op in forward and op not in free),
        tuple(op for op in order if op in accumulating - forward and op not in free),
        tuple(op for op in order if op in update and op not in free),
    )


def micro_batches(parts: StepParts) -> int:
    """Return the number of micro-batches of a step: it adds the loss of each, divided by their number, to the sum.

    For example, it is 4 in `%mean = aten.div.Tensor(%loss) {other = 4}; %sum.new = aten.add.Tensor(%sum, %mean)`. Ops
    of one operand, such as a cast, may be between the two. A reshard may follow the addition.

    Raises:
        UnsupportedError: the sum has another form; located.
    """
    ops = ops_before([parts.sums["loss"]])
    sum_op = parts.sums["loss"].owner
    while sum_op in ops and isinstance(sum_op, Operation) and len(sum_op.operands) == 1:
        sum_op = sum_op.operands[0].owner
    addends: list[Any] = [operand.owner for operand in sum_op.operands] if isinstance(sum_op, Operation) else []
    for op in addends:
        while op in ops and len(op.operands) == 1 and op.name != "aten.div.Tensor":
            op = op.operands[0].owner
        count = op.argument.get("other") if isinstance(op, ValueOp) and op.name == "aten.div.Tensor" else None
        if isinstance(count, int) and count > 0:
            return count
    raise UnsupportedError(
        "the loss is not divided by a number of micro-batches before it is added to the sum; expected the step of one "
        "micro-batch of training_step(…, accumulate=N) with N > 1",
        location_of(sum_op) if isinstance(sum_op, Operation) else location_of(parts.function),
    )


def _original(value: SSAValue) -> SSAValue:
    """Return the value that `value` is a copy of."""
    while isinstance(value, OpResult) and value.op.name == "aten.clone":
        value = value.op.operands[0]
    return value


def _class_of(name: str) -> str:
    return name.partition(".")[0]


def ops_before(values: Iterable[SSAValue], end: Iterable[SSAValue] = ()) -> set[Operation]:
    """Return the ops that `values` depend on. The search stops at the values `end`."""
    stop, ops = set(end), set[Operation]()
    stack = [value for value in values if value not in stop]
    while stack:
        owner = stack.pop().owner
        if isinstance(owner, Operation) and owner not in ops:
            ops.add(owner)
            stack += [operand for operand in owner.operands if operand not in stop]
    return ops


def _free_ops(function: FuncOp, batch: Iterable[SSAValue], state: Mapping[str, SSAValue]) -> set[Operation]:
    """Return the ops that depend only on the batch and buffers, or only on parameters and buffers."""
    # value → the classes of inputs that it depends on, such as {"batch", "parameters"}, without "buffers"
    sources: dict[SSAValue, frozenset[str]] = {value: frozenset({"batch"}) for value in batch}
    sources |= {value: frozenset({_class_of(name)} - {"buffers"}) for name, value in state.items()}
    free: set[Operation] = set()
    for op in function.body.block.ops:
        op_sources = frozenset[str]().union(*(sources.get(operand, frozenset()) for operand in op.operands))
        sources.update(dict.fromkeys(op.results, op_sources))
        has_one_source = op_sources in (frozenset(), {"batch"}, {"parameters"})
        if isinstance(op, ValueOp) and has_one_source and is_side_effect_free(op):
            free.add(op)
    return free


def _reject_random(ops: Iterable[Operation]) -> None:
    """Raise an error for each op with effects, such as one that draws random numbers."""
    raise_all(
        [
            UnsupportedError(
                f"'{op.name}' draws random numbers, or has other effects, so stages would not compute what one device "
                "does; expected a step without random ops: set dropout to 0",
                location_of(op),
            )
            for op in ops
            if not is_side_effect_free(op)
        ]
    )


def _reject_unsummed(update: Iterable[Operation], micro: set[Operation], summed: set[SSAValue]) -> None:
    """Raise an error if the update uses a value of a micro-batch that is not a sum."""
    errors: list[SpmdirError] = [
        UnsupportedError(
            f"the update uses a result of '{op.name}', which each micro-batch computes; expected only sums "
            "over micro-batches: return this value as a loss or gradient, or compute it in the update",
            location_of(op),
        )
        for op in update
        if op in micro and not any(result in summed for result in op.results)
    ]
    raise_all(errors[:1])


def free_sources(value: SSAValue, is_free: Callable[[Operation], bool]) -> set[SSAValue]:
    """Return the values that `value` is computed from by free ops; itself if its op is not free."""
    sources: set[SSAValue] = set()
    visited: set[SSAValue] = set()
    stack = [value]
    while stack:
        current = stack.pop()
        if current in visited:
            continue
        visited.add(current)
        if isinstance(current, OpResult) and is_free(current.op):
            stack += current.op.operands
        else:
            sources.add(current)
    return sources
