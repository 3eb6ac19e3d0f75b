"""When each transfer of a program should start, by the times of what stays in its order.

The clock is that of the accelerator without waits: a task that stays is at the sum of what is before it. A start that
leads to it has to be listed at the begin of some task before, since nothing can be sent while a task runs, and so has
what feeds the start. What does not fit between the earliest and the latest time cannot be hidden, and is urgent.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from spmdir.schedule.mobility import find_preparing, find_users, is_view
from spmdir.schedule.program import Program, Transfer

LEAST = 1e-9
"""Seconds that a task is said to take at least, so that no two are at one time."""


class Deadlines:
    """What is known of the tasks before they are listed.

    Args:
        slack: how many times as long as modelled a transfer may take and still be hidden.

    Attributes:
        users: by task, those that need it.
        waits: start → its wait.
        due: start, or task that only serves starts → the time at which it should run; always for what is urgent, never
            for what nothing waits for.
        stream: of these.
        early: starts that nothing waits for, or that are not urgent, and after whose waits no more is held than before.
        gap: start of a transfer that is urgent → its seconds.
        longest: of these.
        leads: by task, the first urgent start that depends on it; the number of tasks if there is none.
    """

    def __init__(self, program: Program, slack: float):
        tasks = self.tasks = program.tasks
        self._slack = slack
        needs = [task.needs for task in tasks]
        self.users = find_users(needs)
        self.waits = {task.waits_for: at for at, task in enumerate(tasks) if task.waits_for is not None}
        self._sends = {
            at: task.transfer for at, task in enumerate(tasks) if at in self.waits and task.transfer is not None
        }
        serves = find_preparing(program, range(len(tasks)), needs, self._sends)
        self._moves = [
            serves[at] or is_view(program, at) or at in self._sends or task.waits_for is not None
            for at, task in enumerate(tasks)
        ]
        self._spent = [max(LEAST, task.seconds) for task in tasks]
        *self._clock, _ = itertools.accumulate(self._spent, initial=0.0)
        self._done = self._earliest()
        self.due: dict[int, float] = {}
        self.stream = {at: transfer.stream for at, transfer in self._sends.items()}
        self.early = _freeing(program, {start: self.waits[start] for start in self._sends})
        self._find_due()
        self._find_feeding(serves)
        self.gap = {at: transfer.seconds for at, transfer in self._sends.items() if self.due[at] == -math.inf}
        self.early.difference_update(self.gap)
        self.longest = max(self.gap.values(), default=0.0)
        self.leads = [len(tasks)] * len(tasks)
        for at in reversed(range(len(tasks))):
            for user in self.users[at]:
                self.leads[at] = min(self.leads[at], user if user in self.gap else self.leads[user])

    def _earliest(self) -> list[float]:
        """Return when each task is done at the earliest."""
        done = [0.0] * len(self.tasks)
        for at, task in enumerate(self.tasks):
            begin = max([done[need] for need in task.needs], default=0.0) if self._moves[at] else self._clock[at]
            if task.waits_for is not None:
                begin = max(begin, done[task.waits_for] + self._sends[task.waits_for].seconds)
            done[at] = begin + self._spent[at]
        return done

    def _until(self) -> Iterator[tuple[int, float, list[float]]]:
        """Yield each task that moves, from the last to the first, the latest time at which it has to be done, and a
        list of the latest times at which tasks begin, in which that of the task may be changed."""
        latest = [*self._clock]
        for at in reversed(range(len(self.tasks))):
            if self._moves[at]:
                until = min([latest[user] for user in self.users[at]], default=math.inf)
                sent = self._sends[at].seconds if at in self._sends else 0.0
                latest[at] = until - sent - self._spent[at]
                yield at, until, latest

    def _find_due(self) -> None:
        """Find out what is urgent, then when the rest is due: what others wait for is apart from what is urgent."""
        urgent: dict[str, list[float]] = {}
        for at, until, _ in self._until():
            transfer = self._sends.get(at)
            if transfer is not None and until - self._done[at] < transfer.seconds:
                self.due[at] = -math.inf
                for name in _resources(transfer):
                    urgent.setdefault(name, []).append(self._done[at] - self._spent[at])
        for times in urgent.values():
            times.sort()
        free: dict[str, float] = {}
        for at, until, latest in self._until():
            transfer = self._sends.get(at)
            if transfer is None or at in self.due:
                continue
            if until == math.inf:
                self.early.add(at)
            if at in self.early:
                self.due[at] = latest[at] - (self._slack - 1) * transfer.seconds
                continue
            until = min([until, *(free.get(stream, until) for stream in (transfer.stream, *transfer.excludes))])
            busy = [urgent[name] for name in (*_resources(transfer), *transfer.excludes) if name in urgent]
            latest[at] = self._slot(self._slack * transfer.seconds, self._done[at], until, busy)
            self.due[at] = free[transfer.stream] = latest[at]

    def _slot(self, seconds: float, earliest: float, until: float, busy: Sequence[Sequence[float]]) -> float:
        """Return the last begin of a task at which there are `seconds` left that none of the times `busy` is in; if
        there is none after `earliest`, the last one at which there are `seconds` left."""
        last = slot = _before(self._clock, until - seconds)
        while slot >= earliest:
            next_busy = max([_before(times, slot + seconds) for times in busy], default=-math.inf)
            if next_busy <= slot or next_busy - seconds >= slot:
                return slot
            slot = _before(self._clock, next_busy - seconds)
        return last

    def _find_feeding(self, serves: Sequence[bool]) -> None:
        """Find out when what leads to starts alone is due."""
        for at in reversed(range(len(self.tasks))):
            leads = serves[at] or (self._moves[at] and at not in self.due)
            if leads and self.users[at] and all(user in self.due for user in self.users[at]):
                self.due[at], self.stream[at] = min((self.due[user], self.stream[user]) for user in self.users[at])


def _resources(transfer: Transfer) -> list[str]:
    """Return the names of the stream and the links that a transfer is on."""
    links = {" within nodes": transfer.intra, " between nodes": transfer.inter}  # no stream begins with a space
    return [transfer.stream, *(name for name, seconds in links.items() if seconds)]


def _before(times: Sequence[float], time: float) -> float:
    """Return the last of ascending times up to `time`; the least there is without any."""
    at = bisect.bisect_right(times, time)
    return times[at - 1] if at else -math.inf


def _freeing(program: Program, waits: Mapping[int, int]) -> set[int]:
    """Return the starts after whose waits no more is held than before, if tasks run in order.

    Args:
        waits: start → its wait.
    """
    last: dict[int, int] = {}
    for at, task in enumerate(program.tasks):
        last |= dict.fromkeys((*task.reads, *task.allocates), at)
    last |= dict.fromkeys((*program.inputs, *program.outputs), len(program.tasks))
    found = set[int]()
    for start, wait in waits.items():
        ends = [program.tasks[at] for at in (start, wait)]
        made = {buffer for task in ends for buffer in task.allocates}
        read = {buffer for task in ends for buffer in task.reads} - made
        kept = sum(program.buffers[buffer].bytes for buffer in made if last[buffer] > wait)
        if kept <= sum(program.buffers[buffer].bytes for buffer in read if last[buffer] <= wait):
            found.add(start)
    return found
