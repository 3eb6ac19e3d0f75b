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

After each pass all parts are decided, one by one in the other direction: beside those that are decided, and the others
by their numbers. Where the bound is tight, that is the best decision.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

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
    """

    def __init__(self, cost: Numbers):
        self.cost = cost
        self.ends: list[tuple[Star, End]] = []

    def join(self) -> None:
        """Give all ends one array of numbers."""
        sizes = [end.size for _, end in self.ends]
        self._first = first = [sum(sizes[:at]) for at in range(len(sizes))]
        self.given = self._former = np.zeros(sum(sizes))
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
        self._tell()

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
            self.given = _least_of(cost[self._by_key], self._starts) * self._shares[direction] - taken
            self._tell()

    def move_on(self, again: float) -> None:
        """Make a fraction of the last change again."""
        given = self.given
        self.given = given + again * (given - self._former)
        self._former = given
        self._tell()

    def decide(self, state: int | None) -> None:
        """Note which state is decided, or that none is."""
        for _, end in self.ends:
            end.decided = None if state is None else int(end.key[state])
            end.below = None

    def _tell(self) -> None:
        at = 0
        for _, end in self.ends:
            end.given = self.given[at : at + end.size]
            end.below = None
            at += end.size


class Messages:
    """The numbers of all ends of a program.

    Attributes:
        bound: after the last pass. No decision costs less, but some whose users share several copies of one value.
    """

    def __init__(self, now: Assignment):
        self.now, self.bound, self._turn, self._is_back = now, 0.0, 0, True
        self._stars: dict[int, Star] = {}
        self._parts = list(map(_Part, now.cost))
        for value in range(len(now.price)):
            self._add(value)
        for part in self._parts:
            part.join()

    def _add(self, value: int) -> None:
        now, shared = self.now, self.now.shared
        part, price = shared.producer[value][0], now.price[value]
        users = dict.fromkeys(user for user, _ in shared.users[value])
        if part in users:
            del users[part]
            own = needed_beside(price, now.makes[part][value], now.needs[part][value])
            self._parts[part].cost = self._parts[part].cost + own
        if users:
            made, makes = now.makers[value]
            maker, uses = End(makes, len(made)), [Use(now.needs[user][value]) for user in users]
            star = self._stars[value] = Star(made, maker, uses, price)
            for other, end in zip((part, *users), (maker, *uses), strict=True):
                end.is_last = other >= max(part, *users), other <= min(part, *users)
                self._parts[other].ends.append((star, end))

    def read(self, values: Collection[int]) -> None:
        """Read the prices of values again."""
        for value in values:
            if value in self._stars:
                self._stars[value].read(self.now.price[value])

    def improve(self) -> Iterator[None]:
        """Raise the bound in program order, yield, and raise it on the way back, and yield."""
        again = min(MOMENTUM, self._turn / (self._turn + 1.5))
        for part in self._parts:
            part.move_on(again)
        former = self.bound
        for self._is_back in (False, True):
            self._pass()
            yield
        self._turn = self._turn + 1 if self.bound > former else 0

    def _pass(self) -> None:
        bound = 0.0
        for part in reversed(self._parts) if self._is_back else self._parts:
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

    def decide(self) -> list[int]:
        """Return a state for each part, against the direction of the last pass.

        Each takes the cheapest beside the parts that are decided before it, and the numbers of the others.
        """
        choice = []
        for part in self._parts if self._is_back else reversed(self._parts):
            choice.append(int(part.beside()[0].argmin()))
            part.decide(choice[-1])
        for part in self._parts:
            part.decide(None)
        return choice if self._is_back else choice[::-1]
