"""What the parts of a program tell each other about their states: a lower bound that rises, and decisions near it.

Each part that makes or uses a value has an *end* of it, with a number for each of its placements there. The numbers are
added to what the reshards of the value cost, and subtracted from what the states of the part cost, so that decisions
cost what they did. What each part and each value costs at the least by itself adds up to a lower bound on the cost of
all decisions, whatever the numbers are.

They are found by sequential reweighted message passing (V. Kolmogorov, "A new look at reweighted message passing",
2015): in program order and back, each part takes over all that its values cost beside it, and gives to each value
that a part still to come shares an equal fraction of by how much its states are dearer than the cheapest. So the bound
never falls. After both, every number is moved on by a fraction of its last change (Nesterov's momentum), by which the
bound rises several times as fast, unless it has fallen.

After each pass all parts are decided one by one, in the other direction or any order: beside those that are decided,
and the others by their numbers. Where the bound is tight, that is the best decision.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np

from spmdir.search.assignment import Assignment
from spmdir.search.ends import End, Star, Use
from spmdir.search.forest import needed_beside
from spmdir.search.joint_placements import Numbers

MOMENTUM = 0.8
"""The largest fraction of a change that is made again."""

_least, _least_of = np.minimum.reduce, np.minimum.reduceat


class _Part:
    """A part with its ends, whose placements are numbered one end after the other.

    Attributes:
        cost: by state, what it costs without reshards of values that other parts share.
        given: by placement, its number.
        is_leaf: whether it shares one value alone, to which it gives all that it costs, once and for all.
    """

    def __init__(self, cost: Numbers):
        self.cost, self.is_leaf = cost, False
        self.ends: list[tuple[Star, End]] = []

    @property
    def size(self) -> int:
        """Return how many placements all its ends have."""
        return sum(end.size for _, end in self.ends)

    def join(self, given: Numbers) -> None:
        """Give all ends their numbers in one array."""
        sizes = [end.size for _, end in self.ends]
        self._first = first = [sum(sizes[:at]) for at in range(len(sizes))]
        self.given = given
        for at, (_, end) in zip(first, self.ends, strict=True):
            end.given = given[at : at + end.size]
        ends = [(at, end) for at, (_, end) in zip(first, self.ends, strict=True)]
        self._keys = np.array([end.key + at for at, end in ends], dtype=np.intp).reshape(len(ends), len(self.cost))
        order = [np.argsort(end.key, kind="stable") for _, end in ends]
        self._by_key = np.concatenate(order) if order else np.zeros(0, dtype=np.intp)
        states = len(self.cost)
        starts = [
            at * states + np.searchsorted(end.key[by_key], np.arange(end.size))
            for at, ((_, end), by_key) in enumerate(zip(ends, order, strict=True))
        ]
        self._starts = np.concatenate(starts) if starts else np.zeros(0, dtype=np.intp)
        self._shares = []
        for direction in (0, 1):
            to_come = [not end.is_last[direction] for _, end in ends]
            self._shares.append(np.repeat(np.array(to_come) / max(sum(to_come), 1), sizes))
        if self.is_leaf:
            self.given[:] = _least_of(self.cost[self._by_key], self._starts)

    def beside(self) -> tuple[Numbers, Numbers]:
        """Return what each state costs beside all values, and the part of that by placement."""
        if not self.ends:
            return self.cost, self.given
        taken = np.concatenate([star.least(end) for star, end in self.ends])
        return self.cost + np.add.reduce(taken[self._keys]), taken

    def least_alone(self) -> float:
        """Return the least that a state costs, without what its values cost, by the numbers given to them."""
        return float(_least(self.cost - np.add.reduce(self.given[self._keys])))

    def least_of_ends(self, taken: Numbers) -> float:
        """Return the least that its values cost, each by itself, from what they cost beside it by placement."""
        return float(np.add.reduce(_least_of(taken + self.given, self._first))) if self.ends else 0.0

    def give(self, cost: Numbers, taken: Numbers, direction: int) -> None:
        """Give the values that parts to come share what the states cost above the cheapest, for what they cost."""
        if self.ends:
            np.subtract(_least_of(cost[self._by_key], self._starts) * self._shares[direction], taken, out=self.given)
            for _, end in self.ends:
                end.through = None

    def decide(self, state: int | None) -> None:
        """Note which state is decided, or that none is."""
        for _, end in self.ends:
            end.decided = None if state is None else int(end.key[state])
            end.through = None


class Messages:
    """The numbers of all ends of a program.

    Attributes:
        bound: after the last pass. No decision costs less, but some whose users share several copies of one value.
    """

    def __init__(self, now: Assignment):
        self.now, self.bound, self._turn, self._is_back = now, 0.0, 0, True
        self._parts, self._stars = list(map(_Part, now.cost)), dict[int, Star]()
        members = {value: self._members(value) for value in range(len(now.price))}
        shared = Counter(part for found in members.values() for part in found)
        for value, found in members.items():
            if found:
                self._add(value, found, [part for part in found if shared[part] > 1])
        self._given = np.zeros(sum(part.size for part in self._parts))
        at = 0
        for part in self._parts:
            part.join(self._given[at : at + part.size])
            at += part.size
        self._former = self._given.copy()

    def _members(self, value: int) -> Sequence[int]:
        """Return the part that makes a value and the others that use it; nothing where there are no others."""
        now, shared = self.now, self.now.shared
        maker = shared.producer[value][0]
        members = dict.fromkeys([maker, *(user for user, _ in shared.users[value])])
        if value in now.needs[maker]:
            own = needed_beside(now.price[value], now.makes[maker][value], now.needs[maker][value])
            self._parts[maker].cost = self._parts[maker].cost + own
        return list(members) if len(members) > 1 else ()

    def _add(self, value: int, members: Sequence[int], inner: Sequence[int]) -> None:
        """Add a value that parts share, of which those that are `inner` share others too."""
        now = self.now
        made, makes = now.makers[value]
        maker, uses = End(makes, len(made)), [Use(now.needs[user][value]) for user in members[1:]]
        star = self._stars[value] = Star(made, maker, uses, now.price[value])
        for member, end in zip(members, (maker, *uses), strict=True):
            end.is_last = member >= max(inner or members), member <= min(inner or members)
            part = self._parts[member]
            part.ends.append((star, end))
            part.is_leaf = bool(inner) and member not in inner

    def read(self, values: Collection[int]) -> None:
        """Read the prices of values again."""
        for value in values:
            if value in self._stars:
                self._stars[value].read(self.now.price[value])

    def improve(self) -> Iterator[bool]:
        """Raise the bound in program order, and on the way back; yield after each whether it was the way back."""
        again = min(MOMENTUM, self._turn / (self._turn + 1.5))
        given = self._given.copy()
        self._given += again * (given - self._former)
        self._former = given
        for part in self._parts:
            part.decide(None)
        former = self.bound
        for self._is_back in (False, True):
            self._pass()
            yield self._is_back
        self._turn = self._turn + 1 if self.bound > former else 0

    def _pass(self) -> None:
        bound = 0.0
        for part in reversed(self._parts) if self._is_back else self._parts:
            if part.is_leaf:
                continue
            cost, taken = part.beside()
            least = float(_least(cost))
            part.give(cost - least, taken, int(self._is_back))
            bound += least
        self.bound = bound

    def below(self, limit: Callable[[], float]) -> Iterator[list[int]]:
        """Yield decisions that cost less than the limit, which is asked for each state that is tried.

        Branch and bound: parts are decided in program order, each in all states that the bound leaves room for beside
        those before it, the cheapest first. So a decision that is not yielded costs more than any limit so far, or
        several copies of one value are shared in it.
        """
        for part in self._parts:
            part.decide(None)
        own = sum(part.least_alone() for part in self._parts)
        return self._below(limit, [], own + sum(star.bound() for star in self._stars.values()))

    def _below(self, limit: Callable[[], float], choice: list[int], bound: float) -> Iterator[list[int]]:
        if len(choice) == len(self._parts):
            yield choice
            return
        part = self._parts[len(choice)]
        cost, taken = part.beside()
        least = cost + (bound - part.least_alone() - part.least_of_ends(taken))
        for state in least.argsort().tolist():
            if least[state] >= limit():
                break
            part.decide(state)
            yield from self._below(limit, [*choice, state], float(least[state]))
        part.decide(None)

    def decide(self, order: Sequence[int] | None = None) -> list[int]:
        """Return a state for each part, in an order; against the direction of the last pass if it is None.

        Each takes the cheapest beside the parts that are decided before it, and the numbers of the others. Leaves come
        last: they know nothing of the rest of the program.
        """
        order = order or range(len(self._parts))[:: 1 if self._is_back else -1]
        choice = [0] * len(self._parts)
        for at in sorted(order, key=lambda at: self._parts[at].is_leaf):
            part = self._parts[at]
            choice[at] = int(part.beside()[0].argmin())
            part.decide(choice[at])
        for part in self._parts:
            part.decide(None)
        return choice
