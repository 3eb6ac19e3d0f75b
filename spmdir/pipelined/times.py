"""The modelled time of a step order: start and end of each action, bubble, live activations, and a lower bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from spmdir.core.errors import SpmdirError
from spmdir.pipelined.actions import CHANGE_OF_LIVE, Action, Kind, StageMap, StepOrder


def _of_stages(value: Any) -> tuple[float, ...]:
    return tuple(map(float, value))


@attrs.frozen
class StageTimes:
    """Seconds of each stage on one micro-batch, and of a message.

    Attributes:
        forward, input_gradient, weight_gradient: [stage], in seconds.
        message: the seconds of a message between coordinates. A message runs concurrently with actions.
        saved: [stage], the bytes that a forward saves for the backward.
    """

    forward: tuple[float, ...] = attrs.field(converter=_of_stages)
    input_gradient: tuple[float, ...] = attrs.field(converter=_of_stages)
    weight_gradient: tuple[float, ...] = attrs.field(converter=_of_stages)
    message: float = 0.0
    saved: tuple[float, ...] = attrs.field(converter=_of_stages, default=())

    def __attrs_post_init__(self) -> None:
        """Give each stage one saved unit by default; raise SpmdirError if the lists have different lengths."""
        if not self.saved:
            object.__setattr__(self, "saved", (1.0,) * self.stages)
        lengths = [len(self.forward), len(self.input_gradient), len(self.weight_gradient), len(self.saved)]
        if len(set(lengths)) > 1:
            raise SpmdirError(
                f"found times of {lengths} stages; expected times of equally many stages: pass one time for each stage"
            )

    @property
    def stages(self) -> int:
        """Return the number of stages."""
        return len(self.forward)

    def of(self, action: Action) -> float:
        """Return the seconds of an action."""
        if action.kind == "B":
            return self.input_gradient[action.stage] + self.weight_gradient[action.stage]
        by_kind: Mapping[Kind, Sequence[float]] = {
            "F": self.forward,
            "I": self.input_gradient,
            "W": self.weight_gradient,
        }
        return by_kind[action.kind][action.stage]


def equal_stages(
    stages: int, forward: float, input_gradient: float, weight_gradient: float, message: float = 0.0
) -> StageTimes:
    """Return the times of equal stages. The arguments are the seconds of the whole model on one micro-batch."""
    of_kinds = [(seconds / stages,) * stages for seconds in (forward, input_gradient, weight_gradient)]
    return StageTimes(of_kinds[0], of_kinds[1], of_kinds[2], message, (1 / stages,) * stages)


@attrs.frozen
class Timeline:
    """The replay of a step order.

    Attributes:
        start: action → its start in seconds.
        end: action → its end in seconds.
        busy: [coordinate], seconds in actions.
        peak_saved: [coordinate], the most bytes that are saved for backward at one time.
    """

    start: Mapping[Action, float]
    end: Mapping[Action, float]
    busy: tuple[float, ...]
    peak_saved: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """Return the time of the step."""
        return max(self.end.values(), default=0.0)

    @property
    def bubble(self) -> float:
        """Return the fraction of the ranks' time in which they are idle."""
        return 1 - sum(self.busy) / (self.seconds * len(self.busy)) if self.seconds else 0.0


def replay(order: StepOrder, times: StageTimes) -> Timeline:
    """Return the timeline of `order`. Each rank runs its actions in order, as soon as their operands have arrived."""
    stage_map = order.stage_map
    start: dict[Action, float] = {}
    end: dict[Action, float] = {}
    free, saved = [0.0] * stage_map.ranks, [0.0] * stage_map.ranks
    peak, busy = [0.0] * stage_map.ranks, [0.0] * stage_map.ranks
    for action in order.actions:
        rank = stage_map.coordinates[action.stage]
        operands = stage_map.operands(action, order.is_split)
        arrivals = [arrival(operand, action, end, stage_map, times) for operand in operands]
        start[action] = max([free[rank], *arrivals])
        end[action] = free[rank] = start[action] + times.of(action)
        busy[rank] += times.of(action)
        saved[rank] += times.saved[action.stage] * CHANGE_OF_LIVE[action.kind]
        peak[rank] = max(peak[rank], saved[rank])
    return Timeline(start, end, tuple(busy), tuple(peak))


def arrival(
    operand: Action, action: Action, end: Mapping[Action, float], stage_map: StageMap, times: StageTimes
) -> float:
    """Return when the result of `operand` is on the coordinate of `action`."""
    is_sent = stage_map.coordinates[operand.stage] != stage_map.coordinates[action.stage]
    return end[operand] + times.message * is_sent


def lower_bound(stage_map: StageMap, micro: int, times: StageTimes, split: bool) -> float:
    """Return a lower bound on the seconds of every order with these stages, for any amount of memory.

    The bound is the largest over all coordinates of two times:

    - the first micro-batch reaches the coordinate, and then the coordinate runs all its actions;
    - the first micro-batch reaches the coordinate, which runs all its forwards and input gradients; then its last
      gradient passes all stages below.

    For p equal stages of 1 s each for F, I and W, the bound is p − 1 + 3m with a split backward: 27 s for p = 4 and
    m = 8. With whole backwards it is 3 (p − 1) + 3m, 33 s.
    """
    bound = 0.0
    whole_backward = [times.of(Action(stage, "B", 0)) for stage in range(times.stages)]
    gradient = times.input_gradient if split else whole_backward
    for rank in range(stage_map.ranks):
        stages = stage_map.stages_on(rank)
        first_arrival = min(_chain(times.forward, stage, stage_map, times.message) for stage in stages)
        all_actions_seconds = sum(micro * (times.forward[stage] + whole_backward[stage]) for stage in stages)
        before_last_gradient = sum(micro * (times.forward[stage] + gradient[stage]) for stage in stages)
        after_last_gradient = min(_chain(gradient, stage, stage_map, times.message) for stage in stages)
        # With a split backward, the weight gradient of stage 0 follows its last input gradient.
        if split:
            after_last_gradient += times.weight_gradient[0]
        bound = max(
            bound,
            first_arrival + all_actions_seconds,
            first_arrival + before_last_gradient + after_last_gradient,
        )
    return bound


def _chain(seconds: Sequence[float], stage: int, stage_map: StageMap, message: float) -> float:
    """Return the time of one micro-batch through all stages before `stage`, with the messages between coordinates."""
    crossings = sum(stage_map.coordinates[s] != stage_map.coordinates[s + 1] for s in range(stage))
    return sum(seconds[:stage]) + message * crossings
