"""Parts of a program between which little is held: one or several of its equal layers each.

`core/repetition.py` finds the run of equal layers. Blocks are cut where least is held, not where
a layer begins.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Sequence

from spmdir.core.repetition import distances, longest_run
from spmdir.schedule.program import Program, Task

SIZE = 64
"""How many tasks a block has that is not of equal layers."""


def split_into_blocks(program: Program, end: int, layers: int) -> list[range]:
    """Return the tasks before `end`, cut into blocks of `layers` equal layers, and what is before and after these into
    blocks of so many times SIZE tasks.

    Cuts are where least is held for tasks before `end`.
    """
    held = _held_within(program, end)
    looks = [_look(program, task) for task in program.tasks[:end]]
    period = _period(looks)
    start, stop = longest_run(looks, period) if period else (0, 0)
    first = min(range(start, start + period), key=held.__getitem__, default=0)
    cuts = [*range(first, stop + 1, period * layers)] if period else []
    head, tail = range(cuts[0] if cuts else 0), range(cuts[-1] if cuts else 0, end)
    return [
        *_parts(head, held, SIZE * layers),
        *(range(*cut) for cut in itertools.pairwise(cuts)),
        *_parts(tail, held, SIZE * layers),
    ]


def _parts(tasks: range, held: Sequence[float], size: int) -> Iterator[range]:
    """Yield `tasks` in blocks of about `size`, cut where least is held."""
    while len(tasks) > 2 * size:
        cut = min(range(tasks.start + size // 2, tasks.start + 2 * size), key=held.__getitem__)
        yield range(tasks.start, cut)
        tasks = range(cut, tasks.stop)
    if tasks:
        yield tasks


def _look(program: Program, task: Task) -> Hashable:
    return task.op, task.seconds, tuple(program.buffers[buffer].bytes for buffer in task.allocates), len(task.reads)


def _period(looks: Sequence[Hashable]) -> int:
    """Return how many tasks a layer has; 0 if there are no equal ones."""
    found = distances(looks)
    return max(found, key=lambda distance: (found[distance], -distance), default=0)


def _held_within(program: Program, end: int) -> list[float]:
    """Return the bytes that are live before each task, and at `end`, for tasks before `end` alone."""
    made: dict[int, int] = {}
    last: dict[int, int] = {}
    for index, task in enumerate(program.tasks[:end]):
        made.update(dict.fromkeys(task.allocates, index))
        last.update(dict.fromkeys([buffer for buffer in task.reads if buffer in made], index))
    change = [0.0] * (end + 2)
    for buffer, user in last.items():
        change[made[buffer] + 1] += program.buffers[buffer].bytes
        change[user + 1] -= program.buffers[buffer].bytes
    return list(itertools.accumulate(change[:-1]))
