"""The memory that is left to tasks which come before their turn in a given order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spmdir.schedule.memory import Memory, live_bytes
from spmdir.schedule.program import Program

WINDOW = 512
"""How many tasks of the given order one may overtake."""


class Headroom:
    """What is live at each task that has not run, if these follow in the given order.

    So whichever tasks came before their turn, there is memory for the rest, and no search can end where nothing fits.

    Args:
        live: what `live_bytes` finds, if it is known.

    Attributes:
        turn: the first task of the given order that has not run.
    """

    def __init__(self, program: Program, limit: float, live: Sequence[float] | None = None):
        self.program, self.limit, self.turn = program, limit, 0
        self._memory = Memory(program)
        self._live = np.array(live_bytes(program) if live is None else live)
        self._run = [False] * len(program.tasks)
        kept = {*program.inputs, *program.outputs}
        self._reads = [[buffer for buffer in dict.fromkeys(task.reads) if buffer not in kept] for task in program.tasks]
        self._readers: dict[int, list[int]] = {}
        for at, reads in enumerate(self._reads):
            for buffer in reads:
                self._readers.setdefault(buffer, []).append(at)
        self._made = [
            sum(
                [
                    program.buffers[buffer].bytes
                    for buffer in task.allocates
                    if buffer in kept or buffer in self._readers
                ]
            )
            for task in program.tasks
        ]

    @property
    def is_done(self) -> bool:
        """Whether all tasks have run."""
        return self.turn == len(self._run)

    def has_run(self, task: int) -> bool:
        """Return whether a task has run."""
        return self._run[task]

    def fits(self, task: int) -> bool:
        """Return whether there is memory for a task now, and for those that it overtakes after it."""
        if task == self.turn:
            return True
        if task - self.turn > WINDOW or self._memory.peak(task) > self.limit:
            return False
        live = self._live[self.turn : task]
        if live.max() + self._made[task] <= self.limit:
            return True
        live = live.copy()
        self._change(live, task)
        return bool(live.max() <= self.limit)

    def run(self, task: int) -> None:
        """Run a task next."""
        if task != self.turn:
            self._change(self._live[self.turn : task], task)
        self._live[task] = 0.0
        self._memory.run(task)
        self._run[task] = True
        for buffer in self._reads[task]:
            readers = self._readers[buffer]
            while readers and self._run[readers[-1]]:
                readers.pop()
        while not self.is_done and self._run[self.turn]:
            self.turn += 1

    def _change(self, live: np.ndarray, task: int) -> None:
        """Let `live`, of the tasks that `task` overtakes, be what is live once it has run; it means nothing at those
        that have run."""
        live += self._made[task]
        for buffer in self._reads[task]:
            readers = self._readers[buffer]
            if readers[-1] == task:
                others = (reader for reader in reversed(readers[:-1]) if not self._run[reader])
                live[max(next(others, -1) + 1 - self.turn, 0) :] -= self.program.buffers[buffer].bytes
