"""An order of a program's tasks in which transfers are hidden, within the memory that it may hold.

Tasks are listed one after the other, as they would run. A transfer whose result is needed as soon as it can be sent is
sent at once, and what leads to it comes before what does not, as long as there is enough else to do meanwhile. One that
can be hidden is sent as late as it can be and still be hidden, but as soon as its stream is idle if less is held after
it. While a transfer is waited for, whatever is ready runs, and what uses other links is sent.

Of several such lists, which send what can be hidden late or early, the one that takes least time is the order.

The given order bounds the memory: a task may only come before its turn if, were all that it overtook to follow in the
given order, there would be memory for that at each of them.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from spmdir.core.progress import say
from spmdir.schedule.deadlines import LEAST, Deadlines
from spmdir.schedule.headroom import Headroom
from spmdir.schedule.memory import live_bytes
from spmdir.schedule.mobility import advance_outputs, find_conflicts
from spmdir.schedule.program import Program, Transfer, reorder_tasks
from spmdir.schedule.simulate import Links, simulate

IN_FLIGHT = 2
"""How many transfers of a stream are under way or queued before another one that can be hidden is started."""

SLACKS = (1.1, 20.0)
"""How many times as long as modelled a transfer may take and still be hidden, in the orders that are tried: what is
sent as late as possible is held for the least time, what is sent early lets its user run before its turn."""


def order_tasks(program: Program, memory: float | None = None) -> tuple[int, ...]:
    """Return an order of the tasks that takes no longer than the given one.

    Args:
        memory: bytes that the program may hold; as many as in the given order if None.
    """
    before = simulate(program)
    limit = before.peak_bytes if memory is None else max(memory, before.peak_bytes)
    first, live = advance_outputs(program), before.live
    if first != before.order:
        live = live_bytes(program, first)
        if max(live) > limit:
            first, live = before.order, before.live
    start, live = reorder_tasks(program, first), [live[at] for at in first]
    orders = [tuple(first[at] for at in ListScheduler(start, limit, live, slack).run()) for slack in SLACKS]
    runs = sorted([before, *(simulate(program, order) for order in orders)], key=lambda run: run.seconds)
    return next(run.order for run in runs if run is before or run.peak_bytes <= limit)


class ListScheduler:
    """A list of tasks that grows, and what is ready to follow.

    Args:
        live: the most bytes that are live while each task runs in the given order, if that is known.
        slack: as for Deadlines.

    Attributes:
        order: the tasks that are listed.
        now: the time when the last of them has run.
        spent: the time that they keep the accelerator busy.
        fills: by the start that they lead to, the seconds of the tasks that are ready, each at most as long as the
            longest urgent transfer: a task fills one gap, however long it is.
        filled: the sum of these.
        in_flight: start → its wait, until that is listed.
        under_way: stream → the starts whose transfers have not ended.
    """

    def __init__(self, program: Program, limit: float, live: Sequence[float] | None = None, slack: float = SLACKS[0]):
        self.program, self.plan = program, Deadlines(program, slack)
        self.headroom, self.links = Headroom(program, limit, live), Links()
        self.order: list[int] = []
        self.now, self.spent = 0.0, 0.0
        self.fills, self.filled = dict[int, float](), 0.0
        self.in_flight: dict[int, int] = {}
        self.under_way: dict[str, list[int]] = {}
        self._missing = [len(set(task.needs)) for task in program.tasks]
        self._due: dict[str, list[tuple[float, int]]] = {}
        self._early: dict[str, list[int]] = {}
        self._ready: list[int] = []
        self._leading: list[tuple[int, int]] = []
        for task, count in enumerate(self._missing):
            if not count:
                self._is_ready(task)

    def run(self) -> tuple[int, ...]:
        """Return all tasks, in order."""
        while not self.headroom.is_done:
            say("reorder: {} of {} tasks", len(self.order), len(self.program.tasks))
            self._receive()
            work = self._next_work()
            found = self._next_start(0.0 if work is None else max(LEAST, self.program.tasks[work].seconds))
            if found is None:
                found = self._next_beside() if work is None else work
            if found is None and (found := self.headroom.turn) in [self.in_flight[start] for start in self._sent()]:
                self.now = self.links.next_end(self._sent())
            else:
                self._list(found)
        return tuple(self.order)

    def _sent(self) -> list[int]:
        return [start for sent in self.under_way.values() for start in sent]

    def _receive(self) -> None:
        """Let what has ended be waited for."""
        for start in self.links.have_ended(self._sent(), self.now):
            self.under_way[self.plan.stream[start]].remove(start)
            self._offer(self.in_flight[start])

    def _next_start(self, ahead: float) -> int | None:
        """Return a start that is due, or one that frees memory and is not in the way of others; or what serves it.

        Args:
            ahead: seconds of the task that would run next, while which nothing can be started.
        """
        for stream, heap in self._due.items():
            self._drop_listed(heap)
            if heap:
                due, task = heap[0]
                is_next = due == -math.inf or (
                    due < self.spent + max(LEAST, ahead) and len(self.under_way.get(stream, ())) < IN_FLIGHT
                )
                if is_next and (found := self._first(task)) is not None:
                    return found
        first: int | None = None
        for heap in self._early.values():
            while heap and self.headroom.has_run(heap[0]):
                heapq.heappop(heap)
            if heap and (first is None or heap[0] < first) and self._is_idle(heap[0], ahead):
                first = heap[0] if self._first(heap[0]) is not None else first
        return None if first is None else self._first(first)

    def _is_idle(self, start: int, ahead: float) -> bool:
        """Return whether the streams of a transfer and of those that it excludes are free for as long as it takes."""
        transfer = self._transfer(start)
        if any(self.under_way.get(other) for other in transfer.excludes):
            return False
        queued = sum([self._transfer(other).seconds for other in self.under_way.get(transfer.stream, ())])
        if queued and queued + transfer.seconds > ahead:
            return False
        waiting = [heap[0] for stream in (transfer.stream, *transfer.excludes) if (heap := self._due.get(stream))]
        return all(task == start or due >= self.spent + ahead + transfer.seconds for due, task in waiting)

    def _next_beside(self) -> int | None:
        """Return a start that is not due, on a stream and on links that are idle while a transfer is waited for."""
        sent = [self._transfer(start) for start in self._sent()]
        intra, inter = any(one.intra for one in sent), any(one.inter for one in sent)
        found: tuple[float, int] | None = None
        for stream, heap in self._due.items():
            self._drop_listed(heap)
            if self.under_way.get(stream) or not heap or (found is not None and found < heap[0]):
                continue
            transfer = self.program.tasks[heap[0][1]].transfer
            if transfer is None or (transfer.intra and intra) or (transfer.inter and inter):
                continue
            found = heap[0] if self._first(heap[0][1]) is not None else found
        return None if found is None else self._first(found[1])

    def _transfer(self, start: int) -> Transfer:
        transfer = self.program.tasks[start].transfer
        assert transfer is not None
        return transfer

    def _first(self, task: int) -> int | None:
        """Return what is to be listed so that `task` may be: itself, or a wait for what has ended and must not be in
        flight with it; None if neither is possible."""
        for start in find_conflicts(self.program, task, self.in_flight):
            if start in self.under_way[self.plan.stream[start]]:
                return None
            task = self.in_flight[start]
        return task if self.headroom.fits(task) else None

    def _next_work(self) -> int | None:
        """Return what to run next: the first task in the given order, or the first that leads to a transfer which could
        not be hidden, as long as what else is ready takes less time than that."""
        ready, leading = self._ready, self._leading
        while ready and self.headroom.has_run(ready[0]):
            heapq.heappop(ready)
        while leading and self.headroom.has_run(leading[0][1]):
            heapq.heappop(leading)
        if leading:
            start, task = leading[0]
            if self.plan.leads[ready[0]] != start and self._hides(ready[0], start) and self._may(task):
                return task
        return ready[0] if ready and self._may(ready[0]) else None

    def _hides(self, task: int, start: int) -> bool:
        """Return whether `task` is to be kept for the time in which the transfer of `start`, or of the one that
        follows from it, is under way: what else is ready would not be enough."""
        ahead = {start, self.plan.leads[start]}
        kept = self.filled - sum(self.fills.get(one, 0.0) for one in ahead)
        return kept - self._filled(task) < sum(self.plan.gap.get(one, 0.0) for one in ahead)

    def _filled(self, task: int) -> float:
        return min(self.program.tasks[task].seconds, self.plan.longest)

    def _may(self, task: int) -> bool:
        """Return whether a task may come before its turn."""
        return not find_conflicts(self.program, task, self.in_flight) and self.headroom.fits(task)

    def _list(self, task: int) -> None:
        """List a task, after the waits for what it must not be in flight with."""
        for start in find_conflicts(self.program, task, self.in_flight):
            self._list(self.in_flight[start])
        found, plan = self.program.tasks[task], self.plan
        self.order.append(task)
        self.headroom.run(task)
        if found.waits_for is not None:
            del self.in_flight[found.waits_for]
            if found.waits_for in (sent := self.under_way[plan.stream[found.waits_for]]):
                sent.remove(found.waits_for)
                self.now = max(self.now, self.links.ended(found.waits_for))
            elif task not in plan.due:
                self._take(task)
        elif task not in plan.due:
            self._take(task)
        self.now += found.seconds
        self.spent += max(LEAST, found.seconds)
        if found.transfer is not None:
            self.links.send(task, found.transfer, self.now)
            if found.is_blocking:
                self.now = self.links.ended(task)
            else:
                self.in_flight[task] = plan.waits[task]
                self.under_way.setdefault(plan.stream[task], []).append(task)
        for user in plan.users[task]:
            self._missing[user] -= 1
            if not self._missing[user]:
                self._is_ready(user)

    def _is_ready(self, task: int) -> None:
        """Take note of a task whose operands are there; waits are ready once their transfers have ended."""
        if self.program.tasks[task].waits_for is None:
            self._offer(task)

    def _offer(self, task: int) -> None:
        plan = self.plan
        if (due := plan.due.get(task)) is not None:
            heapq.heappush(self._due.setdefault(plan.stream[task], []), (due, task))
            if task in plan.early:
                heapq.heappush(self._early.setdefault(plan.stream[task], []), task)
            return
        start = plan.leads[task]
        self.fills[start] = self.fills.get(start, 0.0) + self._filled(task)
        self.filled += self._filled(task)
        heapq.heappush(self._ready, task)
        if start < len(self.program.tasks):
            heapq.heappush(self._leading, (start, task))

    def _take(self, task: int) -> None:
        self.fills[self.plan.leads[task]] -= self._filled(task)
        self.filled -= self._filled(task)

    def _drop_listed(self, heap: list[tuple[float, int]]) -> None:
        while heap and self.headroom.has_run(heap[0][1]):
            heapq.heappop(heap)
