"""Make an order of a pipeline-parallel step by list scheduling.

One scheduler makes orders for any placement of stages, with or without a split backward, and for any limit on
activations. In each step, it takes the action that can start first. Of several on one rank, an input gradient goes
first, because other ranks wait for it; then a forward; and last a weight gradient, which fills gaps. With patience 1,
a weight gradient of 1 s does not start if another action of the rank can start less than 1 s later.

With 4 ranks, 8 micro-batches, and 1 s for F, I and W of each rank:

    placement   backward   activations   kind    seconds   bound
    looped      whole      4 − rank      1f1b    33        33
    looped      split      4             zb      29        27
    folded      split      4             zbv     25.5      25.5

Source of list scheduling: R. L. Graham, Bounds on multiprocessing timing anomalies, 1969.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import attrs

from spmdir.core.errors import SpmdirError
from spmdir.pipelined.actions import CHANGE_OF_LIVE, Action, Entry, Kind, StageMap, StepOrder, kinds_of
from spmdir.pipelined.times import StageTimes, arrival

Preference = Callable[[Action, int], tuple[int, ...]]
"""(action, ranks) → a key. Among actions of one kind with the same start, the one with the least key goes first."""


def deepest_first(action: Action, ranks: int) -> tuple[int, ...]:
    """Prefer forwards of later stages and gradients of earlier stages: micro-batches leave the pipeline early."""
    return (-action.stage if action.kind == "F" else action.stage,)


def by_groups(action: Action, ranks: int) -> tuple[int, ...]:
    """Prefer the earliest group of `ranks` micro-batches, and in it forwards of earlier stages."""
    return action.micro // ranks, action.stage if action.kind == "F" else -action.stage, action.micro


_Choice = tuple[float, int, tuple[int, ...], Action, float]
"""(start, later if the rank has patience; rank of the kind; preference; action; start)."""

GRADIENTS_FIRST: tuple[Kind, ...] = ("B", "I", "F", "W")
FORWARDS_FIRST: tuple[Kind, ...] = ("F", "B", "I", "W")


@attrs.define
class _SchedulerState:
    """The state of the scheduler.

    Attributes:
        end: scheduled action → its end in seconds.
        free: [coordinate], when it is idle again.
        live: [coordinate], the activations that it holds.
        next_micro: (stage, kind) → the next micro-batch.
    """

    end: dict[Action, float]
    free: list[float]
    live: list[int]
    next_micro: dict[tuple[int, Kind], int]


def list_order(
    stage_map: StageMap,
    micro: int,
    times: StageTimes,
    split: bool,
    limits: Sequence[int],
    priority: tuple[Kind, ...] = GRADIENTS_FIRST,
    preference: Preference = deepest_first,
    patience: float = 0.0,
) -> StepOrder:
    """Return the order of list scheduling: again and again, the action that can start earliest is scheduled next.

    Among actions with the same start, `priority` and then `preference` decide. An action can start when its coordinate
    is idle, its operands have arrived, and the limit on activations permits it.

    Args:
        limits: [coordinate], the largest number of activations that it may hold. Each stage leaves room for one
            activation of each later stage on the coordinate, so that later stages can always continue.
        priority: the kinds of actions, first those that a rank prefers among actions with the same start.
        preference: the order among actions of one kind.
        patience: how long a rank that could run a weight gradient waits for another action, in terms of the time of the
            weight gradient.

    Raises:
        SpmdirError: a limit is below the number of stages of its coordinate.
    """
    for coordinate, limit in enumerate(limits):
        least = len(stage_map.stages_on(coordinate))
        if limit < least:
            raise SpmdirError(
                f"rank {coordinate} may hold the activations of {limit} actions; expected at least {least}, one "
                "for each of its stages: raise the limit"
            )
    kinds, ranks = kinds_of(split), stage_map.ranks
    next_micro: dict[tuple[int, Kind], int] = {(stage, kind): 0 for stage in range(stage_map.stages) for kind in kinds}
    state = _SchedulerState({}, [0.0] * ranks, [0] * ranks, next_micro)
    scheduled: list[tuple[float, int, Action]] = []

    def next_choice(coordinate: int) -> _Choice | None:
        """Return the action that a coordinate would run next, with its key; None if it cannot run anything."""
        startable = _startable(coordinate, stage_map, micro, times, split, limits[coordinate], state)
        choices = [
            (
                start + patience * times.of(action) * (action.kind == "W"),
                priority.index(action.kind),
                preference(action, ranks),
                action,
                start,
            )
            for action, start in startable
        ]
        return min(choices, default=None)

    choice_of: list[_Choice | None] = [next_choice(coordinate) for coordinate in range(ranks)]
    for number in range(stage_map.stages * micro * len(kinds)):
        *_, action, start = min(choice for choice in choice_of if choice is not None)
        coordinate = stage_map.coordinates[action.stage]
        state.end[action] = state.free[coordinate] = start + times.of(action)
        state.next_micro[action.stage, action.kind] += 1
        state.live[coordinate] += CHANGE_OF_LIVE[action.kind]
        scheduled.append((start, number, action))  # the number keeps the order of actions with equal starts
        for affected in {coordinate, *stage_map.users(action)}:
            choice_of[affected] = next_choice(affected)
    entries: list[Entry] = []
    for _, _, action in sorted(scheduled):
        entries += [action, *stage_map.messages(action)]
    return StepOrder(stage_map, micro, tuple(entries), split)


def _startable(
    coordinate: int, stage_map: StageMap, micro: int, times: StageTimes, split: bool, limit: int, state: _SchedulerState
) -> Iterator[tuple[Action, float]]:
    """Yield the actions that a coordinate could run next, each with its earliest start in seconds.

    For each stage and kind, this is the next micro-batch, if its operands are scheduled and the limit on activations
    permits it.
    """
    stages = stage_map.stages_on(coordinate)
    for position, stage in enumerate(stages):
        later_stages = len(stages) - 1 - position
        for kind in kinds_of(split):
            number = state.next_micro[stage, kind]
            is_full = kind == "F" and state.live[coordinate] >= limit - later_stages
            if number == micro or is_full:
                continue
            action = Action(stage, kind, number)
            operands = list(stage_map.operands(action, split))
            if all(operand in state.end for operand in operands):
                arrivals = [arrival(operand, action, state.end, stage_map, times) for operand in operands]
                yield action, max([state.free[coordinate], *arrivals])
