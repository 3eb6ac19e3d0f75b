"""Check the text of a step: one global order of actions, messages and updates.

The order is accepted if each entry comes after all entries that it depends on. Then no rank waits for ever, even if a
send waits until its receiver arrives: take the first entry that has not ended. All entries before it have ended, so all
its ranks reach it.

After its last micro-batch, a stage runs the rounds of its update: `0U0`, `0U1`, … . `0U0>1` sends results of a round,
such as a part of the norm of all gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set

import attrs

from spmdir.pipelined.actions import Action, Entry, StageMap, StageMessage, StepOrder, all_actions


@attrs.frozen
class UpdateRounds:
    """The rounds of the updates.

    Attributes:
        rounds: [stage], the number of its rounds.
        operands: round of a stage → the rounds of other stages whose results it uses.
    """

    rounds: tuple[int, ...]
    operands: Mapping[Action, tuple[Action, ...]]

    def actions(self) -> list[Action]:
        """Return the rounds of all stages: first round 0 of each stage, then round 1."""
        pairs = sorted((number, stage) for stage, count in enumerate(self.rounds) for number in range(count))
        return [Action(stage, "U", number) for number, stage in pairs]

    def entries(self, stage_map: StageMap) -> tuple[Entry, ...]:
        """Return the rounds of all stages, each with the messages after it."""
        targets: dict[Action, set[int]] = {}
        for action, operands in self.operands.items():
            for operand in operands:
                if message := stage_map.message_to(operand, action):
                    targets.setdefault(operand, set()).add(message.target)
        entries: list[Entry] = []
        for action in self.actions():
            entries += [action, *(StageMessage(action, target) for target in sorted(targets.get(action, ())))]
        return tuple(entries)


def required_entries(stage_map: StageMap, micro: int, split: bool, updates: UpdateRounds) -> list[Entry]:
    """Return all entries of a step, in no particular order."""
    entries: list[Entry] = []
    for action in all_actions(stage_map.stages, micro, split):
        entries += [action, *stage_map.messages(action)]
    return [*entries, *updates.entries(stage_map)]


def find_order_faults(
    stage_map: StageMap, micro: int, split: bool, updates: UpdateRounds, entries: Sequence[Entry]
) -> Iterator[tuple[int | None, str]]:
    """Yield the faults of a global order, each with the position of its entry; None for a missing entry."""
    required = dict.fromkeys(required_entries(stage_map, micro, split, updates))
    position_of: dict[Entry, int] = {}
    for position, entry in enumerate(entries):
        if entry not in required:
            yield position, _unexpected(entry, stage_map, micro, split)
        elif entry in position_of:
            yield position, f"{entry} is in the order twice; expected each action and each message once: remove it"
        else:
            position_of[entry] = position
    for entry in required:
        if entry not in position_of:
            yield None, f"the order has no {entry}; expected {_purpose(entry)}"
    for entry, position in position_of.items():
        too_late = [
            operand
            for operand in _dependences(entry, stage_map, micro, split, updates)
            if position_of.get(operand, -1) > position  # a missing operand is another fault
        ]
        if too_late:
            yield position, f"{entry} comes before {too_late[0]}; expected it after that, {_reason(entry, too_late[0])}"


def _dependences(entry: Entry, stage_map: StageMap, micro: int, split: bool, updates: UpdateRounds) -> Iterator[Entry]:
    """Yield the entries that `entry` must come after."""
    if isinstance(entry, StageMessage):
        yield entry.action
        return
    if entry.kind == "U":
        if entry.micro:
            yield Action(entry.stage, "U", entry.micro - 1)
        else:
            yield from all_actions_of(entry.stage, micro, split)
        operands: Iterator[Action] = iter(updates.operands.get(entry, ()))
    else:
        if entry.micro:
            yield Action(entry.stage, entry.kind, entry.micro - 1)
        operands = stage_map.operands(entry, split)
    for operand in operands:
        yield stage_map.message_to(operand, entry) or operand


def all_actions_of(stage: int, micro: int, split: bool) -> Iterator[Action]:
    """Yield the actions of one stage on all micro-batches."""
    return (action for action in all_actions(stage + 1, micro, split) if action.stage == stage)


def _unexpected(entry: Entry, stage_map: StageMap, micro: int, split: bool) -> str:
    """Return the error about an entry that the step does not have."""
    action = entry.action if isinstance(entry, StageMessage) else entry
    if action.stage >= stage_map.stages:
        return f"{entry} names stage {action.stage}; expected a stage from 0 to {stage_map.stages - 1}"
    if action.kind != "U" and action.micro >= micro:
        return f"{entry} names micro-batch {action.micro}; expected one from 0 to {micro - 1}"
    if isinstance(entry, StageMessage):
        return f"{entry} sends nothing that coordinate {entry.target} uses; remove it"
    kinds = "F, I, W and U" if split else "F, B and U"
    return f"the step has no action {entry}; expected actions of the kinds {kinds}, and the rounds of updates"


def _purpose(entry: Entry) -> str:
    """Return the rest of the error about a missing entry: where it is expected."""
    if isinstance(entry, StageMessage):
        return f"it after {entry.action}: coordinate {entry.target} uses its results"
    return "each round of each update once" if entry.kind == "U" else "each action of each micro-batch once"


def _reason(entry: Entry, operand: Entry) -> str:
    """Return why `entry` must come after `operand`, as the rest of an error."""
    if isinstance(entry, StageMessage):
        return "which computes what it sends"
    if isinstance(operand, Action) and (operand.stage, operand.kind) == (entry.stage, entry.kind):
        return "because a stage runs micro-batches in ascending order"
    if entry.kind == "U" and isinstance(operand, Action) and operand.kind != "U":
        return "because an update uses the sums over all micro-batches"
    return "whose result it uses"


def stage_coordinates_faults(coordinates: Sequence[int], ranks: int) -> Iterator[str]:
    """Yield the faults of a placement of stages: each coordinate of the axis must have a stage, and no other."""
    for stage, coordinate in enumerate(coordinates):
        if coordinate >= ranks:
            yield f"stage {stage} is at {coordinate}; expected a coordinate from 0 to {ranks - 1}"
    unused: Set[int] = set(range(ranks)) - set(coordinates)
    if unused:
        yield f"coordinate {min(unused)} has no stage; expected one or more stages on each coordinate"


def with_updates(order: StepOrder, updates: UpdateRounds) -> tuple[Entry, ...]:
    """Return the entries of an order of micro-batches, followed by the updates."""
    return (*order.entries, *updates.entries(order.stage_map))
