"""What an order of a program takes: when each task runs, when each transfer is sent, and what is exposed of it.

The accelerator runs tasks one after the other. A transfer begins when the task that starts it has run and its stream
is free; it waits out its latency, and is then on the links within and between nodes at once. Transfers that are on
links of one kind share their bandwidth evenly. A wait holds the accelerator up until the transfer has ended.
"""

from __future__ import annotations

import bisect
import functools
import math
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence

import attrs

from spmdir.schedule.memory import live_bytes
from spmdir.schedule.program import Program, Transfer


@attrs.frozen
class TransferTime:
    """When a transfer was under way, in seconds from the start of the program.

    Attributes:
        first, last: between which it had its stream.
        exposed: for how long the accelerator stood still for it.
    """

    begin: float
    end: float
    exposed: float = 0.0


@attrs.frozen
class Execution:
    """A program as it runs in an order; times are in seconds from its start.

    Attributes:
        order: the tasks, as they run.
        first, last: by task, when the accelerator turns to it, and when it turns to the next one. What it waits for a
            transfer is in between.
        sent: task → the transfer that it starts.
    """

    program: Program
    order: tuple[int, ...]
    begin: tuple[float, ...]
    end: tuple[float, ...]
    transfers: Mapping[int, TransferTime]

    @functools.cached_property
    def live(self) -> tuple[float, ...]:
        """By task, the most bytes that are live while it runs."""
        return tuple(live_bytes(self.program, self.order))

    @property
    def seconds(self) -> float:
        """The time of the program."""
        return max([0.0, *self.end, *(sent.end for sent in self.transfers.values())])

    @property
    def compute_seconds(self) -> float:
        """The time that the accelerator is busy."""
        return sum(task.seconds for task in self.program.tasks)

    @property
    def exposed_seconds(self) -> float:
        """The time that the accelerator stands still for transfers."""
        return sum(sent.exposed for sent in self.transfers.values())

    @property
    def peak_bytes(self) -> float:
        """The most bytes that are live at once."""
        return max([sum(self.program.buffers[buffer].bytes for buffer in self.program.inputs), *self.live])

    def busy_times(self, task: int) -> tuple[float, float]:
        """Return between which times the accelerator works at a task: a wait works after it has waited."""
        seconds = self.program.tasks[task].seconds
        if self.program.tasks[task].waits_for is None:
            return self.begin[task], self.begin[task] + seconds
        return self.end[task] - seconds, self.end[task]

    def hidden_by(self, task: int) -> Iterator[tuple[int, float]]:
        """Yield each task that the accelerator works at while the transfer of `task` is under way, and for how long."""
        sent = self.transfers[task]
        at = bisect.bisect_right(self.order, sent.begin, key=self.end.__getitem__)
        while at < len(self.order) and self.begin[self.order[at]] < sent.end:
            first, last = self.busy_times(self.order[at])
            shared = min(last, sent.end) - max(first, sent.begin)
            if shared > 0:
                yield self.order[at], shared
            at += 1


def simulate(program: Program, order: Sequence[int] | None = None) -> Execution:
    """Return a program as it runs in an order.

    Args:
        order: of the tasks, each after those that it needs; as they are numbered if None.
    """
    order = tuple(range(len(program.tasks)) if order is None else order)
    links, exposed, now = Links(), dict[int, float](), 0.0
    first, last = [0.0] * len(order), [0.0] * len(order)
    for at in order:
        task = program.tasks[at]
        first[at], waited = now, task.waits_for
        if task.transfer is not None:
            now += task.seconds
            links.send(at, task.transfer, now - task.overlap)
            waited = at if task.is_blocking else waited
        if waited is not None:
            ended = links.ended(waited)
            exposed[waited] = max(0.0, ended - now)
            now = max(now, ended)
        if task.transfer is None:
            now += task.seconds
        last[at] = now
    sent = {at: TransferTime(*times, exposed.get(at, 0.0)) for at, times in links.times().items()}
    return Execution(program, order, tuple(first), tuple(last), sent)


_NOTHING = 1e-15
"""Seconds that are left of a transfer by rounding alone."""


class Links:
    """The streams of a rank and the links that their transfers share, followed from event to event.

    Attributes:
        now: the time up to which they are followed.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._streams: dict[str, deque[int]] = {}
        self._left: dict[int, list[float]] = {}
        self._first: dict[int, float] = {}
        self._last: dict[int, float] = {}

    def send(self, task: int, transfer: Transfer, at: float) -> None:
        """Put the transfer of a task on its stream; times never go back."""
        while self.now < at:
            self._advance(at)
        self._left[task] = [transfer.latency, transfer.intra, transfer.inter]
        stream = self._streams.setdefault(transfer.stream, deque())
        stream.append(task)
        if len(stream) == 1:
            self._begin(stream)

    def ended(self, task: int) -> float:
        """Return when the transfer of a task ends, if none is sent before."""
        while task not in self._last:
            self._advance()
        return self._last[task]

    def have_ended(self, tasks: Collection[int], at: float) -> list[int]:
        """Return those of `tasks` whose transfers have ended by a time, if none is sent before."""
        while self.now < at:
            self._advance(at)
        return [task for task in tasks if task in self._last]

    def next_end(self, tasks: Collection[int]) -> float:
        """Return when the first transfer of `tasks` ends, if none is sent before."""
        while not any(task in self._last for task in tasks):
            self._advance()
        return self.now

    def times(self) -> dict[int, tuple[float, float]]:
        """Return between which times each transfer had its stream, when all have ended."""
        while any(self._streams.values()):
            self._advance()
        return {task: (first, self._last[task]) for task, first in self._first.items()}

    def _begin(self, stream: deque[int]) -> None:
        """Begin with the transfer that is the next of a stream, and with those after it that take no time."""
        while stream:
            self._first[stream[0]] = self.now
            if any(self._left[stream[0]]):
                return
            self._last[stream.popleft()] = self.now

    def _advance(self, until: float = math.inf) -> None:
        """Follow what is under way up to its next change, at most until a time."""
        under_way = [(stream, self._left[stream[0]]) for stream in self._streams.values() if stream]
        parts = [(left, part) for _, left in under_way for part in ((0,) if left[0] else (1, 2)) if left[part]]
        if not parts:
            self.now = until
            return
        sharing = [1, 0, 0]
        for _, part in parts:
            sharing[part] += part > 0
        span = min([left[part] * sharing[part] for left, part in parts])
        self.now, span = (until, until - self.now) if self.now + span >= until else (self.now + span, span)
        for left, part in parts:
            rest = left[part] - span / sharing[part]
            left[part] = rest if rest > _NOTHING else 0.0
        for stream, left in under_way:
            if not any(left):
                self._last[stream.popleft()] = self.now
                self._begin(stream)
