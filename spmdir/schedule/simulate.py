"""Simulate a program in an order: the times of each task and each transfer, and the exposed part of each transfer.

The accelerator runs one task after the other. A transfer begins when its start has run and its stream is idle. After
its latency, it uses the links within nodes and the links between nodes at the same time. Transfers that use links of
one kind share their bandwidth equally. A wait blocks the accelerator until the transfer ends.
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
    """The time of a transfer.

    Attributes:
        begin, end: its times on its stream, in seconds from the begin of the program.
        exposed: seconds of idle time of the accelerator, while it waits for the transfer.
    """

    begin: float
    end: float
    exposed: float = 0.0


@attrs.frozen
class Execution:
    """The simulated run of a program in an order. Times are in seconds from the begin of the program.

    Attributes:
        order: the tasks in their order of execution.
        begin, end: for each task, its time on the accelerator, including the wait for a transfer.
        transfers: task → the time of the transfer that it starts.
    """

    program: Program
    order: tuple[int, ...]
    begin: tuple[float, ...]
    end: tuple[float, ...]
    transfers: Mapping[int, TransferTime]

    @functools.cached_property
    def live(self) -> tuple[float, ...]:
        """For each task, the largest number of live bytes while it runs."""
        return tuple(live_bytes(self.program, self.order))

    @property
    def seconds(self) -> float:
        """The time of the program."""
        return max([0.0, *self.end, *(sent.end for sent in self.transfers.values())])

    @property
    def compute_seconds(self) -> float:
        """The busy time of the accelerator."""
        return sum(task.seconds for task in self.program.tasks)

    @property
    def exposed_seconds(self) -> float:
        """The idle time of the accelerator, while it waits for transfers."""
        return sum(sent.exposed for sent in self.transfers.values())

    @property
    def peak_bytes(self) -> float:
        """The largest number of bytes that are live at once."""
        return max([sum(self.program.buffers[buffer].bytes for buffer in self.program.inputs), *self.live])

    def busy_times(self, task: int) -> tuple[float, float]:
        """Return the begin and end of the kernels of a task. Those of a wait begin after the transfer."""
        seconds = self.program.tasks[task].seconds
        if self.program.tasks[task].waits_for is None:
            return self.begin[task], self.begin[task] + seconds
        return self.end[task] - seconds, self.end[task]

    def hidden_by(self, task: int) -> Iterator[tuple[int, float]]:
        """Yield each task whose kernels run during the transfer of `task`, with the seconds of overlap."""
        transfer = self.transfers[task]
        # The first task that ends after the transfer begins.
        index = bisect.bisect_right(self.order, transfer.begin, key=self.end.__getitem__)
        while index < len(self.order) and self.begin[self.order[index]] < transfer.end:
            begin, end = self.busy_times(self.order[index])
            shared = min(end, transfer.end) - max(begin, transfer.begin)
            if shared > 0:
                yield self.order[index], shared
            index += 1


def simulate(program: Program, order: Sequence[int] | None = None) -> Execution:
    """Return the times of all tasks and transfers of a program that runs in an order.

    Args:
        order: the tasks, each after the tasks that it needs. None: in the order of their numbers.
    """
    order = tuple(range(len(program.tasks)) if order is None else order)
    links, exposed_seconds, time = Links(), dict[int, float](), 0.0
    begins, ends = [0.0] * len(order), [0.0] * len(order)
    for number in order:
        task = program.tasks[number]
        begins[number] = time
        awaited_start = task.waits_for  # the task whose transfer must end before this task does
        if task.transfer is not None:
            time += task.seconds
            links.send(
                number, task.transfer, time - task.overlap
            )  # the last `overlap` seconds of kernels run during it
            awaited_start = number if task.is_blocking else awaited_start
        if awaited_start is not None:
            transfer_end = links.ended(awaited_start)
            exposed_seconds[awaited_start] = max(0.0, transfer_end - time)
            time = max(time, transfer_end)
        if task.transfer is None:  # a wait unpacks the message after the transfer
            time += task.seconds
        ends[number] = time
    transfers = {
        number: TransferTime(*times, exposed_seconds.get(number, 0.0)) for number, times in links.times().items()
    }
    return Execution(program, order, tuple(begins), tuple(ends), transfers)


_ROUNDING_SECONDS = 1e-15
"""A transfer with less remaining time has ended: the time is a rounding error."""


class Links:
    """The streams and shared links of a rank, simulated from event to event.

    Attributes:
        now: the simulated time, in seconds.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._streams: dict[str, deque[int]] = {}  # stream → the tasks whose transfers are queued; the first one runs
        self._remaining: dict[int, list[float]] = {}  # task → the remaining seconds of each part of its transfer
        self._begins: dict[int, float] = {}
        self._ends: dict[int, float] = {}

    def send(self, task: int, transfer: Transfer, time: float) -> None:
        """Queue the transfer of a task on its stream. Times of successive calls must not decrease."""
        while self.now < time:
            self._advance(time)
        self._remaining[task] = [transfer.latency, transfer.intra, transfer.inter]
        stream = self._streams.setdefault(transfer.stream, deque())
        stream.append(task)
        if len(stream) == 1:
            self._begin_next(stream)

    def ended(self, task: int) -> float:
        """Return the end of the transfer of a task, if no further transfer is sent before it."""
        while task not in self._ends:
            self._advance()
        return self._ends[task]

    def have_ended(self, tasks: Collection[int], time: float) -> list[int]:
        """Return those of `tasks` whose transfers have ended at `time`, if no further transfer is sent before then."""
        while self.now < time:
            self._advance(time)
        return [task for task in tasks if task in self._ends]

    def next_end(self, tasks: Collection[int]) -> float:
        """Return the end of the first transfer of `tasks` to end, if no further transfer is sent before it.

        No transfer of `tasks` may have ended yet.
        """
        while not any(task in self._ends for task in tasks):
            self._advance()
        return self.now

    def times(self) -> dict[int, tuple[float, float]]:
        """Simulate all transfers to their ends; return task → (begin, end) of its transfer."""
        while any(self._streams.values()):
            self._advance()
        return {task: (begin, self._ends[task]) for task, begin in self._begins.items()}

    def _begin_next(self, stream: deque[int]) -> None:
        """Begin the next transfer of a stream; end it at once if it takes no time, and begin the one after it."""
        while stream:
            self._begins[stream[0]] = self.now
            if any(self._remaining[stream[0]]):
                return
            self._ends[stream.popleft()] = self.now

    def _advance(self, until: float = math.inf) -> None:
        """Simulate up to the next event, at most until a time.

        A transfer has three parts: 0 is its latency, 1 its use of the links within nodes, 2 of those between nodes.
        Transfers share links, but not latency. For example, two transfers have 3 s and 1 s left on the same links. The
        next event is after 2 s, when the second ends. The first has 2 s left then.
        """
        running = [(stream, self._remaining[stream[0]]) for stream in self._streams.values() if stream]
        parts = [  # (remaining seconds of all parts of a transfer, a part that runs now)
            (remaining, part)
            for _, remaining in running
            for part in ((0,) if remaining[0] else (1, 2))
            if remaining[part]
        ]
        if not parts:
            self.now = until
            return
        # For each part, the number of transfers that share its links. Latency is not shared, so it counts as 1.
        sharing = [1, 0, 0]
        for _, part in parts:
            if part > 0:
                sharing[part] += 1
        duration = min([remaining[part] * sharing[part] for remaining, part in parts])
        if self.now + duration >= until:
            self.now, duration = until, until - self.now
        else:
            self.now += duration
        for remaining, part in parts:
            seconds = remaining[part] - duration / sharing[part]
            remaining[part] = seconds if seconds > _ROUNDING_SECONDS else 0.0
        for stream, remaining in running:
            if not any(remaining):
                self._ends[stream.popleft()] = self.now
                self._begin_next(stream)
