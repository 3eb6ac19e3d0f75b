"""Which tasks move along with a collective, and between which places of an order it may stand."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

from spmdir.schedule.program import Program

Neighbours = Sequence[Sequence[int]]
"""By place in an order, the places of what is needed there, or of what needs it."""


def find_users(needs: Neighbours) -> list[list[int]]:
    """Return, by place, what needs it, in order."""
    found: list[list[int]] = [[] for _ in needs]
    for place, before in enumerate(needs):
        for need in before:
            found[need].append(place)
    return found


def is_view(program: Program, task: int) -> bool:
    """Return whether a task takes no time and allocates nothing."""
    found = program.tasks[task]
    return not (found.seconds or found.allocates or found.transfer or found.waits_for is not None)


def find_preparing(program: Program, tasks: Sequence[int], needs: Neighbours, of: Collection[int]) -> list[bool]:
    """Return, by place, which tasks only compute operands of collectives from inputs, as views and casts of weights do.

    Such a task and all that it depends on take no longer together than the transfer. A backward before which nothing
    is sent depends on inputs alone too, but takes longer, so its tasks do not count.

    Args:
        tasks: by place.
        of: the places of the collectives, or of their starts.
    """
    time, found = _times(program, tasks, of), [program.tasks[task] for task in tasks]
    serves = [False] * len(tasks)
    spent = [task.seconds for task in found]  # with all that each needs; what several need counts for each
    for place, own in enumerate(needs):
        serves[place] = (
            found[place].transfer is None and found[place].waits_for is None and all(serves[need] for need in own)
        )
        spent[place] += sum([spent[need] for need in own])
    served = [math.inf] * len(tasks)  # the least time of what needs each
    for place in reversed(range(len(tasks))):
        if serves[place]:
            most = served[place] if served[place] < math.inf else 0.0
            serves[place] = bool(most) and spent[place] <= most
            time[place] = most if serves[place] else 0.0
        for need in needs[place]:
            if time[place] < served[need]:
                served[need] = time[place]
    return serves


def find_following(program: Program, tasks: Sequence[int], needs: Neighbours, of: Collection[int]) -> list[bool]:
    """Return, by place, what is made of results of collectives alone and takes no longer than their transfers; the
    arguments are those of `serving`."""
    time, found = _times(program, tasks, of), [program.tasks[task] for task in tasks]
    for place, own in enumerate(needs):
        if own and found[place].transfer is None and found[place].waits_for is None:
            most = min([time[need] for need in own])
            time[place] = most if found[place].seconds <= most else 0.0
    return [bool(most) and place not in of for place, most in enumerate(time)]


def _times(program: Program, tasks: Sequence[int], of: Collection[int]) -> list[float]:
    transfers = {place: program.tasks[tasks[place]].transfer for place in of}
    return [transfer.seconds if (transfer := transfers.get(place)) else 0.0 for place in range(len(tasks))]


def find_intervals(needs: Neighbours, movable: Sequence[bool]) -> tuple[list[int], list[int]]:
    """Return the first and the last place that each task may stand before, if what is not movable stays."""
    first, last = [0] * len(needs), [len(needs)] * len(needs)
    for place, before in enumerate(needs):
        first[place] = max([first[need] if movable[need] else need + 1 for need in before], default=0)
    for place in reversed(range(len(needs))):
        latest = last[place] if movable[place] else place
        for need in needs[place]:
            if latest < last[need]:
                last[need] = latest
    return first, last


def find_conflicts(program: Program, task: int, in_flight: Iterable[int]) -> list[int]:
    """Return the starts in flight on streams that the transfer of `task` excludes."""
    own = program.tasks[task].transfer
    if own is None or not own.excludes:
        return []
    sent = [(start, program.tasks[start].transfer) for start in in_flight]
    return [start for start, other in sent if other is not None and other.stream in own.excludes]


def advance_outputs(program: Program) -> tuple[int, ...]:
    """Return the tasks in order, but those that only lead to results, through transfers and views, as early as they
    may be."""
    tasks = program.tasks
    needs = [task.needs for task in tasks]
    then = find_users(needs)
    leads = [False] * len(tasks)
    for at in reversed(range(len(tasks))):
        task = tasks[at]
        moves = task.transfer is not None or task.waits_for is not None or is_view(program, at)
        leads[at] = moves and all(leads[user] for user in then[at])
    after: list[list[int]] = [[] for _ in range(len(tasks) + 1)]
    place: list[int] = []
    for at, task in enumerate(tasks):
        place.append(max([place[need] for need in task.needs], default=-1) if leads[at] and task.needs else at)
        after[place[at]].append(at)
    return tuple([at for found in after for at in found])
