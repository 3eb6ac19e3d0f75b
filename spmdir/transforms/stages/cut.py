"""Replace a training step of one micro-batch by the functions of its stages and the op `spmd.pipeline`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, OpResult, SSAValue
from xdsl.rewriter import Rewriter

from spmdir.core.errors import UnsupportedError
from spmdir.dialects.locations import location_of
from spmdir.dialects.pipeline_op import PipelineOp
from spmdir.pipelined.actions import Kind
from spmdir.pipelined.step import PipelinedStep, Stage
from spmdir.transforms.stages.backward_cut import ForwardStages, backward_stages
from spmdir.transforms.stages.stage_functions import StageFunction, ValueNames, build_function
from spmdir.transforms.stages.step_parts import SUMS, StepParts, find_parts, free_sources, micro_batches
from spmdir.transforms.stages.tied_sums import split_tied_sums
from spmdir.transforms.stages.update_places import UpdatePlaces, placed_ops

_NAMES: dict[Kind, str] = {"F": "forward", "B": "backward", "U": "update"}


def cut_step(
    module: ModuleOp,
    function: FuncOp,
    cut: Callable[[StepParts], ForwardStages],
    axis: str,
    ranks: int,
) -> None:
    """Replace `function` by the functions of its stages, and a step without an order.

    Args:
        cut: returns the stages of the forward.
        axis, ranks: the pipeline axis.

    Raises:
        UnsupportedError: the function is not a step that accumulates gradients, or cannot be cut; located.
    """
    parts = find_parts(function)
    forward = cut(parts)
    if split_tied_sums(parts, forward):
        parts = find_parts(function)
    if forward.count % ranks:
        raise UnsupportedError(
            f"the step has {forward.count} stages for {ranks} ranks along '{axis}'; expected a multiple of "
            f"{ranks}: change the number of stages",
            location_of(function),
        )
    stage_of = {**forward.stage_of, **backward_stages(parts, forward, _fixed_sums(parts, forward))}
    names = ValueNames(parts)
    planned = [
        *_micro_functions(parts, names, forward.count, stage_of),
        *_update_functions(parts, names, forward.count, stage_of),
    ]
    stages, built = [], list[FuncOp]()
    for stage in range(forward.count):
        plans_of_stage = [plan for plan in planned if plan.stage == stage]
        built += [build_function(function, parts.free, names.of, plan) for plan in plans_of_stage]
        stages.append(Stage(stage % ranks, tuple((plan.kind, plan.name) for plan in plans_of_stage)))
    classes_of_state = sorted({name.partition(".")[0] for name in parts.state})  # such as "parameters"
    outputs = [_state_name(parts, value) or names.of(value) for value in parts.outputs]
    step = PipelinedStep(
        axis,
        ranks,
        micro_batches(parts),
        batch=tuple(names.of(value) for value in parts.batch),
        state=tuple(name for name in classes_of_state if name not in SUMS),
        sums=tuple(name for name in classes_of_state if name in SUMS),
        outputs=tuple(outputs),
        stages=tuple(stages),
    )
    op = PipelineOp.build(step)
    op.location = function.location
    Rewriter.erase_op(function, safe_erase=False)
    module.body.block.add_ops([*built, op])


def _fixed_sums(parts: StepParts, forward: ForwardStages) -> dict[Operation, int]:
    """Return op of a sum of gradients → the stage of its parameter, unless several stages use the parameter."""
    fixed = {}
    for name, value in parts.sums.items():
        homes = forward.homes.get(parts.state.get(f"parameters.{name.partition('.')[2]}"), ())  # type: ignore[arg-type]
        if isinstance(value, OpResult) and len(homes) == 1:
            fixed[value.op] = min(homes)
    return fixed


def _state_name(parts: StepParts, value: SSAValue) -> str | None:
    """Return the name of the sum or buffer whose new value is `value`."""
    return next((name for name, new in (*parts.sums.items(), *parts.buffers.items()) if new is value), None)


def _micro_functions(
    parts: StepParts, names: ValueNames, count: int, stage_of: Mapping[Operation, int]
) -> Iterator[StageFunction]:
    """Yield the functions that each micro-batch runs: the forward (F) and the backward (B) of each stage.

    A function returns the values that other functions use, and the new values of sums and buffers.
    """
    ops_of_kind: dict[Kind, Sequence[Operation]] = {"F": parts.forward, "B": parts.backward}
    users: dict[SSAValue, set[tuple[int, Kind]]] = {}  # value → (stage, kind) of the functions that use it
    for kind, all_ops in ops_of_kind.items():
        for op in all_ops:
            for operand in op.operands:
                users.setdefault(operand, set()).add((stage_of[op], kind))
    new_state = [(value, name) for name, value in (*parts.sums.items(), *parts.buffers.items())]
    for stage in range(count):
        for kind, all_ops in ops_of_kind.items():
            ops = [op for op in all_ops if stage_of[op] == stage]
            results: list[SSAValue] = [value for op in ops for value in op.results]
            returned = [(value, names.of(value)) for value in results if users.get(value, set()) - {(stage, kind)}]
            returned += [(value, name) for value, name in new_state if value in results]
            yield StageFunction(stage, kind, f"stage{stage}.{_NAMES[kind]}", ops, returned)


def _update_functions(
    parts: StepParts, names: ValueNames, count: int, stage_of: Mapping[Operation, int]
) -> Iterator[StageFunction]:
    """Yield the functions of the update: one for each stage and round, see `update_places`.

    A function returns the values that another stage or a later round uses, and the outputs that it computes. That of
    the last round also returns the new state of its stage.
    """
    names_of_sums = {value: name for name, value in (*parts.sums.items(), *parts.buffers.items())}
    sum_stage = {value: stage_of[value.owner] for value in names_of_sums}  # type: ignore[index]
    places = UpdatePlaces(parts, count, sum_stage, _homes(parts, stage_of))
    places.place_all()
    for stage in range(count):
        values_here = [value for value, user_stage in places.source if user_stage == stage]
        renamed = {value: name for value, name in names_of_sums.items() if sum_stage[value] == stage}
        rounds = 1 + max((places.round_of(value, stage) for value in values_here), default=0)
        for number in range(rounds):
            ops = placed_ops(places, stage, number)
            returned: list[tuple[SSAValue, str]] = []
            for value in values_here:
                is_computed_here = places.source[value, stage] == stage and places.round_of(value, stage) == number
                if not is_computed_here:
                    continue
                is_output = places.outputs.get(value) == stage
                if is_output or _is_used_elsewhere(places, value, stage, number, rounds):
                    returned.append((value, names.of(value)))
            if number == rounds - 1:
                new_state = sorted(name for name, result_stage in places.results if result_stage == stage)
                returned += [(parts.updates[name], name) for name in new_state]
            if returned or rounds > 1:  # an empty round keeps the numbers of the later ones
                name = f"stage{stage}.update{f'.{number}' if rounds > 1 else ''}"
                yield StageFunction(stage, "U", name, ops, returned, renamed, copies_free=False)


def _is_used_elsewhere(places: UpdatePlaces, value: SSAValue, stage: int, number: int, rounds: int) -> bool:
    """Return whether another stage, or a later round of this stage, uses a value of this stage.

    Args:
        number: the round in which the stage has the value.
        rounds: the number of rounds of the stage. The last one returns the new state.
    """
    if not isinstance(value, OpResult):
        return False
    is_sent = any(
        sent_value is value and source == stage and user_stage != stage
        for (sent_value, user_stage), source in places.source.items()
    )
    if is_sent:
        return True
    if value in places.sum_stage:  # each round reads sums as arguments
        return False
    is_state = any(new is value and (name, stage) in places.results for name, new in places.parts.updates.items())
    if is_state and number < rounds - 1:
        return True
    users = (result for use in value.uses for result in use.operation.results if (result, stage) in places.source)
    return any(places.source[user, stage] == stage and places.round_of(user, stage) > number for user in users)


def _homes(parts: StepParts, stage_of: Mapping[Operation, int]) -> dict[SSAValue, set[int]]:
    """Return argument of a parameter → the stages that use it in a micro-batch."""
    homes: dict[SSAValue, set[int]] = {}
    parameters = set(parts.parameters.values())
    for op, stage in stage_of.items():
        for operand in op.operands:
            for source in free_sources(operand, parts.free.__contains__) & parameters:
                homes.setdefault(source, set()).add(stage)
    return homes
