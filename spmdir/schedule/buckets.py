"""Which collectives of a program become one, and where it stands.

Tasks keep their order, but for collectives and what is cheap and moves along: what makes their operands, such as casts
and views of inputs, and what takes their results. So each collective has an interval of places: it comes after the
last task that it depends on and that stays, and before the first one that depends on it. Collectives of one kind whose
intervals share a place can be one there. What takes less memory afterwards, as a reduced gradient, is best early, and
the rest where it is, as a gathered weight right before its use. Kinds are taken one after the other, and what stays is
an order of the whole program, so that no merging closes a cycle.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Mapping, Sequence

import attrs
import numpy as np

from spmdir.core.progress import say
from spmdir.schedule.mobility import advance_outputs, find_following, find_intervals, find_preparing, is_view
from spmdir.schedule.program import Program

LATENCY_SHARE = 0.1
"""The part of a bucket's time that may be latency; below, another member saves next to nothing."""

Item = tuple[int, ...]
"""Tasks that are one: a task, or the members of a bucket."""


def merge_collectives(program: Program, keys: Mapping[int, Hashable], memory: float = 0.0) -> list[Item]:
    """Return the tasks in a new order, those that become one together, in the order in which they were.

    Args:
        keys: task → what collectives have in common that can be one; tasks without a key are never merged.
        memory: bytes that the program may hold; it may hold what it held anyway.
    """
    items: list[Item] = [(task,) for task in advance_outputs(program)]
    memory = max(memory, float(_held(program, items)[0].max(initial=0.0)))
    worth = _share(program)
    for key in dict.fromkeys(keys.values()):
        members = {task for task, found in keys.items() if found == key and _pays(program, task)}
        if len(members) > 1:
            items = _Merging(program, items, members, memory, worth).items()
    return items


def _pays(program: Program, task: int) -> bool:
    """Return whether the copies into and out of a message may take less time than it saves."""
    transfer = program.tasks[task].transfer
    return transfer is not None and transfer.packing_seconds < transfer.latency


def _share(program: Program) -> float:
    """Return the time of all transfers over that of the accelerator, at most 1."""
    sent = sum([task.transfer.seconds for task in program.tasks if task.transfer is not None])
    spent = sum([task.seconds for task in program.tasks])
    return min(1.0, sent / spent) if spent else 1.0


@attrs.frozen
class _Bucket:
    """Items that are merged.

    Attributes:
        wanted: the place where the first member would best be: that of the item that it is before.
        first, last: the places between which they can be one.
        fixed, busy: the seconds of their latency, and those in which links are busy.
        saved: the seconds of latency that the merging saves, less those of the copies that it takes.
        bytes: of what the members send and receive.
        takes, frees: bytes by which more and fewer are live after a member than before, summed over the members.
    """

    members: tuple[int, ...]
    wanted: int
    first: int
    last: int
    fixed: float
    busy: float
    saved: float
    bytes: float
    takes: float
    frees: float

    @property
    def place(self) -> int:
        """The place where it stands, as near to the wanted one as may be."""
        return min(max(self.wanted, self.first), self.last)

    @property
    def seconds(self) -> float:
        return self.fixed + self.busy


class _Merging:
    """The merging of collectives of one key in an order of items, which go by their places in it.

    Attributes:
        worth: the seconds of the step that a second of latency costs which can be hidden, where transfers are under way
            for that part of the time: the fuller a stream is, the more of it would be exposed.
    """

    def __init__(self, program: Program, items: Sequence[Item], members: set[int], memory: float, worth: float):
        self.program, self.old, self.limit, self.worth = program, items, memory, worth
        place_of = {task: place for place, item in enumerate(items) for task in item}
        self.needs = [
            tuple({place_of[need] for task in item for need in program.tasks[task].needs} - {place})
            for place, item in enumerate(items)
        ]
        self.members = [place for place, item in enumerate(items) if len(item) == 1 and item[0] in members]
        tasks, of = [item[0] for item in items], {*self.members}
        serves, follows = (find(program, tasks, self.needs, of) for find in (find_preparing, find_following))
        self.movable = [serves[place] or follows[place] or is_view(program, task) for place, task in enumerate(tasks)]
        self._exclude_dependent()
        seconds = [sum([program.tasks[task].seconds for task in item]) for item in items]
        self.clock = list(itertools.accumulate(seconds, initial=0.0))
        self.live, self.growth = _held(program, items)

    def items(self) -> list[Item]:
        """Return the items, those that are merged as one, where it stands."""
        buckets: dict[int, list[_Bucket]] = {}
        for bucket in self._buckets():
            if bucket.members != (bucket.place,):
                buckets.setdefault(bucket.place, []).append(bucket)
        merged = {member for found in buckets.values() for bucket in found for member in bucket.members}
        done: set[int] = set()
        late: list[int] = []
        new: list[Item] = []

        def put(place: int) -> None:
            done.add(place)
            new.append(self.old[place])

        for place in range(len(self.old) + 1):
            for bucket in buckets.get(place, ()):
                for maker in self._unfinished(bucket.members, done):
                    put(maker)
                done.update(bucket.members)
                new.append(tuple(task for member in bucket.members for task in self.old[member]))
                for taker in late:
                    if done.issuperset(self.needs[taker]):
                        put(taker)
                late = [taker for taker in late if taker not in done]
            if place == len(self.old) or place in done or place in merged:
                continue
            if done.issuperset(self.needs[place]):
                put(place)
            else:
                late.append(place)
        return new

    def _unfinished(self, places: Sequence[int], done: set[int]) -> list[int]:
        """Return what `places` need and is not in the new order, in order."""
        found: set[int] = set()
        left = [*places]
        while left:
            for need in self.needs[left.pop()]:
                if need not in done and need not in found:
                    found.add(need)
                    left.append(need)
        return sorted(found)

    def _exclude_dependent(self) -> None:
        """Leave out the members that depend on others through what moves along, and let these others be used there."""
        members, follows, kept = set(self.members), [False] * len(self.old), []
        for place, needs in enumerate(self.needs):
            depends = any(follows[need] for need in needs)
            if place in members:
                kept += [] if depends else [place]
                follows[place] = True
            else:
                follows[place] = depends and self.movable[place]
        self.members = kept
        for place in kept:
            self.movable[place] = True

    def _buckets(self) -> Iterator[_Bucket]:
        """Yield the buckets; collectives that can be hidden and those that cannot have buckets of their own, so that
        nothing that could be hidden holds the program up."""
        first, last = find_intervals(self.needs, self.movable)
        opened: dict[bool, _Bucket] = {}
        points = {True: 0, False: 0}
        wanted = {place: first[place] if self.growth[place] < 0 else place for place in self.members}
        for count, place in enumerate(sorted(self.members, key=wanted.__getitem__), 1):
            say("bucket: {} of {} collectives that may be one", count, len(self.members))
            transfer = self.program.tasks[self.old[place][0]].transfer
            assert transfer is not None
            times = transfer.latency, max(transfer.intra, transfer.inter), -transfer.packing_seconds
            growth = float(self.growth[place])
            held = self._moved(place), max(0.0, growth), max(0.0, -growth)
            one = _Bucket((place,), wanted[place], first[place], last[place], *times, *held)
            hides = self._window(one.first, one.last) >= one.seconds
            bucket = opened.get(hides)
            both = None if bucket is None else self._joined(bucket, one, points[hides] if hides else None)
            if bucket is not None and both is None:
                points[hides] = bucket.place
                yield bucket
            opened[hides] = both or one
        yield from opened.values()

    def _window(self, first: int, last: int) -> float:
        return self.clock[last] - self.clock[first] if first <= last else 0.0

    def _joined(self, bucket: _Bucket, one: _Bucket, since: int | None) -> _Bucket | None:
        """Return a bucket with `one` in it; None if that is not possible, or of no use.

        Args:
            since: the place of the bucket before, from which on a transfer can be hidden; None if none can be.
        """
        both = _Bucket(
            bucket.members + one.members,
            bucket.wanted,
            max(bucket.first, one.first),
            min(bucket.last, one.last),
            max(bucket.fixed, one.fixed),
            bucket.busy + one.busy,
            bucket.saved + one.saved + min(bucket.fixed, one.fixed) * (1.0 if since is None else self.worth),
            bucket.bytes + one.bytes,
            bucket.takes + one.takes,
            bucket.frees + one.frees,
        )
        if both.saved <= max(0.0, bucket.saved) or both.first > both.last:
            return None
        if bucket.fixed <= LATENCY_SHARE * bucket.seconds:
            return None
        hidden = since is None or both.seconds <= self._window(max(both.first, since), both.last)
        return both if (hidden or one.busy <= one.fixed) and self._fits(bucket, one, both) else None

    def _fits(self, bucket: _Bucket, one: _Bucket, both: _Bucket) -> bool:
        """Return whether there is memory for `both` in the place of `bucket`, and if so, count it as held."""
        at, came = both.place, (bucket.place, one.members[0])
        low, high = min(at, *came), max(at, *came)
        held = self.live[low : high + 1].copy()
        for part, before in zip((bucket, one), came, strict=True):
            held[min(at, before) - low : max(at, before) - low] += part.takes if at < before else part.frees
        if max(held.max(), held[at - low] + both.bytes) > self.limit:
            return False
        self.live[low : high + 1] = held
        return True

    def _moved(self, place: int) -> float:
        task = self.program.tasks[self.old[place][0]]
        return sum(self.program.buffers[b].bytes for b in (*task.allocates, *task.reads))


def _held(program: Program, items: Sequence[Item]) -> tuple[np.ndarray, np.ndarray]:
    """Return, by place, the most bytes that are live there, if what an item frees is freed after all that it makes, and
    how many more are live after it than before; an end with nothing follows the items."""
    first, last = dict.fromkeys(program.inputs, 0), dict.fromkeys(program.inputs, len(items))
    transient, growth, changes = ([0.0] * (len(items) + 2) for _ in range(3))
    for place, item in enumerate(items):
        for task in item:
            found = program.tasks[task]
            transient[place] = max(transient[place], found.transient)
            for buffer in found.allocates:
                first[buffer] = last[buffer] = place
            for buffer in found.reads:
                last[buffer] = max(last[buffer], place)
    last.update(dict.fromkeys(program.outputs, len(items)))
    for buffer, place in first.items():
        size = program.buffers[buffer].bytes
        changes[place] += size
        changes[last[buffer] + 1] -= size
        growth[place] += size
        growth[last[buffer]] -= size
    return (np.array(transient) + np.cumsum(changes))[:-1], np.array(growth[:-1])
