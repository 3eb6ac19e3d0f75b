"""Order tasks without times: starts move up, waits move down, and all other tasks keep their order.

A start or a wait moves past independent tasks while memory permits. Starts keep their order. Right before a wait, the
next start of the same kind runs, so its transfer runs while the result of the wait is used. At most two transfers of a
kind are in flight. For example:

    given order   start1, wait1, use1, start2, wait2, use2, start3, wait3, use3
    new order     start1, start2, wait1, use1, start3, wait2, use2, wait3, use3
"""

from __future__ import annotations

from spmdir.core.progress import say
from spmdir.schedule.memory import peak_bytes
from spmdir.schedule.memory_headroom import Headroom
from spmdir.schedule.mobility import find_conflicts, find_preparing
from spmdir.schedule.program import Program

IN_FLIGHT_PER_KIND = 2
"""The largest number of transfers of one kind that are in flight on a stream."""


def lengthen_flights(program: Program, memory_limit: float | None = None) -> tuple[int, ...]:
    """Return an order of the tasks in which transfers are in flight for longer.

    Args:
        memory_limit: bytes that may be live. None: the peak of the given order. The result exceeds the limit only if
            the given order does.
    """
    return _Swaps(program, peak_bytes(program) if memory_limit is None else memory_limit).run()


class _Swaps:
    """A walk over the tasks in the given order.

    Attributes:
        order: the tasks that have run.
        position: the current task of the walk. Of the tasks before it, only waits have not run.
        in_flight: start that has run → its wait, which has not.
    """

    def __init__(self, program: Program, limit: float):
        self.program, self.headroom = program, Headroom(program, limit)
        self.order: list[int] = []
        self.position = 0
        self.in_flight: dict[int, int] = {}
        tasks = program.tasks
        # start → its wait
        self._waits = {task.waits_for: index for index, task in enumerate(tasks) if task.waits_for is not None}
        starts = [index for index, task in enumerate(tasks) if index in self._waits]
        # for each task, whether it only prepares operands of starts
        self._is_preparing = find_preparing(program, range(len(tasks)), [task.needs for task in tasks], {*starts})
        # the starts in the given order, then None; `_next` is the first of them that has not run
        self._starts = iter([*starts, None])
        self._next = next(self._starts)

    def run(self) -> tuple[int, ...]:
        """Return all tasks, in order.

        The tasks run in the given order, except that waits are postponed. Before each of them, the next start runs if
        it may: before a wait, also if another transfer of its kind is in flight.
        """
        while not self.headroom.is_done:
            say("reorder: {} of {} tasks", len(self.order), len(self.program.tasks))
            task = self._next_in_order()
            is_wait = self.program.tasks[task].waits_for is not None
            start = self._next_start(IN_FLIGHT_PER_KIND if is_wait else 1)
            self._run(task if start is None else start)
        return tuple(self.order)

    def _next_start(self, limit: int) -> int | None:
        """Return the next start in the given order, or a task that prepares its operand; None if it may not run now.

        It may run if fewer than `limit` starts of its kind are in flight, and no conflicting start is. The other tasks
        that it needs must have run, and there must be memory.
        """
        while self._next is not None and self.headroom.has_run(self._next):
            self._next = next(self._starts)
        start = self._next
        if start is None or len(self._in_flight_of_kind(start)) >= limit:
            return None
        if find_conflicts(self.program, start, self.in_flight):
            return None
        task = start
        while unmet := [need for need in self.program.tasks[task].needs if not self.headroom.has_run(need)]:
            task = unmet[0]
            if not self._is_preparing[task]:
                return None
        return task if self.headroom.fits(task) else None

    def _next_in_order(self) -> int:
        """Return the next task in the given order without postponed waits, or a wait that must run before the task.

        If the task does not fit into memory, or if only postponed waits are left, return the first of these waits.
        """
        waits, count = {*self.in_flight.values()}, len(self.program.tasks)
        while self.position in waits or (self.position < count and self.headroom.has_run(self.position)):
            self.position += 1
        # Only postponed waits before `position` have not run, so `turn` is the first of them, or `position`.
        if self.position == count:
            return self.headroom.turn
        task = self.program.tasks[self.position]
        needed_waits = [need for need in task.needs if need in waits]
        if task.transfer is not None and self.position in self._waits:
            # Before a start, all but the last IN_FLIGHT_PER_KIND − 1 transfers of its kind have to end.
            starts_to_end = self._in_flight_of_kind(self.position)[: 1 - IN_FLIGHT_PER_KIND]
            needed_waits += [self.in_flight[start] for start in starts_to_end]
        if needed_waits:
            return needed_waits[0]
        return self.position if self.headroom.fits(self.position) else self.headroom.turn

    def _in_flight_of_kind(self, task: int) -> list[int]:
        """Return the starts in flight with the op and the stream of `task`."""
        op, stream = self.program.tasks[task].op, self._stream(task)
        return [
            start for start in self.in_flight if self.program.tasks[start].op == op and self._stream(start) == stream
        ]

    def _stream(self, task: int) -> str:
        """Return the stream of the transfer that `task` starts; an empty text if it starts none."""
        transfer = self.program.tasks[task].transfer
        return transfer.stream if transfer else ""

    def _run(self, task: int) -> None:
        """Run a task, after the waits for conflicting transfers."""
        for start in find_conflicts(self.program, task, self.in_flight):
            self._run(self.in_flight[start])
        self.order.append(task)
        self.headroom.run(task)
        start = self.program.tasks[task].waits_for
        if start is not None:
            del self.in_flight[start]
        if task in self._waits:
            self.in_flight[task] = self._waits[task]
