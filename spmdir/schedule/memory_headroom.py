"""The memory that remains for tasks that run before their turn in a given order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spmdir.schedule.memory import Memory, live_bytes
from spmdir.schedule.program import Program

WINDOW = 512
"""The largest number of tasks of the given order that a task may overtake."""


class Headroom:
    """The live bytes at each remaining task, if all remaining tasks follow in the given order.

    A task may run before its turn only if the live bytes stay within the limit at all tasks that it overtakes. So the
    remaining tasks can always be completed in the given order, and a scheduler needs no backtracking.

    For example, the tasks t0, t1 and t2 hold 6, 8 and 3 bytes while they run, and the limit is 10. t2 allocates 3 bytes
    that are held to the end. If t2 ran first, t0 would hold 9 bytes and t1 11, so t2 does not fit.

    Args:
        limit: bytes that may be live at tasks that another task overtakes.
        live: for each task, the result of `live_bytes`; computed if None.

    Attributes:
        turn: the first task of the given order that has not run.
    """

    def __init__(self, program: Program, limit: float, live: Sequence[float] | None = None):
        self.program, self.limit, self.turn = program, limit, 0
        self._memory = Memory(program)  # the buffers that are live now
        # for each remaining task, the live bytes while it runs, if all remaining tasks follow in the given order
        self._live = np.array(live_bytes(program) if live is None else live)
        self._has_run = [False] * len(program.tasks)
        held_to_end = {*program.inputs, *program.outputs}
        # for each task, the buffers that it reads and that may be freed
        self._reads = [
            [buffer for buffer in dict.fromkeys(task.reads) if buffer not in held_to_end] for task in program.tasks
        ]
        self._readers: dict[int, list[int]] = {}  # buffer → the tasks that read it, in the given order
        for index, reads in enumerate(self._reads):
            for buffer in reads:
                self._readers.setdefault(buffer, []).append(index)
        # the buffers that are live after the task that allocates them
        outlive_task = held_to_end.union(self._readers)
        # for each task, the bytes that it allocates for other tasks
        self._held_bytes = [
            sum([program.buffers[buffer].bytes for buffer in task.allocates if buffer in outlive_task])
            for task in program.tasks
        ]

    @property
    def is_done(self) -> bool:
        """Whether all tasks have run."""
        return self.turn == len(self._has_run)

    def has_run(self, task: int) -> bool:
        """Return whether a task has run."""
        return self._has_run[task]

    def fits(self, task: int) -> bool:
        """Return whether a task fits into memory now, and the tasks that it overtakes fit after it.

        The task at `turn` always fits. A task more than `WINDOW` tasks after it never does.
        """
        if task == self.turn:
            return True
        if task - self.turn > WINDOW or self._memory.peak_of(task) > self.limit:
            return False
        live = self._live[self.turn : task]
        if live.max() + self._held_bytes[task] <= self.limit:  # even if the task frees nothing
            return True
        live = live.copy()
        self._apply(live, task)
        return bool(live.max() <= self.limit)

    def run(self, task: int) -> None:
        """Run a task next, and update the live bytes at the tasks that it overtakes. It should fit."""
        if task != self.turn:
            self._apply(self._live[self.turn : task], task)
        self._live[task] = 0.0
        self._memory.run(task)
        self._has_run[task] = True
        for buffer in self._reads[task]:
            readers = self._readers[buffer]
            while readers and self._has_run[readers[-1]]:  # `_apply` expects a last reader that has not run
                readers.pop()
        while not self.is_done and self._has_run[self.turn]:
            self.turn += 1

    def _apply(self, live: np.ndarray, task: int) -> None:
        """Update `live` in place, the live bytes at the tasks from `turn` up to `task`, as if `task` ran first.

        The buffers that `task` allocates are then live at all of these tasks. If `task` is the last reader of a buffer
        in the given order, the buffer is freed after the last other reader instead. For example, tasks 3 and 5 read a
        buffer of 4 bytes. If task 5 runs before task 2, the buffer is freed after task 3, so task 4 has 4 bytes less.
        The entries of tasks that have run have no meaning.
        """
        live += self._held_bytes[task]
        for buffer in self._reads[task]:
            readers = self._readers[buffer]
            if readers[-1] == task:
                remaining_readers = (reader for reader in reversed(readers[:-1]) if not self._has_run[reader])
                last_other_reader = next(remaining_readers, -1)  # −1: the buffer is freed before all remaining tasks
                first_without_buffer = max(last_other_reader + 1 - self.turn, 0)  # an index of `live`
                live[first_without_buffer:] -= self.program.buffers[buffer].bytes
