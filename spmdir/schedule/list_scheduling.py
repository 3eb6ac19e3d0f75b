"""Find an order of tasks that hides transfers within a memory limit, by list scheduling.

The scheduler appends one ready task after another to a list, as they would run. For example, a, x, p and z take 2, 2,
2 and 1 seconds. p uses a. The result of p is reduced for 3 seconds, and z uses the sum and x.

    given order   a, x, p, start, wait, z   10 s: the accelerator is idle during the whole transfer
    deadlines     z could run right after p, so nothing hides the transfer in this order: it is urgent
                  a and p lead to the urgent start; x does not, and can fill the gap of 3 s
    list          a: the first ready task of the given order
                  p: leads to the urgent start; x is reserved for the gap, because no other task fills it
                  start: is urgent, so it runs at once
                  x: runs during the transfer
                  wait, z
    its time      8 s: 1 s of the transfer is exposed

The rules:

- An urgent start runs at once. If the next ready task is needed to fill its gap, a task that leads to the start runs
  instead.
- A start that can be hidden runs as late as possible (`deadlines.py`). If it frees memory, it runs when its stream is
  idle.
- While the accelerator waits for a transfer, ready tasks run, and transfers on idle links start.
- A task runs before its turn only if all the tasks that it overtakes, in the given order, still fit into memory.

Two lists are built: hidden transfers start late in one, and early in the other. The fastest of both lists and the
given order is used.

Source: R. L. Graham, "Bounds on multiprocessing timing anomalies", 1969, for list scheduling. The priorities are
specific to this file.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from spmdir.core.progress import say
from spmdir.schedule.deadlines import LEAST_SECONDS, Deadlines
from spmdir.schedule.memory import live_bytes
from spmdir.schedule.memory_headroom import Headroom
from spmdir.schedule.mobility import advance_transfers, find_conflicts
from spmdir.schedule.program import Program, Transfer, reorder_tasks
from spmdir.schedule.simulate import Links, simulate

IN_FLIGHT = 2
"""A transfer that can be hidden starts only if fewer transfers are running or queued on its stream."""

SLACKS = (1.1, 20.0)
"""The factors on the time of a transfer that is to be hidden, one for each list. With a small factor, a transfer starts
late and its result is held for the shortest time. With a large factor, it starts early and its user can run earlier."""


def order_tasks(program: Program, memory_limit: float | None = None) -> tuple[int, ...]:
    """Return the fastest known order of the tasks that fits into memory; the given order if none fits.

    If the given order fits, the result takes no longer.

    Args:
        memory_limit: bytes. If no order below the limit is known, the peak of the given order is allowed, or that of
            `advance_transfers` if it is lower. None: the peak of the given order.
    """
    before = simulate(program)
    # The lists start from the order with early transfers, unless it has a higher peak than the given order.
    initial, live = advance_transfers(program), before.live
    if initial != before.order:
        live = live_bytes(program, initial)
        if max(live) > before.peak_bytes:
            initial, live = before.order, before.live
    limit = before.peak_bytes if memory_limit is None else max(memory_limit, *live)
    # The scheduler numbers tasks by their positions in the initial order.
    renumbered, live_by_position = reorder_tasks(program, initial), [live[task] for task in initial]
    runs = [before, *([simulate(program, tuple(initial))] if initial != before.order else [])]
    for slack in SLACKS:
        positions = ListScheduler(renumbered, limit, live_by_position, slack).run()
        runs.append(simulate(program, tuple(initial[position] for position in positions)))
    runs.sort(key=lambda run: run.seconds)
    return next((run.order for run in runs if run.peak_bytes <= limit), before.order)


class ListScheduler:
    """Build one list of tasks.

    Args:
        limit: bytes that may be live.
        live: for each task, the most bytes that are live while it runs in the given order; computed if None.
        slack: see `Deadlines`.

    Attributes:
        order: the tasks in the list.
        time: seconds, when the last task of the list ends.
        busy_time: the total seconds of the tasks of the list.
        ready_fill: urgent start → seconds of the ready tasks that lead to it. A task counts for at most the longest
            exposed transfer, because it fills only one gap.
        total_ready_fill: the sum of these.
        in_flight: start → its wait, if the start is in the list and the wait is not.
        transferring: stream → the starts whose transfers have not ended.
    """

    def __init__(self, program: Program, limit: float, live: Sequence[float] | None = None, slack: float = SLACKS[0]):
        self.program, self.deadlines = program, Deadlines(program, slack)
        self.headroom, self.links = Headroom(program, limit, live), Links()
        self.order: list[int] = []
        self.time, self.busy_time = 0.0, 0.0
        self.ready_fill, self.total_ready_fill = dict[int, float](), 0.0
        self.in_flight: dict[int, int] = {}
        self.transferring: dict[str, list[int]] = {}
        # for each task, the number of the tasks that it needs and that are not in the list
        self._unmet_needs = [len(set(task.needs)) for task in program.tasks]
        # Heaps of tasks whose needs are in the list. A task that only leads to starts counts as a start.
        self._due_starts: dict[str, list[tuple[float, int]]] = {}  # stream → (latest time, start)
        self._early_starts: dict[str, list[int]] = {}  # stream → the starts that free memory
        self._ready_tasks: list[int] = []  # the other tasks
        self._leading_tasks: list[tuple[int, int]] = []  # (urgent start, ready task that leads to it)
        for task, count in enumerate(self._unmet_needs):
            if not count:
                self._release(task)

    def run(self) -> tuple[int, ...]:
        """Return all tasks, in order.

        The next task is the first of these that may run now: a start that is due or frees memory, a compute task, a
        start on idle links, and the next task in the given order.
        """
        while not self.headroom.is_done:
            say("reorder: {} of {} tasks", len(self.order), len(self.program.tasks))
            self._receive()
            compute = self._next_compute()
            compute_seconds = 0.0 if compute is None else max(LEAST_SECONDS, self.program.tasks[compute].seconds)
            task = self._next_start(compute_seconds)
            if task is None:
                task = self._next_on_idle_links() if compute is None else compute
            if task is None:
                task = self.headroom.turn  # the next task in the given order always fits
                pending_waits = [self.in_flight[start] for start in self._all_transferring()]
                if task in pending_waits:  # let time pass: another task may be ready when a transfer has ended
                    self.time = self.links.next_end(self._all_transferring())
                    continue
            self._append(task)
        return tuple(self.order)

    def _all_transferring(self) -> list[int]:
        """Return the starts of all streams whose transfers have not ended."""
        return [start for starts in self.transferring.values() for start in starts]

    def _receive(self) -> None:
        """Make the waits of ended transfers ready."""
        for start in self.links.have_ended(self._all_transferring(), self.time):
            self.transferring[self.deadlines.stream_of[start]].remove(start)
            self._add_ready(self.in_flight[start])

    def _next_start(self, compute_seconds: float) -> int | None:
        """Return a start that may run now, or a wait that must run before it; None if there is none.

        A start that is due goes before one that frees memory. A task that only leads to starts counts as a start.

        Args:
            compute_seconds: time of the next compute task. Nothing can start while it runs.
        """
        due = self._next_due_start(compute_seconds)
        return due if due is not None else self._next_freeing_start(compute_seconds)

    def _next_due_start(self, compute_seconds: float) -> int | None:
        """Return a start that is due, or a wait that must run before it; None if there is none.

        A start is due if its latest start would pass during the next compute task. Too many transfers on its stream
        delay it, unless it is urgent.
        """
        for stream, heap in self._due_starts.items():
            self._drop_listed(heap)
            if not heap:
                continue
            latest, start = heap[0]
            is_urgent = latest == -math.inf
            is_due = latest < self.busy_time + max(LEAST_SECONDS, compute_seconds)
            has_room = len(self.transferring.get(stream, ())) < IN_FLIGHT
            if is_urgent or (is_due and has_room):
                task = self._next_towards(start)
                if task is not None:
                    return task
        return None

    def _next_freeing_start(self, compute_seconds: float) -> int | None:
        """Return the first start that frees memory and delays no other start, or a wait that must run before it.

        None if there is no such start.
        """
        first_start: int | None = None
        for heap in self._early_starts.values():
            while heap and self.headroom.has_run(heap[0]):
                heapq.heappop(heap)
            if not heap or (first_start is not None and first_start <= heap[0]):
                continue
            if self._is_idle(heap[0], compute_seconds) and self._next_towards(heap[0]) is not None:
                first_start = heap[0]
        return None if first_start is None else self._next_towards(first_start)

    def _is_idle(self, start: int, compute_seconds: float) -> bool:
        """Return whether a transfer can run now without delaying another one.

        All streams that it excludes must be idle. Its own stream must be idle too, or the next compute task of
        `compute_seconds` must hide the queued transfers and this one. No other start on these streams may be due before
        the transfer ends.
        """
        transfer = self._transfer(start)
        if any(self.transferring.get(stream) for stream in transfer.excludes):
            return False
        queued_seconds = sum([self._transfer(queued).seconds for queued in self.transferring.get(transfer.stream, ())])
        if queued_seconds and queued_seconds + transfer.seconds > compute_seconds:
            return False
        end = self.busy_time + compute_seconds + transfer.seconds
        for stream in (transfer.stream, *transfer.excludes):
            if heap := self._due_starts.get(stream):
                latest, due_start = heap[0]
                if due_start != start and latest < end:
                    return False
        return True

    def _next_on_idle_links(self) -> int | None:
        """Return a start on an idle stream and idle links, though it is not due, or a wait that must run before it.

        Of several, the start with the earliest latest start is chosen. None if there is no such start.
        """
        running = [self._transfer(start) for start in self._all_transferring()]
        intra_is_busy = any(transfer.intra for transfer in running)
        inter_is_busy = any(transfer.inter for transfer in running)
        earliest: tuple[float, int] | None = None  # (latest start, start)
        for stream, heap in self._due_starts.items():
            self._drop_listed(heap)
            if self.transferring.get(stream) or not heap or (earliest is not None and earliest < heap[0]):
                continue
            _, start = heap[0]
            transfer = self.program.tasks[start].transfer
            if transfer is None or (transfer.intra and intra_is_busy) or (transfer.inter and inter_is_busy):
                continue
            if self._next_towards(start) is not None:
                earliest = heap[0]
        return None if earliest is None else self._next_towards(earliest[1])

    def _transfer(self, start: int) -> Transfer:
        """Return the transfer of a start."""
        transfer = self.program.tasks[start].transfer
        assert transfer is not None
        return transfer

    def _next_towards(self, task: int) -> int | None:
        """Return the next task to append before `task` can run: a conflicting wait, or else `task`.

        None if a conflicting transfer has not ended, or if there is no memory.
        """
        for start in find_conflicts(self.program, task, self.in_flight):
            if start in self.transferring[self.deadlines.stream_of[start]]:
                return None
            task = self.in_flight[start]
        return task if self.headroom.fits(task) else None

    def _next_compute(self) -> int | None:
        """Return the next ready task that is not a start; None if none may run.

        The first ready task in the given order is returned, unless it should wait to run during an urgent transfer.
        Then a task that leads to the start of this transfer is returned.
        """
        ready, leading = self._ready_tasks, self._leading_tasks
        while ready and self.headroom.has_run(ready[0]):
            heapq.heappop(ready)
        while leading and self.headroom.has_run(leading[0][1]):
            heapq.heappop(leading)
        if leading:
            urgent_start, leading_task = leading[0]
            # Leading tasks are ready tasks too, so `ready` is not empty.
            leads_elsewhere = self.deadlines.leads_to[ready[0]] != urgent_start
            if leads_elsewhere and self._is_reserved_for(ready[0], urgent_start) and self._may_run(leading_task):
                return leading_task
        return ready[0] if ready and self._may_run(ready[0]) else None

    def _is_reserved_for(self, task: int, start: int) -> bool:
        """Return whether ready task `task` should wait, to run during an urgent transfer or the urgent one after it.

        It should if the other ready tasks that can run during these transfers take less time than the transfers. For
        example, the ready tasks a and b lead to two transfers of 3 s and 2 s. The tasks x and y, of 4 s each, are ready
        too. Without x, only y can run during the 5 s, so x is reserved.

        Args:
            start: the start of the urgent transfer.
        """
        starts = {start, self.deadlines.leads_to[start]}
        # Tasks that lead to these starts run before the transfers, so they cannot run during them.
        fill_seconds = self.total_ready_fill - sum(self.ready_fill.get(urgent, 0.0) for urgent in starts)
        transfer_seconds = sum(self.deadlines.exposed_seconds.get(urgent, 0.0) for urgent in starts)
        return fill_seconds - self._fill_seconds(task) < transfer_seconds

    def _fill_seconds(self, task: int) -> float:
        """Return the seconds of a gap that a task can fill: its time, at most the longest exposed transfer."""
        return min(self.program.tasks[task].seconds, self.deadlines.longest_exposed)

    def _may_run(self, task: int) -> bool:
        """Return whether a task conflicts with nothing in flight and fits into memory."""
        return not find_conflicts(self.program, task, self.in_flight) and self.headroom.fits(task)

    def _append(self, number: int) -> None:
        """Append a task to the list, after the waits that must come before it, and let time pass while it runs.

        If it is a wait, time passes until its transfer ends. Tasks whose last unmet need it is become ready.
        """
        for start in find_conflicts(self.program, number, self.in_flight):
            self._append(self.in_flight[start])
        task, deadlines = self.program.tasks[number], self.deadlines
        self.order.append(number)
        self.headroom.run(number)
        was_ready = True  # its time is part of `ready_fill`, unless it is a start
        if task.waits_for is not None:
            del self.in_flight[task.waits_for]
            transferring = self.transferring[deadlines.stream_of[task.waits_for]]
            if task.waits_for in transferring:  # the wait runs although its transfer has not ended
                was_ready = False
                transferring.remove(task.waits_for)
                self.time = max(self.time, self.links.ended(task.waits_for))
        if was_ready and number not in deadlines.latest_start:
            self._remove_fill(number)
        self.time += task.seconds
        self.busy_time += max(LEAST_SECONDS, task.seconds)
        if task.transfer is not None:
            self.links.send(number, task.transfer, self.time)
            if task.is_blocking:
                self.time = self.links.ended(number)
            else:
                self.in_flight[number] = deadlines.waits[number]
                self.transferring.setdefault(deadlines.stream_of[number], []).append(number)
        for user in deadlines.users[number]:
            self._unmet_needs[user] -= 1
            if not self._unmet_needs[user]:
                self._release(user)

    def _release(self, task: int) -> None:
        """Make a task ready whose needs have run. A wait becomes ready later, when its transfer has ended."""
        if self.program.tasks[task].waits_for is None:
            self._add_ready(task)

    def _add_ready(self, task: int) -> None:
        """Add a task to the queues of starts, or to the queues of compute tasks that can fill gaps."""
        deadlines = self.deadlines
        if (latest := deadlines.latest_start.get(task)) is not None:
            heapq.heappush(self._due_starts.setdefault(deadlines.stream_of[task], []), (latest, task))
            if task in deadlines.frees_memory:
                heapq.heappush(self._early_starts.setdefault(deadlines.stream_of[task], []), task)
            return
        start = deadlines.leads_to[task]
        self.ready_fill[start] = self.ready_fill.get(start, 0.0) + self._fill_seconds(task)
        self.total_ready_fill += self._fill_seconds(task)
        heapq.heappush(self._ready_tasks, task)
        if start < len(self.program.tasks):
            heapq.heappush(self._leading_tasks, (start, task))

    def _remove_fill(self, task: int) -> None:
        """Subtract a task that runs from the seconds of ready tasks."""
        self.ready_fill[self.deadlines.leads_to[task]] -= self._fill_seconds(task)
        self.total_ready_fill -= self._fill_seconds(task)

    def _drop_listed(self, heap: list[tuple[float, int]]) -> None:
        """Remove the tasks in the list from the front of a queue of (latest start, task)."""
        while heap and self.headroom.has_run(heap[0][1]):
            heapq.heappop(heap)
