"""An order that goes by no times: starts of transfers move up, waits move down, and all else stays.

Each moves past its neighbours as long as these do not depend on it, or it on them, and there is memory for what is
held meanwhile. Starts keep their order. Right before one transfer is waited for, the next one of its kind is started,
so that one is under way while the result of the one before is used; no more than two of a kind are in flight.
"""

from __future__ import annotations

from spmdir.core.progress import say
from spmdir.schedule.headroom import Headroom
from spmdir.schedule.memory import peak_bytes
from spmdir.schedule.mobility import find_conflicts, find_preparing
from spmdir.schedule.program import Program

AT_ONCE = 2
"""How many transfers of one kind are in flight on a stream."""


def lengthen_flights(program: Program, memory: float | None = None) -> tuple[int, ...]:
    """Return an order of the tasks in which transfers are under way for longer.

    Args:
        memory: bytes that the program may hold; as many as in the given order if None.
    """
    return _Swaps(program, peak_bytes(program) if memory is None else memory).run()


class _Swaps:
    """A walk over the tasks in the given order.

    Attributes:
        order: the tasks that have run.
        at: the task that the walk has come to: of those before, only waits have not run.
        in_flight: start → its wait.
    """

    def __init__(self, program: Program, limit: float):
        self.program, self.headroom = program, Headroom(program, limit)
        self.order: list[int] = []
        self.at = 0
        self.in_flight: dict[int, int] = {}
        tasks = program.tasks
        self._waits = {task.waits_for: at for at, task in enumerate(tasks) if task.waits_for is not None}
        starts = [at for at, task in enumerate(tasks) if at in self._waits]
        self._serves = find_preparing(program, range(len(tasks)), [task.needs for task in tasks], {*starts})
        self._starts = iter([*starts, None])
        self._next = next(self._starts)

    def run(self) -> tuple[int, ...]:
        """Return all tasks, in order."""
        while not self.headroom.is_done:
            say("reorder: {} of {} tasks", len(self.order), len(self.program.tasks))
            following = self._following()
            is_wait = self.program.tasks[following].waits_for is not None
            found = self._prefetched(AT_ONCE if is_wait else 1)
            self._run(following if found is None else found)
        return tuple(self.order)

    def _prefetched(self, at_once: int) -> int | None:
        """Return the next start, or what serves it, if it may run now beside fewer than `at_once` of its kind; None if
        not."""
        while self._next is not None and self.headroom.has_run(self._next):
            self._next = next(self._starts)
        task = self._next
        if (
            task is None
            or len(self._of_its_kind(task)) >= at_once
            or find_conflicts(self.program, task, self.in_flight)
        ):
            return None
        while left := [need for need in self.program.tasks[task].needs if not self.headroom.has_run(need)]:
            task = left[0]
            if not self._serves[task]:
                return None
        return task if self.headroom.fits(task) else None

    def _following(self) -> int:
        """Return the next task in the given order, waits left for later; the first of these where it is needed."""
        in_flight = {*self.in_flight.values()}
        while self.at in in_flight or (self.at < len(self._serves) and self.headroom.has_run(self.at)):
            self.at += 1
        if self.at == len(self._serves):
            return self.headroom.turn
        found = self.program.tasks[self.at]
        needed = [need for need in found.needs if need in in_flight]
        if found.transfer is not None and self.at in self._waits:
            needed += [self.in_flight[start] for start in self._of_its_kind(self.at)[: 1 - AT_ONCE]]
        if needed:
            return needed[0]
        return self.at if self.headroom.fits(self.at) else self.headroom.turn

    def _of_its_kind(self, task: int) -> list[int]:
        """Return the starts in flight that are of the kind and stream of `task`."""
        found = self.program.tasks[task]
        return [
            start for start in self.in_flight
            if self.program.tasks[start].op == found.op and self._stream(start) == self._stream(task)
        ]  # fmt: skip

    def _stream(self, task: int) -> str:
        transfer = self.program.tasks[task].transfer
        return transfer.stream if transfer else ""

    def _run(self, task: int) -> None:
        """Run a task, after the waits for what it must not be in flight with."""
        for start in find_conflicts(self.program, task, self.in_flight):
            self._run(self.in_flight[start])
        found = self.program.tasks[task]
        self.order.append(task)
        self.headroom.run(task)
        if found.waits_for is not None:
            del self.in_flight[found.waits_for]
        if task in self._waits:
            self.in_flight[task] = self._waits[task]
