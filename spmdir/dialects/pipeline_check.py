"""Verification of a pipelined step: its stages, the flow of values between its functions, and its order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from xdsl.dialects.func import FuncOp

from spmdir.core.errors import ShardingError, SpmdirError, UnsupportedError, did_you_mean
from spmdir.dialects.attributes import print_type
from spmdir.dialects.locations import location_of
from spmdir.dialects.pipeline_flow import StepFlow
from spmdir.dialects.pipeline_op import PipelineOp
from spmdir.dialects.values import function_attrs, signature_name
from spmdir.pipelined.actions import Action
from spmdir.pipelined.global_order import find_order_faults, stage_coordinates_faults


def check_step(op: PipelineOp) -> Iterator[SpmdirError]:
    """Yield the located errors of a pipelined step: of its stages, of the flow of values, and of the order."""
    step = op.step
    counts = {
        "ranks": (step.ranks, "write their number, as in `over pp = 2`"),
        "micro-batches": (step.micro, "write their number, as in `micro 4`"),
        "stages": (len(step.stages), "list their functions, as in `stage 0 at 0: F @f, B @b, U @u`"),
    }
    for key, (count, remedy) in counts.items():
        if not count:
            yield UnsupportedError(f"the step has 0 {key}; expected one or more: {remedy}", location_of(op))
            return
    for message in stage_coordinates_faults(step.coordinates, step.ranks):
        yield UnsupportedError(message, location_of(op))
        return
    errors = list(_check_kinds(op))
    yield from errors
    if errors:
        return
    try:
        flow = StepFlow.of(op)
    except SpmdirError as error:
        yield error
        return
    errors = [*_check_types(flow), *_check_values(op, flow), *_check_written_state(flow), *_check_lists(op, flow)]
    yield from errors
    if errors or not step.entries:
        return
    faults = find_order_faults(flow.stage_map, step.micro, step.is_split, flow.updates, step.entries)
    for position, message in faults:
        yield UnsupportedError(message, op.entry_location(position))


def _check_kinds(op: PipelineOp) -> Iterator[SpmdirError]:
    """Yield an error for each stage without the functions of its kinds."""
    for number, stage in enumerate(op.step.stages):
        kinds = [kind for kind, _ in stage.functions if kind != "U"]
        expected = ["F", "I", "W"] if op.step.is_split else ["F", "B"]
        if sorted(kinds) != sorted(expected):
            yield UnsupportedError(
                f"stage {number} has functions of the kinds {', '.join(kinds) or 'none'}; expected one of each of "
                f"{', '.join(expected)}",
                op.stage_location(number),
            )


def _check_types(flow: StepFlow) -> Iterator[SpmdirError]:
    """Yield an error for each name that a function repeats, or that has another type or sharding than elsewhere.

    State is compared among the functions of one stage, and other values among all functions.
    """
    # (name, stage if it is state) → its type, its sharding and the function, at its first occurrence
    first: dict[tuple[str, int | None], tuple[Any, Any, str]] = {}
    # Updates come last, so they are compared with the functions of micro-batches.
    for part in sorted(flow.functions, key=lambda part: part.kind == "U"):
        function = flow.functions[part]
        for kind, names in (("arguments", flow.arguments(part)), ("results", flow.results(part))):
            if repeated := [name for name, count in Counter(names).items() if count > 1]:
                yield UnsupportedError(
                    f"{_at(function)} has several {kind} '{repeated[0]}'; expected a different name for each",
                    location_of(function),
                )
        types = function.function_type
        signature = [("arg_attrs", index, type_) for index, type_ in enumerate(types.inputs)]
        signature += [("res_attrs", index, type_) for index, type_ in enumerate(types.outputs)]
        for attribute, index, type_ in signature:
            name = signature_name(function, attribute, index)
            sharding = function_attrs(function, attribute, index).get("spmd.sharding")
            key = name, part.stage if flow.step.is_state(name) else None
            first_type, first_sharding, first_place = first.setdefault(key, (type_, sharding, _at(function)))
            if (first_type, first_sharding) != (type_, sharding):
                yield ShardingError(
                    f"'{name}' is {_type_text(type_, sharding)} in {_at(function)}, but "
                    f"{_type_text(first_type, first_sharding)} in {first_place}; expected one type and one sharding",
                    location_of(function),
                )


def _at(function: FuncOp) -> str:
    return f"@{function.sym_name.data}"


def _type_text(type_: Any, sharding: Any) -> str:
    return f"{print_type(type_)}{f' <{sharding.data}>' if sharding else ''}"


def _check_values(op: PipelineOp, flow: StepFlow) -> Iterator[SpmdirError]:
    """Yield an error for each value without one producer, without a user, or used before it is computed.

    The updates of different stages may compute the same value, such as the step count of the optimizer.
    """
    step = flow.step
    for name, producers in flow.producers.items():
        are_updates = all(producer.kind == "U" for producer in producers)
        have_different_stages = len({producer.stage for producer in producers}) == len(producers)
        if len(producers) > 1 and not (are_updates and have_different_stages):
            function = flow.functions[producers[1]]
            yield UnsupportedError(
                f"'{name}' is a result of {_at(flow.functions[producers[0]])} and of "
                f"{_at(function)}; expected one function that computes it",
                location_of(function),
            )
    used = {name for operands in flow.operands.values() for name in operands} | {*step.outputs}
    for name, producers in flow.producers.items():
        if name not in used:
            function = flow.functions[producers[0]]
            yield UnsupportedError(
                f"no function uses the result '{name}' of {_at(function)}; expected a use: remove the "
                "result, or name it in outputs",
                location_of(function),
            )
    for part, operands in flow.operands.items():
        function = flow.functions[part]
        for name in flow.arguments(part):
            if name in step.batch or step.is_state(name):
                continue
            if name not in operands:
                known = [*flow.producers, *step.batch]
                yield UnsupportedError(
                    f"no function computes the argument '{name}' of {_at(function)}; expected an input of the step, "
                    f"state, or a result of another function{did_you_mean(name, known)}",
                    location_of(function),
                )
            elif not _is_before(operands[name], part):
                yield UnsupportedError(
                    f"{_at(function)} uses '{name}' of {_at(flow.functions[operands[name]])}, which does not run "
                    "before it; expected a result of an earlier function of the same micro-batch",
                    location_of(function),
                )
    kept = {name for stage in range(len(step.stages)) for name in flow.state_names(stage)}
    for name in step.outputs:
        if name not in kept and not any(part.kind == "U" for part in flow.producers.get(name, ())):
            yield UnsupportedError(
                f"no update computes the output '{name}'; expected state or a result of an update", location_of(op)
            )


_RANK = {"F": 0, "I": 1, "B": 1, "W": 2}
"""Kind of a function → its position among the functions that a stage runs for one micro-batch."""


def _is_before(producer: Action, user: Action) -> bool:
    """Return whether `user` may use a result of `producer`: False if `producer` does not run earlier in each step.

    The functions of a micro-batch and the updates exchange only state, so neither may use results of the other. Between
    stages, functions of a micro-batch may use each other's results.
    """
    if (producer.kind == "U") != (user.kind == "U"):
        return False
    if producer.kind == "U":  # `micro` of an update is its round
        return producer.micro < user.micro
    return producer.stage != user.stage or _RANK[producer.kind] < _RANK[user.kind]


def _check_lists(op: PipelineOp, flow: StepFlow) -> Iterator[SpmdirError]:
    """Yield an error for each tensor in `state` that is a sum over micro-batches, or in `sums` that is not.

    A sum starts at 0 in each step, each micro-batch changes it, and then the update, or an output, uses it. Other
    tensors keep their value: only the update changes parameters, only micro-batches use buffers.
    """
    step, stages = flow.step, range(len(flow.step.stages))
    changed_by_micro = {name for part in flow.functions if part.kind != "U" for name in flow.results(part)}
    used_by_updates = {name for part in flow.functions if part.kind == "U" for name in flow.arguments(part)}
    for name in dict.fromkeys(name for stage in stages for name in flow.state_names(stage)):
        is_sum = name in changed_by_micro and name in used_by_updates | {*step.outputs}
        if is_sum and not step.is_sum(name):
            yield UnsupportedError(
                f"'{name}' is listed in `state`, but each micro-batch changes it, and the update or an output uses it; "
                "expected a sum that starts at 0 in each step: move it to `sums`",
                location_of(op),
            )
        if step.is_sum(name) and not is_sum:
            yield UnsupportedError(
                f"'{name}' is listed in `sums`, so it is set to 0 when a step starts; expected a tensor that each "
                "micro-batch changes, and that the update or an output uses: move it to `state`",
                location_of(op),
            )


def _check_written_state(flow: StepFlow) -> Iterator[SpmdirError]:
    """Yield an error for state that one function of a micro-batch writes, and another reads or writes."""
    for stage in range(len(flow.step.stages)):
        parts = [part for part in flow.functions if part.stage == stage and part.kind != "U"]
        for writer in parts:
            for name in filter(flow.step.is_state, flow.results(writer)):
                for other in parts:
                    if other != writer and name in (*flow.arguments(other), *flow.results(other)):
                        function = flow.functions[other]
                        yield UnsupportedError(
                            f"{_at(function)} uses '{name}', which {_at(flow.functions[writer])} "
                            "changes for each micro-batch; expected one function that reads and changes it",
                            location_of(function),
                        )
