"""The actions of a pipeline-parallel step, and the global order in which they are issued.

A model is cut into stages. A step runs each stage on each micro-batch: forward (`F`), input gradient (`I`) and weight
gradient (`W`), or both gradients together (`B`). Stages are placed on coordinates of the pipeline axis. Between
coordinates, a message carries an activation to the next stage, or a gradient to the previous one.

With two coordinates, one stage on each, and one micro-batch, this is a step:

    0F0  0F0>1  1F0  1B0  1B0>0  0B0
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from typing import Literal

import attrs

Kind = Literal["F", "I", "W", "B", "U"]
"""Forward, input gradient, weight gradient, both gradients, update. The update has rounds in place of micro-batches."""

SENDS: tuple[Kind, ...] = ("F", "I", "B")
"""The kinds of actions whose result another stage needs."""

CHANGE_OF_LIVE = {"F": 1, "I": 0, "W": -1, "B": -1}
"""Kind of action → by how much it changes the number of activations that its rank holds."""


@attrs.frozen(order=True, cache_hash=True)
class Action:
    """One stage on one micro-batch: `2F0` is the forward of stage 2 on micro-batch 0."""

    stage: int
    kind: Kind
    micro: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro}"


@attrs.frozen(cache_hash=True)
class StageMessage:
    """The result of `action`, sent to the coordinate `target` of the pipeline axis: `0F0>1`."""

    action: Action
    target: int

    def __str__(self) -> str:
        return f"{self.action}>{self.target}"


Entry = Action | StageMessage

_ACTION = re.compile(r"([0-9]{1,6})([FIWBU])([0-9]{1,6})")
_MESSAGE = re.compile(r"([^>]*)>([0-9]{1,6})")


def parse_action(text: str) -> Action | None:
    """Return the action of a text such as `2F0`; None if the text is not an action."""
    match = _ACTION.fullmatch(text)
    if match is None:
        return None
    stage, kind, micro = match.groups()
    return Action(int(stage), kind, int(micro))  # type: ignore[arg-type]  # the pattern has the kinds


def parse_entry(text: str) -> Entry | None:
    """Return the action or the message of a text such as `2F0` or `0F0>1`; None if the text is neither."""
    match = _MESSAGE.fullmatch(text)
    action = parse_action(match[1] if match else text)
    return StageMessage(action, int(match[2])) if match and action else action


Part = tuple[int, Kind]
"""(stage, kind): the part of a step that an action runs on one micro-batch."""


@attrs.frozen(cache_hash=True)
class StageMap:
    """The placement of stages: stage → coordinate of the pipeline axis.

    Attributes:
        coordinates: [stage], its coordinate.
        links: (producer, consumer) for each pair of parts of different stages with a value that one computes and the
            other uses. None: each stage uses only values of its neighbours. With a skip connection, there is a link
            such as ((0, "F"), (2, "F")).
        is_split: whether stages have `I` and `W` in place of `B`; None if an order may have either.
    """

    coordinates: tuple[int, ...]
    links: frozenset[tuple[Part, Part]] | None = None
    is_split: bool | None = None

    @property
    def stages(self) -> int:
        """Return the number of stages."""
        return len(self.coordinates)

    @cached_property
    def ranks(self) -> int:
        """Return the number of coordinates of the pipeline axis."""
        return max(self.coordinates) + 1

    def stages_on(self, coordinate: int) -> tuple[int, ...]:
        """Return the stages on a coordinate, in ascending order."""
        return tuple(stage for stage, place in enumerate(self.coordinates) if place == coordinate)

    def consumer(self, action: Action) -> int | None:
        """Return the neighbouring stage that needs the result of `action`; None if there is none. Links are ignored."""
        if action.kind not in SENDS:
            return None
        stage = action.stage + 1 if action.kind == "F" else action.stage - 1
        return stage if 0 <= stage < self.stages else None

    def messages(self, action: Action) -> tuple[StageMessage, ...]:
        """Return the messages after `action`, one for each other coordinate that uses its result."""
        targets = self.users(action) - {self.coordinates[action.stage]}
        return tuple(StageMessage(action, target) for target in sorted(targets))

    def users(self, action: Action) -> set[int]:
        """Return the coordinates on which other stages use the result of `action`."""
        if self.links is not None:
            return self._targets.get((action.stage, action.kind), set())
        consumer = self.consumer(action)
        return set() if consumer is None else {self.coordinates[consumer]}

    def message_to(self, operand: Action, action: Action) -> StageMessage | None:
        """Return the message that takes the result of `operand` to `action`; None if both are on one coordinate."""
        source, target = self.coordinates[operand.stage], self.coordinates[action.stage]
        return None if source == target else StageMessage(operand, target)

    @cached_property
    def _targets(self) -> dict[Part, set[int]]:
        """Return part → the coordinates that use its result."""
        targets: dict[Part, set[int]] = {}
        for producer, (stage, _) in self.links or ():
            targets.setdefault(producer, set()).add(self.coordinates[stage])
        return targets

    @cached_property
    def _producers(self) -> dict[Part, list[Part]]:
        """Return part → the parts of other stages whose results it uses."""
        producers: dict[Part, list[Part]] = {}
        for producer, consumer in sorted(self.links or ()):
            producers.setdefault(consumer, []).append(producer)
        return producers

    def coordinates_of(self, entry: Entry) -> tuple[int, ...]:
        """Return the coordinate that runs an action, or the sender and the receiver of a message."""
        if isinstance(entry, Action):
            return (self.coordinates[entry.stage],)
        return self.coordinates[entry.action.stage], entry.target

    def operands(self, action: Action, split: bool) -> Iterator[Action]:
        """Yield the actions whose results `action` uses.

        For example, `1B0` uses the results of `1F0` and `2B0`, and `1W0` those of `1I0`.

        Args:
            split: whether backward is split into `I` and `W`.
        """
        stage, micro = action.stage, action.micro
        if action.kind != "F":
            yield Action(stage, "I" if action.kind == "W" else "F", micro)
        if self.links is not None:
            yield from (Action(*producer, micro) for producer in self._producers.get((stage, action.kind), ()))
        elif action.kind == "F" and stage:
            yield Action(stage - 1, "F", micro)
        elif action.kind in "IB" and stage + 1 < self.stages:
            yield Action(stage + 1, "I" if split else "B", micro)


def looped(ranks: int, stages_per_rank: int = 1) -> StageMap:
    """Return the map of stage s to coordinate s modulo `ranks`."""
    return StageMap(tuple(stage % ranks for stage in range(ranks * stages_per_rank)))


def folded(ranks: int) -> StageMap:
    """Return the map of two stages a rank in the shape of a V: the last stage is on the first coordinate."""
    return StageMap((*range(ranks), *reversed(range(ranks))))


@attrs.frozen
class StepOrder:
    """A step as one global order of actions and messages. Each rank runs its projection.

    Attributes:
        stage_map: the placement of stages.
        micro: the number of micro-batches.
        entries: the actions and messages, in the order in which they are issued.
        is_split: whether backward is split into `I` and `W`.
    """

    stage_map: StageMap
    micro: int
    entries: tuple[Entry, ...]
    is_split: bool

    @property
    def actions(self) -> tuple[Action, ...]:
        """Return the actions, without messages."""
        return tuple(entry for entry in self.entries if isinstance(entry, Action))

    def row(self, coordinate: int) -> tuple[Entry, ...]:
        """Return the entries that a coordinate takes part in, in order."""
        return tuple(entry for entry in self.entries if coordinate in self.stage_map.coordinates_of(entry))

    @property
    def rows(self) -> tuple[tuple[Entry, ...], ...]:
        """Return the row of each coordinate."""
        return tuple(map(self.row, range(self.stage_map.ranks)))


def kinds_of(split: bool) -> tuple[Kind, ...]:
    """Return the kinds of actions of a step, with or without a split backward."""
    return ("F", "I", "W") if split else ("F", "B")


def all_actions(stages: int, micro: int, split: bool) -> Iterator[Action]:
    """Yield all actions of a step, each once."""
    for stage in range(stages):
        for kind in kinds_of(split):
            yield from (Action(stage, kind, number) for number in range(micro))
