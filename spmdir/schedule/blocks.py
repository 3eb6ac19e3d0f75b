"""Parts of a program between which little is held: one or several of its equal layers each."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

from spmdir.schedule.program import Program, Task

WINDOW = 12
"""How many tasks in a row have to be equal to count as a repetition."""


def blocks(program: Program, end: int, layers: int) -> list[range]:
    """Return the tasks before `end`, cut into blocks of `layers` equal layers and what is before and after these.

    A cut is where least is held for tasks before `end`. A program without equal layers is cut into parts of as many
    tasks as the square root of all, times `layers`, with the ends moved to where least is held.
    """
    held = _held_within(program, end)
    looks = [_look(program, task) for task in program.tasks[:end]]
    period = _period(looks)
    start, stop = _run(looks, period) if period else (0, end)
    length = period * layers if period else max(1, round(end**0.5)) * layers
    cuts = [start]
    while cuts[-1] + length <= stop:
        if period and len(cuts) > 1:
            cuts.append(cuts[-1] + length)
        else:
            first = cuts[-1] + (0 if period else length // 2)
            near = range(max(first, 1), min(first + length, stop))
            cuts.append(min(near, key=held.__getitem__, default=stop))
    bounds = sorted({0, *cuts[1:], end})
    return [range(first, last) for first, last in itertools.pairwise(bounds)]


def _look(program: Program, task: Task) -> object:
    return task.op, task.seconds, tuple(program.buffers[buffer].bytes for buffer in task.makes), len(task.reads)


def _period(looks: Sequence[object]) -> int:
    """Return how many tasks a layer has; 0 if there are no equal ones."""
    numbers: dict[object, int] = {}
    numbered = [numbers.setdefault(look, len(numbers)) for look in looks]
    last: dict[tuple[int, ...], int] = {}
    distances: Counter[int] = Counter()
    for index in range(len(looks) - WINDOW + 1):
        window = tuple(numbered[index : index + WINDOW])
        if window in last:
            distances[index - last[window]] += 1
        last[window] = index
    return max(distances, key=lambda distance: (distances[distance], -distance), default=0)


def _run(looks: Sequence[object], period: int) -> tuple[int, int]:
    """Return the first task of equal layers, and the one after the last."""
    best, first = (0, 0), 0
    for index in range(len(looks) - period + 1):
        is_end = index == len(looks) - period
        if is_end or looks[index] != looks[index + period]:
            best = max(best, (first, index), key=lambda run: run[1] - run[0])
            first = index + 1
    return best[0], best[1] + period


def _held_within(program: Program, end: int) -> list[float]:
    """Return the bytes that are live before each task, and at `end`, for tasks before `end` alone."""
    made: dict[int, int] = {}
    last: dict[int, int] = {}
    for index, task in enumerate(program.tasks[:end]):
        made.update(dict.fromkeys(task.makes, index))
        last.update(dict.fromkeys([buffer for buffer in task.reads if buffer in made], index))
    change = [0.0] * (end + 2)
    for buffer, user in last.items():
        change[made[buffer] + 1] += program.buffers[buffer].bytes
        change[user + 1] -= program.buffers[buffer].bytes
    return list(itertools.accumulate(change[:-1]))
