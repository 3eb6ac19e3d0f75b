"""Find the latest start of each transfer, from the times of the tasks that keep their order.

The clock is the time of the accelerator without waits: a task begins at the sum of the durations of the tasks before
it. Nothing starts while a task runs, so a start has the time of the begin of a task. For example, y0, y1 and y2 take 3
seconds each and use each other in this order. y2 also uses w2. Its gather takes 2 seconds:

    y0 begins at 0, y1 at 3, y2 at 6, so the gather must end at 6
    slack 1.1   the gather is planned with 2.2 s and must start by 3.8: its latest start is 3, the begin of y1
    slack 2     it is planned with 4 s and must start by 2: its latest start is 0, the begin of y0
    slack 20    40 s do not fit before 6: its latest start is −inf

If w2 depended on y1, there would be no time between y1 and y2. The transfer could not be hidden: it is *urgent*, with
any slack.

The latest starts are found from the last task to the first, as in the backward pass of the critical path method
(J. E. Kelley and M. R. Walker, "Critical-path planning and scheduling", 1959). Transfers of one stream do not overlap,
and keep clear of urgent transfers.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from spmdir.schedule.mobility import find_preparing, find_users, is_view
from spmdir.schedule.program import Program, Transfer

LEAST_SECONDS = 1e-9
"""The least duration of a task on the clock, which gives each task a distinct time."""


class Deadlines:
    """The latest starts of transfers, and other facts about tasks that do not depend on the order that is built.

    Args:
        slack: the factor on the modelled time of a transfer that is to be hidden. A larger factor gives earlier starts.

    Attributes:
        users: task → the tasks that need it.
        waits: start → its wait.
        latest_start: start, or a task that only leads to starts → its latest time on the clock. It is −inf for an
            urgent transfer, and +inf if nothing needs the result.
        stream_of: start, or a task that only leads to starts → the stream.
        frees_memory: the starts that are not urgent and free memory: nothing needs their results, or the results take
            no more memory than the operands that they free.
        exposed_seconds: urgent start → the seconds of its transfer.
        longest_exposed: the largest of these.
        leads_to: task → the first urgent start that depends on it; the number of tasks if there is none.
    """

    def __init__(self, program: Program, slack: float):
        tasks = self.tasks = program.tasks
        self._slack = slack
        needs = [task.needs for task in tasks]
        self.users = find_users(needs)
        self.waits = {task.waits_for: index for index, task in enumerate(tasks) if task.waits_for is not None}
        self._transfers = {
            index: task.transfer
            for index, task in enumerate(tasks)
            if index in self.waits and task.transfer is not None
        }
        is_preparing = find_preparing(program, range(len(tasks)), needs, self._transfers)
        # Transfers, their waits, views and preparing tasks move; all other tasks keep their order.
        self._is_movable = [
            is_preparing[index] or is_view(program, index) or index in self._transfers or task.waits_for is not None
            for index, task in enumerate(tasks)
        ]
        self._durations = [max(LEAST_SECONDS, task.seconds) for task in tasks]
        # For each task, the time at which it begins. The last sum is the end of the program, which is dropped.
        *self._clock, _ = itertools.accumulate(self._durations, initial=0.0)
        self._earliest_end = self._find_earliest_ends()
        self.latest_start: dict[int, float] = {}
        self.stream_of = {start: transfer.stream for start, transfer in self._transfers.items()}
        self.frees_memory = _find_freeing_starts(program, {start: self.waits[start] for start in self._transfers})
        self._find_latest_starts()
        self._find_latest_leads(is_preparing)
        self.exposed_seconds = {
            start: transfer.seconds
            for start, transfer in self._transfers.items()
            if self.latest_start[start] == -math.inf
        }
        self.frees_memory.difference_update(self.exposed_seconds)
        self.longest_exposed = max(self.exposed_seconds.values(), default=0.0)
        self.leads_to = self._find_urgent_leads()

    def _find_urgent_leads(self) -> list[int]:
        """Return for each task the first urgent start that depends on it; the number of tasks if there is none."""
        leads_to = [len(self.tasks)] * len(self.tasks)
        for index in reversed(range(len(self.tasks))):  # users before the tasks that they need
            for user in self.users[index]:
                urgent_start = user if user in self.exposed_seconds else leads_to[user]
                leads_to[index] = min(leads_to[index], urgent_start)
        return leads_to

    def _find_earliest_ends(self) -> list[float]:
        """Return the earliest end of each task. Tasks that cannot move end at their time on the clock.

        Other tasks begin when the tasks that they need have ended, and waits when their transfers have, too.
        """
        ends = [0.0] * len(self.tasks)
        for index, task in enumerate(self.tasks):
            begin = self._clock[index]
            if self._is_movable[index]:
                begin = max([ends[need] for need in task.needs], default=0.0)
            if task.waits_for is not None:
                begin = max(begin, ends[task.waits_for] + self._transfers[task.waits_for].seconds)
            ends[index] = begin + self._durations[index]
        return ends

    def _latest_ends(self) -> Iterator[tuple[int, float, list[float]]]:
        """Yield (task, its latest end, latest begins of all tasks) for each movable task, from the last to the first.

        The latest end of a task is the earliest of the latest begins of its users. Its latest begin is earlier by its
        own time and the time of its transfer. The caller may lower the latest begin of the yielded task in the list:
        the latest ends of the tasks that it needs are computed from the lowered value.
        """
        latest_begins = [*self._clock]
        for index in reversed(range(len(self.tasks))):
            if self._is_movable[index]:
                latest_end = min([latest_begins[user] for user in self.users[index]], default=math.inf)
                transfer_seconds = self._transfers[index].seconds if index in self._transfers else 0.0
                latest_begins[index] = latest_end - transfer_seconds - self._durations[index]
                yield index, latest_end, latest_begins

    def _find_latest_starts(self) -> None:
        """Enter the latest starts of all transfers in `latest_start`, from the last transfer to the first.

        That of an urgent transfer is −inf. Any other transfer is planned with `slack` times its time. It ends before
        its wait must begin, and before the next transfer on its stream starts. It does not overlap urgent transfers on
        the same stream or links. A transfer that frees memory may start early, so it only has to end in time.
        """
        urgent_times = self._find_urgent_times()
        next_start: dict[str, float] = {}  # stream → the latest start of the transfer that follows on it
        for index, latest_end, latest_begins in self._latest_ends():
            transfer = self._transfers.get(index)
            if transfer is None or index in self.latest_start:
                continue  # no transfer, or an urgent one
            if latest_end == math.inf:  # nothing needs the result
                self.frees_memory.add(index)
            if index in self.frees_memory:
                # The latest begin includes the time of the transfer once, and the plan `slack` times.
                self.latest_start[index] = latest_begins[index] - (self._slack - 1) * transfer.seconds
                continue
            streams = transfer.stream, *transfer.excludes
            end = min([latest_end, *(next_start.get(stream, latest_end) for stream in streams)])
            resources = *_resource_names(transfer), *transfer.excludes
            busy_times = [urgent_times[resource] for resource in resources if resource in urgent_times]
            planned_seconds = self._slack * transfer.seconds
            latest_start = self._find_last_start(planned_seconds, self._earliest_end[index], end, busy_times)
            latest_begins[index] = self.latest_start[index] = next_start[transfer.stream] = latest_start

    def _find_urgent_times(self) -> dict[str, list[float]]:
        """Set the latest start of urgent transfers to −inf; return resource → the ascending times of their starts.

        A transfer is urgent if it takes longer than the time from the earliest end of its start op to its latest end. A
        resource is a stream or a kind of links.
        """
        urgent_times: dict[str, list[float]] = {}
        for index, latest_end, _ in self._latest_ends():
            transfer = self._transfers.get(index)
            if transfer is not None and latest_end - self._earliest_end[index] < transfer.seconds:
                self.latest_start[index] = -math.inf
                for resource in _resource_names(transfer):
                    urgent_times.setdefault(resource, []).append(self._earliest_end[index] - self._durations[index])
        for times in urgent_times.values():
            times.sort()
        return urgent_times

    def _find_last_start(
        self, seconds: float, earliest: float, end: float, busy_times: Sequence[Sequence[float]]
    ) -> float:
        """Return the last begin of a task at which a transfer of `seconds` can start that ends before `end`.

        No busy time may be during the transfer. If there is no such begin after `earliest`, busy times are ignored. For
        example, tasks begin at 0, 3 and 6. A transfer of 2 s that ends before 6 starts at 3, or at 0 if 4 is busy.
        """
        fallback = begin = _last_up_to(self._clock, end - seconds)
        while begin >= earliest:
            last_busy = max([_last_up_to(times, begin + seconds) for times in busy_times], default=-math.inf)
            # Busy times up to `begin + seconds` were considered, so the last one is before, during or at the end.
            is_outside_transfer = last_busy <= begin or last_busy - seconds >= begin
            if is_outside_transfer:
                return begin
            begin = _last_up_to(self._clock, last_busy - seconds)  # then the transfer ends before the busy time
        return fallback

    def _find_latest_leads(self, is_preparing: Sequence[bool]) -> None:
        """Give each task that only leads to starts the latest time and the stream of the earliest of these starts."""
        for index in reversed(range(len(self.tasks))):
            may_lead = is_preparing[index] or (self._is_movable[index] and index not in self.latest_start)
            users = self.users[index]
            if may_lead and users and all(user in self.latest_start for user in users):
                self.latest_start[index], self.stream_of[index] = min(
                    (self.latest_start[user], self.stream_of[user]) for user in users
                )


def _resource_names(transfer: Transfer) -> list[str]:
    """Return the names of the stream and the kinds of links that a transfer uses."""
    links = {" within nodes": transfer.intra, " between nodes": transfer.inter}  # no stream begins with a space
    return [transfer.stream, *(name for name, seconds in links.items() if seconds)]


def _last_up_to(times: Sequence[float], limit: float) -> float:
    """Return the last of ascending times that is at most `limit`; −inf if there is none."""
    index = bisect.bisect_right(times, limit)
    return times[index - 1] if index else -math.inf


def _find_freeing_starts(program: Program, waits: Mapping[int, int]) -> set[int]:
    """Return the starts of collectives that do not increase the live memory, if tasks run in order.

    The start and the wait together must free at least as many bytes as they allocate for later tasks.

    Args:
        waits: start → its wait.
    """
    last_use: dict[int, int] = {}
    for index, task in enumerate(program.tasks):
        last_use |= dict.fromkeys((*task.reads, *task.allocates), index)
    last_use |= dict.fromkeys((*program.inputs, *program.outputs), len(program.tasks))
    freeing_starts = set[int]()
    for start, wait in waits.items():
        tasks = [program.tasks[start], program.tasks[wait]]
        allocated = {buffer for task in tasks for buffer in task.allocates}
        operands = {buffer for task in tasks for buffer in task.reads} - allocated
        allocated_bytes = sum(program.buffers[buffer].bytes for buffer in allocated if last_use[buffer] > wait)
        freed_bytes = sum(program.buffers[buffer].bytes for buffer in operands if last_use[buffer] <= wait)
        if allocated_bytes <= freed_bytes:
            freeing_starts.add(start)
    return freeing_starts
