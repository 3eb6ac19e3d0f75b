"""Choose which collectives share a message, and the position of each message.

All tasks keep their order, except collectives and cheap tasks that move along: the casts and views that prepare their
operands, and those that use their results. So each collective has an interval of legal positions: after the last fixed
task that it depends on, and before the first fixed task that depends on it. Collectives with the same key can share a
message if their intervals overlap.

For example, x takes 5 s. Then the gathers a, b and c each precede their user A, B or C of 20 s. A gather has a latency
of 1 s and uses the links for 2 s. Each can start before x, because it depends on no task:

    a          x can hide 5 s, and a takes 1 + 2 s: open a bucket
    a b        1 + 4 s: still hidden by x, and saves a latency: add b
    a b c      1 + 6 s: longer than the 5 s before the first use, A: close the bucket, and open one for c
    result     x, (a b), A, B, c, C

If the result of a collective takes less memory than its operands, as a reduced gradient does, it runs early. Otherwise,
as for a gathered weight, it stays right before its use. The keys are merged one after the other. Each merge results in
an order of all tasks, so merges of different keys cannot form a cycle.

Source: buckets as in PyTorch's DDP (S. Li et al., "PyTorch Distributed: experiences on accelerating data parallel
training", 2020). The sizes are chosen by modelled times instead of a fixed number of bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Mapping, Sequence

import attrs
import numpy as np

from spmdir.core.progress import say
from spmdir.schedule.mobility import advance_transfers, find_following, find_intervals, find_preparing, is_view
from spmdir.schedule.program import Program

LEAST_LATENCY_SHARE = 0.1
"""A bucket is closed if latency is at most this fraction of its time: a further member would save too little."""

Item = tuple[int, ...]
"""One task, or the members of a bucket."""


def merge_collectives(program: Program, keys: Mapping[int, Hashable], memory: float = 0.0) -> list[Item]:
    """Return the tasks in a new order, with the members of each bucket in one item. Members keep their order.

    A collective is left alone if packing it takes as long as its latency, because a bucket could save no time.

    Args:
        keys: collective → key. Only collectives with equal keys are merged.
        memory: bytes that may be live. The peak of the given order is allowed even if it is larger.
    """
    items: list[Item] = [(task,) for task in advance_transfers(program)]
    memory = max(memory, float(_live_bytes(program, items)[0].max(initial=0.0)))
    latency_weight = _transfer_share(program)
    for key in dict.fromkeys(keys.values()):
        members = {task for task, key_of_task in keys.items() if key_of_task == key and _may_pay(program, task)}
        if len(members) > 1:
            items = _Merger(program, items, members, memory, latency_weight).merge()
    return items


def _may_pay(program: Program, task: int) -> bool:
    """Return whether the copies into and out of a bucket may take less time than the latency that they save."""
    transfer = program.tasks[task].transfer
    return transfer is not None and transfer.packing_seconds < transfer.latency


def _transfer_share(program: Program) -> float:
    """Return the time of all transfers as a fraction of the compute time, at most 1; 1 if there is no compute."""
    transfer_seconds = sum([task.transfer.seconds for task in program.tasks if task.transfer is not None])
    compute_seconds = sum([task.seconds for task in program.tasks])
    return min(1.0, transfer_seconds / compute_seconds) if compute_seconds else 1.0


@attrs.frozen
class _Bucket:
    """Collectives that share a message.

    Attributes:
        members: their positions in the old order.
        preferred: the position at which the first member takes the least memory, see `_buckets`.
        earliest, latest: the first and the last legal position. A bucket at a position runs before the item at this
            position of the old order.
        latency: seconds of latency.
        link_seconds: seconds for which links are busy.
        saved_seconds: the latency that the bucket saves, minus the time of the copies that it requires. It is negative
            for one member.
        bytes: of the operands and results of all members.
        growth, decrease: bytes by which live memory grows or decreases at the members, summed separately.
    """

    members: tuple[int, ...]
    preferred: int
    earliest: int
    latest: int
    latency: float
    link_seconds: float
    saved_seconds: float
    bytes: float
    growth: float
    decrease: float

    @property
    def position(self) -> int:
        """The legal position closest to the preferred one."""
        return min(max(self.preferred, self.earliest), self.latest)

    @property
    def seconds(self) -> float:
        """The time of the message, without packing."""
        return self.latency + self.link_seconds


class _Merger:
    """Merge the collectives of one key. Items are identified by their positions in the old order.

    Args:
        items: the old order.
        member_tasks: the collectives of the key.
        limit: bytes that may be live.
        latency_weight: the price of a second of latency that can be hidden, in seconds of the step. It is the
            fraction of time in which transfers run, because the latency is exposed if the stream is busy.

    Attributes:
        needs: [position], the positions of the items that the item needs.
        members: the positions of the collectives that may share a message.
        is_movable: [position], whether the item moves along with a collective.
        clock: [position], the compute seconds before it.
        live: [position], the largest number of live bytes; `_fits` updates it for the buckets so far.
        growth: [position], the bytes by which live memory grows at the item in the old order.
    """

    def __init__(
        self, program: Program, items: Sequence[Item], member_tasks: set[int], limit: float, latency_weight: float
    ):
        self.program, self.old_items, self.limit, self.latency_weight = program, items, limit, latency_weight
        position_of = {task: position for position, item in enumerate(items) for task in item}
        self.needs = [
            tuple({position_of[need] for task in item for need in program.tasks[task].needs} - {position})
            for position, item in enumerate(items)
        ]
        self.members = [position for position, item in enumerate(items) if len(item) == 1 and item[0] in member_tasks]
        # An item counts as its first task. A bucket of another key is a collective, so it keeps its place.
        tasks, members = [item[0] for item in items], {*self.members}
        is_preparing = find_preparing(program, tasks, self.needs, members)
        is_following = find_following(program, tasks, self.needs, members)
        self.is_movable = [
            is_preparing[position] or is_following[position] or is_view(program, task)
            for position, task in enumerate(tasks)
        ]
        self._exclude_dependent()  # removes members that cannot share a message, and makes the others movable
        seconds = [sum([program.tasks[task].seconds for task in item]) for item in items]
        self.clock = list(itertools.accumulate(seconds, initial=0.0))
        self.live, self.growth = _live_bytes(program, items)

    def merge(self) -> list[Item]:
        """Return the items in the new order, each bucket as one item.

        The old order is kept, with two exceptions. Items that a bucket needs are placed right before it. Items that
        need a later bucket are placed right after it. For example, g is a gather, u uses it, and the old order is g, u,
        h, x. If g and h share a bucket at the position of h, the new order is (g h), u, x.
        """
        buckets_at: dict[int, list[_Bucket]] = {}  # position → the buckets that run before the item there
        for bucket in self._buckets():
            stays_in_place = bucket.members == (bucket.position,)
            if not stays_in_place:
                buckets_at.setdefault(bucket.position, []).append(bucket)
        all_buckets = itertools.chain.from_iterable(buckets_at.values())
        bucket_members = {member for bucket in all_buckets for member in bucket.members}
        placed: set[int] = set()
        postponed: list[int] = []
        new_items: list[Item] = []

        def place(position: int) -> None:
            """Append the item at `position` of the old order."""
            placed.add(position)
            new_items.append(self.old_items[position])

        for position in range(len(self.old_items) + 1):
            for bucket in buckets_at.get(position, ()):
                for producer in self._unplaced_needs(bucket.members, placed):
                    place(producer)
                placed.update(bucket.members)
                new_items.append(tuple(task for member in bucket.members for task in self.old_items[member]))
                for user in postponed:
                    if placed.issuperset(self.needs[user]):
                        place(user)
                postponed = [user for user in postponed if user not in placed]
            if position == len(self.old_items) or position in placed or position in bucket_members:
                continue
            if placed.issuperset(self.needs[position]):
                place(position)
            else:
                postponed.append(position)
        return new_items

    def _unplaced_needs(self, positions: Sequence[int], placed: set[int]) -> list[int]:
        """Return the direct and indirect needs of `positions` that are not placed, in order."""
        unplaced: set[int] = set()
        stack = [*positions]
        while stack:
            for need in self.needs[stack.pop()]:
                if need not in placed and need not in unplaced:
                    unplaced.add(need)
                    stack.append(need)
        return sorted(unplaced)

    def _exclude_dependent(self) -> None:
        """Remove the members that depend on another member through movable tasks. The others become movable.

        A message cannot contain both a collective and one that needs its result. If a task that keeps its place is
        between them, their intervals do not overlap anyway.
        """
        members, independent_members = set(self.members), []
        follows_member = [False] * len(self.old_items)  # is a member, or depends on one through movable tasks
        for position, needs in enumerate(self.needs):
            depends = any(follows_member[need] for need in needs)
            if position in members:
                follows_member[position] = True
                if not depends:
                    independent_members.append(position)
            else:
                follows_member[position] = depends and self.is_movable[position]
        self.members = independent_members
        for position in independent_members:
            self.is_movable[position] = True

    def _buckets(self) -> Iterator[_Bucket]:
        """Yield the buckets, among them those of one member.

        Members are visited in the order of their preferred positions: the earliest one if the collective frees memory,
        otherwise its old position. Each joins the last bucket or opens a new one. Collectives that can be hidden are
        not merged with others, which would expose them.
        """
        earliest, latest = find_intervals(self.needs, self.is_movable)
        # Both dicts have an entry for the collectives that can be hidden (True), and one for the others (False).
        open_buckets: dict[bool, _Bucket] = {}  # the bucket that the next collective may join
        last_positions = {True: 0, False: 0}  # the position of the last yielded bucket
        preferred = {member: earliest[member] if self.growth[member] < 0 else member for member in self.members}
        for count, member in enumerate(sorted(self.members, key=preferred.__getitem__), 1):
            say("bucket: {} of {} collectives that may be one", count, len(self.members))
            transfer = self.program.tasks[self.old_items[member][0]].transfer
            assert transfer is not None
            growth = float(self.growth[member])
            candidate = _Bucket(
                (member,),
                preferred[member],
                earliest[member],
                latest[member],
                latency=transfer.latency,
                link_seconds=max(transfer.intra, transfer.inter),
                saved_seconds=-transfer.packing_seconds,
                bytes=self._message_bytes(member),
                growth=max(0.0, growth),
                decrease=max(0.0, -growth),
            )
            is_hidden = self._compute_between(candidate.earliest, candidate.latest) >= candidate.seconds
            bucket = open_buckets.get(is_hidden)
            previous = last_positions[is_hidden] if is_hidden else None
            merged = None if bucket is None else self._try_merge(bucket, candidate, previous)
            if bucket is not None and merged is None:
                last_positions[is_hidden] = bucket.position
                yield bucket
            open_buckets[is_hidden] = merged or candidate
        yield from open_buckets.values()

    def _compute_between(self, earliest: int, latest: int) -> float:
        """Return the compute seconds between two positions; 0 if they are in the wrong order."""
        return self.clock[latest] - self.clock[earliest] if earliest <= latest else 0.0

    def _try_merge(self, bucket: _Bucket, candidate: _Bucket, previous: int | None) -> _Bucket | None:
        """Return the bucket with the candidate added, and reserve memory for it; None if it must not be added.

        It must not be added in five cases: the intervals do not overlap; copies take more time than the saved latency;
        latency is a small part of the bucket already; the transfer could no longer be hidden; there is no memory.

        Args:
            candidate: a bucket with one member.
            previous: the position of the bucket before `bucket`. Only compute after this position can hide the
                transfer. None if neither the bucket nor the candidate can be hidden.
        """
        saved_latency = min(bucket.latency, candidate.latency) * (1.0 if previous is None else self.latency_weight)
        merged = _Bucket(
            bucket.members + candidate.members,
            bucket.preferred,
            max(bucket.earliest, candidate.earliest),
            min(bucket.latest, candidate.latest),
            latency=max(bucket.latency, candidate.latency),
            link_seconds=bucket.link_seconds + candidate.link_seconds,
            saved_seconds=bucket.saved_seconds + candidate.saved_seconds + saved_latency,
            bytes=bucket.bytes + candidate.bytes,
            growth=bucket.growth + candidate.growth,
            decrease=bucket.decrease + candidate.decrease,
        )
        if merged.saved_seconds <= max(0.0, bucket.saved_seconds) or merged.earliest > merged.latest:
            return None
        if bucket.latency <= LEAST_LATENCY_SHARE * bucket.seconds:
            return None
        # If the candidate adds less link time than it saves latency, the message may be exposed.
        if previous is not None and candidate.link_seconds > candidate.latency:
            hiding_seconds = self._compute_between(max(merged.earliest, previous), merged.latest)
            if merged.seconds > hiding_seconds:
                return None
        return merged if self._fits(bucket, candidate, merged) else None

    def _fits(self, bucket: _Bucket, candidate: _Bucket, merged: _Bucket) -> bool:
        """Return whether there is memory for `merged` in place of `bucket`. If so, update the live bytes.

        Both the bucket and the candidate move to the position of `merged`. If one moves to an earlier position, the
        items that it passes have its allocations in addition. If it moves to a later one, the memory that it frees is
        live at these items.
        """
        position, old_positions = merged.position, (bucket.position, candidate.members[0])
        begin, end = min(position, *old_positions), max(position, *old_positions)
        live = self.live[begin : end + 1].copy()
        for moved, old_position in zip((bucket, candidate), old_positions, strict=True):
            passed_items = slice(min(position, old_position) - begin, max(position, old_position) - begin)
            live[passed_items] += moved.growth if position < old_position else moved.decrease
        if max(live.max(), live[position - begin] + merged.bytes) > self.limit:
            return False
        self.live[begin : end + 1] = live
        return True

    def _message_bytes(self, position: int) -> float:
        """Return the bytes of the operands and results of the collective at a position of the old order."""
        task = self.program.tasks[self.old_items[position][0]]
        return sum(self.program.buffers[buffer].bytes for buffer in (*task.allocates, *task.reads))


def _live_bytes(program: Program, items: Sequence[Item]) -> tuple[np.ndarray, np.ndarray]:
    """Return two arrays: for each item, the largest number of live bytes, and by how many bytes live memory grows.

    An item allocates all its buffers before it frees any. It grows memory by the bytes that it allocates, minus the
    bytes of the buffers that it is the last to read. For example, item 0 allocates 8 bytes, and item 1 reads them last
    and allocates 2: the largest numbers are 8 and 10, and the growths are 8 and −6. Both arrays have one more entry,
    for the end of the program.
    """
    first_use, last_use = dict.fromkeys(program.inputs, 0), dict.fromkeys(program.inputs, len(items))
    # By position: the transient bytes, the growth, and the change of live bytes from the item before. Two more entries
    # are for the end of the program, and for the buffers that are freed after it.
    transient, growth, changes = ([0.0] * (len(items) + 2) for _ in range(3))
    for position, item in enumerate(items):
        for number in item:
            task = program.tasks[number]
            transient[position] = max(transient[position], task.transient)
            for buffer in task.allocates:
                first_use[buffer] = last_use[buffer] = position
            for buffer in task.reads:
                last_use[buffer] = max(last_use[buffer], position)
    last_use.update(dict.fromkeys(program.outputs, len(items)))
    for buffer, position in first_use.items():
        size = program.buffers[buffer].bytes
        changes[position] += size
        changes[last_use[buffer] + 1] -= size  # live until its last user has run
        growth[position] += size
        growth[last_use[buffer]] -= size
    return (np.array(transient) + np.cumsum(changes))[:-1], np.array(growth[:-1])
