"""Split a program into blocks of one or several equal layers, with few live bytes between blocks.

Buffers that are live between blocks are always held, so few bytes should be live there. `core/repetition.py` finds the
run of equal layers. A block begins where the fewest bytes are live, which need not be the begin of a layer.

For example, 10 tasks are followed by 4 layers of 6 tasks and by 5 tasks. In each layer, the fewest bytes are live
before its third task. With one layer in a block, the blocks are tasks 0–11, 12–17, 18–23, 24–29, and 30–38.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Sequence

from spmdir.core.repetition import distances, longest_run
from spmdir.schedule.program import Program, Task

BLOCK_TASKS = 64
"""The approximate number of tasks in a block outside the equal layers."""


def split_into_blocks(program: Program, end: int, layers: int) -> list[range]:
    """Return the tasks before `end` as consecutive blocks of `layers` equal layers.

    The tasks before and after the equal layers are split into blocks of about `layers * BLOCK_TASKS` tasks. The same is
    done with all tasks if there are no equal layers. Each cut is where the fewest bytes are live, counting only buffers
    that tasks before `end` allocate and use.
    """
    live_before = _live_before(program, end)
    signatures = [_signature(program, task) for task in program.tasks[:end]]
    period = _period(signatures)
    start, stop = longest_run(signatures, period) if period else (0, 0)
    # The task of the first layer before which the fewest bytes are live. Further cuts follow at whole layers.
    first_cut = min(range(start, start + period), key=live_before.__getitem__, default=0)
    cuts = [*range(first_cut, stop + 1, period * layers)] if period else []
    before_layers, after_layers = range(cuts[0] if cuts else 0), range(cuts[-1] if cuts else 0, end)
    return [
        *_cut_evenly(before_layers, live_before, BLOCK_TASKS * layers),
        *(range(*cut) for cut in itertools.pairwise(cuts)),
        *_cut_evenly(after_layers, live_before, BLOCK_TASKS * layers),
    ]


def _cut_evenly(tasks: range, live_before: Sequence[float], size: int) -> Iterator[range]:
    """Yield `tasks` in blocks of `size / 2` to `2 * size` tasks, cut where the fewest bytes are live.

    The last block may be shorter. There is no block without tasks.
    """
    while len(tasks) > 2 * size:
        cut = min(range(tasks.start + size // 2, tasks.start + 2 * size), key=live_before.__getitem__)
        yield range(tasks.start, cut)
        tasks = range(cut, tasks.stop)
    if tasks:
        yield tasks


def _signature(program: Program, task: Task) -> Hashable:
    """Return a value that is equal for the corresponding tasks of equal layers."""
    return task.op, task.seconds, tuple(program.buffers[buffer].bytes for buffer in task.allocates), len(task.reads)


def _period(signatures: Sequence[Hashable]) -> int:
    """Return the number of tasks in a layer, the most frequent distance between equal tasks; 0 if no tasks are equal.

    Of equally frequent distances, the shortest is returned.
    """
    counts = distances(signatures)  # distance between equal tasks → its frequency
    return max(counts, key=lambda distance: (counts[distance], -distance), default=0)


def _live_before(program: Program, end: int) -> list[float]:
    """Return the bytes live before each task, and at `end`, of buffers that tasks before `end` allocate and use.

    For example, task 0 allocates 4 bytes, task 1 allocates 8, and task 2 reads both: 0, 4, 12 and then 0 bytes.
    """
    producer: dict[int, int] = {}
    last_use: dict[int, int] = {}
    for index, task in enumerate(program.tasks[:end]):
        producer.update(dict.fromkeys(task.allocates, index))
        last_use.update(dict.fromkeys([buffer for buffer in task.reads if buffer in producer], index))
    change = [0.0] * (end + 2)  # the change of live bytes from before the previous task to before this one
    for buffer, user in last_use.items():
        change[producer[buffer] + 1] += program.buffers[buffer].bytes
        change[user + 1] -= program.buffers[buffer].bytes
    return list(itertools.accumulate(change[:-1]))
