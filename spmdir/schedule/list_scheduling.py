"""An order of a program's tasks in which transfers are hidden, within the memory that it may hold.

Tasks are listed one after the other, as they would run. A transfer whose result is needed as soon as it can be sent is
sent at once, and what leads to it comes before what does not, as long as there is enough else to do meanwhile. One that
can be hidden is sent as late as it can be and still be hidden, and those that nothing waits for are sent when their
stream is idle. While a transfer is waited for, whatever is ready runs.

The given order bounds the memory: a task may only come before its turn if, were all that it overtook to follow in the
given order, there would be memory for that at each of them.
"""

from __future__ import annotations

import heapq
import itertools
import math

from spmdir.schedule.headroom import Headroom
from spmdir.schedule.memory import peak_bytes
from spmdir.schedule.mobility import conflicts, intervals, is_view, serving, users
from spmdir.schedule.program import Program
from spmdir.schedule.simulate import Links, simulate

EARLY = 1.5
"""How much longer than modelled a transfer may take and still be hidden."""

IN_FLIGHT = 2
"""How many transfers of a stream are under way or queued before another one that can be hidden is started."""


def ordered(program: Program, memory: float | None = None) -> tuple[int, ...]:
    """Return an order of the tasks that takes no longer than the given one.

    Args:
        memory: bytes that the program may hold; as many as in the given order if None.
    """
    given = tuple(range(len(program.tasks)))
    limit = peak_bytes(program) if memory is None else memory
    found = _Listing(program, limit).run()
    before, after = simulate(program), simulate(program, found)
    fits = after.peak_bytes <= max(limit, before.peak_bytes)
    return found if fits and after.seconds < before.seconds else given


class _Plan:
    """What is known of the tasks before they are listed.

    Attributes:
        users: by task, those that need it.
        waits: start → its wait.
        due: start, or task that only serves starts → the time of the accelerator at which it should run; always for
            what cannot be hidden, never for what nothing waits for.
        stream: of these.
        gap: start of a transfer that cannot be hidden → its seconds.
        longest: of these.
        leads: by task, the first start that cannot be hidden and depends on it; the number of tasks if there is none.
    """

    def __init__(self, program: Program):
        tasks = program.tasks
        needs = [task.needs for task in tasks]
        self.users = users(needs)
        starts = [at for at, task in enumerate(tasks) if task.transfer is not None and not task.is_blocking]
        self.waits = {task.waits: at for at, task in enumerate(tasks) if task.waits is not None}
        serves = serving(program, range(len(tasks)), needs, {*starts})
        first, last = intervals(needs, [serves[at] or is_view(program, at) for at in range(len(tasks))])
        clock = [*itertools.accumulate((task.seconds for task in tasks), initial=0.0), math.inf]
        self.due: dict[int, float] = {}
        self.stream: dict[int, str] = {}
        free: dict[str, float] = {}
        for start in sorted(starts, key=lambda at: last[self.waits[at]], reverse=True):
            transfer, until = tasks[start].transfer, last[self.waits[start]]
            assert transfer is not None
            self.stream[start] = transfer.stream
            if until == len(tasks):
                self.due[start] = math.inf
            elif clock[until] - clock[first[start]] < transfer.seconds:
                self.due[start] = -math.inf
            else:
                end = min(clock[until], free.get(transfer.stream, math.inf))
                self.due[start] = free[transfer.stream] = end - EARLY * transfer.seconds
        for at in reversed(range(len(tasks))):
            if serves[at] and all(user in self.due for user in self.users[at]):
                self.due[at], self.stream[at] = min((self.due[user], self.stream[user]) for user in self.users[at])
        self.gap: dict[int, float] = {}
        for start in starts:
            if self.due[start] == -math.inf and (transfer := tasks[start].transfer):
                self.gap[start] = transfer.seconds
        self.longest = max(self.gap.values(), default=0.0)
        self.leads = [len(tasks)] * len(tasks)
        for at in reversed(range(len(tasks))):
            for user in self.users[at]:
                self.leads[at] = min(self.leads[at], user if user in self.gap else self.leads[user])


class _Listing:
    """A list of tasks that grows, and what is ready to follow.

    Attributes:
        order: the tasks that are listed.
        now: the time when the last of them has run.
        ready_seconds: of what is ready to run.
        fills: by the start that they lead to, the seconds of the tasks that are ready, each at most as long as the
            longest transfer that cannot be hidden: a task fills one gap, however long it is.
        in_flight: start → its wait, until that is listed.
        under_way: stream → the starts whose transfers have not ended.
    """

    def __init__(self, program: Program, limit: float):
        self.program, self.plan = program, _Plan(program)
        self.headroom, self.links = Headroom(program, limit), Links()
        self.order: list[int] = []
        self.now, self.spent = 0.0, 0.0
        self.ready_seconds, self.fills = 0.0, dict[int, float]()
        self.in_flight: dict[int, int] = {}
        self.under_way: dict[str, list[int]] = {}
        self._missing = [len(set(task.needs)) for task in program.tasks]
        self._due: dict[str, list[tuple[float, int]]] = {}
        self._idle: dict[str, list[int]] = {}
        self._ready: list[int] = []
        self._leading: list[tuple[int, int]] = []
        for task, count in enumerate(self._missing):
            if not count:
                self._is_ready(task)

    def run(self) -> tuple[int, ...]:
        """Return all tasks, in order."""
        while not self.headroom.is_done:
            self._receive()
            found = self._next_start()
            if found is None:
                found = self._next_work()
            if found is None and (found := self.headroom.turn) in self.in_flight.values():
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
            self._work(self.in_flight[start])

    def _next_start(self) -> int | None:
        """Return a start that is due, or one that nothing waits for if its stream is idle; or what serves it."""
        clock = self.spent + self.ready_seconds
        for stream, heap in self._due.items():
            self._drop_listed(heap)
            if heap:
                due, task = heap[0]
                queued = len(self.under_way.get(stream, ()))
                if due <= clock and (due == -math.inf or queued < IN_FLIGHT) and self._may(task):
                    return heapq.heappop(heap)[1]
        for stream, heap in self._idle.items():
            while heap and self.headroom.has_run(heap[0]):
                heapq.heappop(heap)
            if heap and not self.under_way.get(stream):
                waiting, transfer = self._due.get(stream), self.program.tasks[heap[0]].transfer
                seconds = transfer.seconds if transfer else 0.0
                if (not waiting or waiting[0][0] >= clock + seconds) and self._may(heap[0]):
                    return heapq.heappop(heap)
        return None

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
        ahead = [start, self.plan.leads[start]]
        kept = sum(seconds for to, seconds in self.fills.items() if to not in ahead)
        return kept - self._filled(task) < sum(self.plan.gap.get(one, 0.0) for one in ahead)

    def _filled(self, task: int) -> float:
        return min(self.program.tasks[task].seconds, self.plan.longest)

    def _may(self, task: int) -> bool:
        """Return whether a task may come before its turn."""
        return not conflicts(self.program, task, self.in_flight) and self.headroom.fits(task)

    def _list(self, task: int) -> None:
        """List a task, after the waits for what it must not be in flight with."""
        for start in conflicts(self.program, task, self.in_flight):
            self._list(self.in_flight[start])
        found, plan = self.program.tasks[task], self.plan
        self.order.append(task)
        self.headroom.run(task)
        if found.waits is not None:
            del self.in_flight[found.waits]
            if found.waits in (sent := self.under_way[plan.stream[found.waits]]):
                sent.remove(found.waits)
                self.now = max(self.now, self.links.ended(found.waits))
            else:
                self._take(task)
        elif task not in plan.due:
            self._take(task)
        self.now += found.seconds
        self.spent += found.seconds
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
        if (due := self.plan.due.get(task)) is not None:
            stream = self.plan.stream[task]
            if due == math.inf:
                heapq.heappush(self._idle.setdefault(stream, []), task)
            else:
                heapq.heappush(self._due.setdefault(stream, []), (due, task))
        elif self.program.tasks[task].waits is None:
            self._work(task)

    def _take(self, task: int) -> None:
        self.ready_seconds -= self.program.tasks[task].seconds
        self.fills[self.plan.leads[task]] -= self._filled(task)

    def _work(self, task: int) -> None:
        start = self.plan.leads[task]
        self.ready_seconds += self.program.tasks[task].seconds
        self.fills[start] = self.fills.get(start, 0.0) + self._filled(task)
        heapq.heappush(self._ready, task)
        if start < len(self.program.tasks):
            heapq.heappush(self._leading, (start, task))

    def _drop_listed(self, heap: list[tuple[float, int]]) -> None:
        while heap and self.headroom.has_run(heap[0][1]):
            heapq.heappop(heap)
