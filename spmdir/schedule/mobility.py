"""Which tasks move along with a collective, and between which places of an order it may stand."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from spmdir.schedule.program import Program

Neighbours = Sequence[Sequence[int]]
"""By place in an order, the places of what is needed there, or of what needs it."""


def users(needs: Neighbours) -> list[list[int]]:
    """Return, by place, what needs it, in order."""
    found: list[list[int]] = [[] for _ in needs]
    for place, before in enumerate(needs):
        for need in before:
            found[need].append(place)
    return found


def cheap(
    program: Program, tasks: Sequence[int], needs: Neighbours, of: Collection[int]
) -> tuple[list[bool], list[bool]]:
    """Return, by place, what only makes operands of collectives, and what moves along with them.

    That are views, and what serves or follows these collectives alone and takes no longer than their transfers, as
    casts of weights.

    Args:
        tasks: by place.
        of: the places of the collectives, or of their starts and waits.
    """
    time = [0.0] * len(tasks)
    found = [program.tasks[task] for task in tasks]
    for place in of:
        waits = found[place].waits
        transfer = found[place].transfer if waits is None else program.tasks[waits].transfer
        time[place] = transfer.seconds if transfer else 0.0
    before, after, then = [*time], [*time], users(needs)
    moves = [task.transfer is None and task.waits is None for task in found]
    for place in reversed(range(len(tasks))):
        if moves[place] and then[place]:
            most = min(before[user] for user in then[place])
            before[place] = most if found[place].seconds <= most else 0.0
    for place, own in enumerate(needs):
        if moves[place] and own:
            most = min(after[need] for need in own)
            after[place] = most if found[place].seconds <= most else 0.0
    serves = [moves[place] and bool(before[place]) for place in range(len(tasks))]
    along = [
        moves[place] and bool(before[place] or after[place] or not (task.makes or task.seconds))
        for place, task in enumerate(found)
    ]
    return serves, along


def intervals(needs: Neighbours, movable: Sequence[bool]) -> tuple[list[int], list[int]]:
    """Return the first and the last place that each task may stand before, if what is not movable stays."""
    first, last = [0] * len(needs), [len(needs)] * len(needs)
    for place, before in enumerate(needs):
        for need in before:
            first[place] = max(first[place], first[need] if movable[need] else need + 1)
    for place in reversed(range(len(needs))):
        latest = last[place] if movable[place] else place
        for need in needs[place]:
            last[need] = min(last[need], latest)
    return first, last
