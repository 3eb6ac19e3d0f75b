"""A lower bound on the cost of all decisions, by prices on the placements in which values are made and needed.

Each use of a value gets two sets of numbers: `made[p]`, for the node that makes the value with placement p, and
`needed[r]`, for the node that uses it with placement r, such that made[p] + needed[r] is at most the fraction
`weight[p]` of the price of a reshard from p to r. For each p, the weights of all uses of a value add up to 1. However
its reshards share steps, they cost at least as much as the dearest of those that the uses need, which is at least the
mean by these weights. So the reshards of every decision cost at least the sum of made[p] and needed[r] over all uses,
and the program costs at least what it would if each node chose by itself what is cheapest for it, with these numbers
added to its own time.

This holds whatever the numbers are. Those found here are a solution of the dual of a linear relaxation, by block
ascent: one node after the other passes on to its neighbours by how much each placement is dearer than its cheapest
state, so that the bound never falls. Nodes that look alike get equal numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spmdir.search.certificate.alike import AlikeNodes, AlikeValue
from spmdir.search.certificate.all_states import AllStates, Placed
from spmdir.search.certificate.reshard_bounds import ReshardBounds, ReshardTable

Slot = tuple[int, int]
"""An operand: (class, operand index)."""


class _Use:
    """The numbers of the uses of a value that look alike.

    Attributes:
        count: how many of them a value has.
        users: the operands, each with the columns of the table that its placements have.
        made, weight: by placement made.
    """

    def __init__(self, count: int, users: Sequence[tuple[Slot, np.ndarray]], made: np.ndarray, weight: np.ndarray):
        self.count, self.users, self.made, self.weight = count, users, made, weight

    def most_needed(self, needed: Sequence[Sequence[np.ndarray]], columns: int) -> np.ndarray:
        """Return the highest number of a user for each column of the table."""
        most = np.full(columns, -np.inf)
        for (index, slot), at in self.users:
            most[at] = np.maximum(most[at], needed[index][slot])
        return most


class _Value:
    """What a reshard of a value costs at the least, and the uses that bear fractions of it.

    Attributes:
        counted: the part of the time of reshards that counts.
    """

    def __init__(
        self, table: ReshardTable, users: Sequence[tuple[int, Sequence[tuple[Slot, np.ndarray]]]], counted: float
    ):
        self.table, self.counted = table, counted
        self.count = sum(count for count, _ in users)
        rows = len(table.before)
        self.uses = [_Use(count, slots, np.zeros(rows), np.full(rows, 1.0 / self.count)) for count, slots in users]
        self._impossible = np.isinf(table.seconds)

    def price(self) -> np.ndarray:
        """Return what reshards cost, 0 where there is none."""
        return np.where(self._impossible, 0.0, self.counted * self.table.seconds)

    def borne(self, weight: np.ndarray) -> np.ndarray:
        """Return what a use of this weight bears of each reshard, [made, needed]."""
        counted = self.counted * np.maximum(weight, 1e-300)[:, None]
        return np.where(self._impossible, np.inf, self.table.seconds * counted)

    def share_again(self, needed: Sequence[Sequence[np.ndarray]]) -> None:
        """Let uses pass on weight to those that bear more by it."""
        price = self.price()
        most = [use.most_needed(needed, price.shape[1]) for use in self.uses]
        self._pass_on_spare(price, most)
        if len(self.uses) > 1:
            self._pass_on_half(price, most)

    def _pass_on_spare(self, price: np.ndarray, most: Sequence[np.ndarray]) -> None:
        """Let uses pass on what they do not need to those that need all of theirs."""
        left, shares = np.ones(len(price)), []
        for use, asked in zip(self.uses, most, strict=True):
            least = np.divide(use.made[:, None] + asked, price, out=np.zeros_like(price), where=price > 0.0)
            shares.append(np.minimum(least.max(1, initial=0.0), use.weight))
            left -= use.count * shares[-1]
        is_short = [share >= use.weight * (1 - 1e-9) for share, use in zip(shares, self.uses, strict=True)]
        takers = sum(use.count * short for use, short in zip(self.uses, is_short, strict=True))
        for use, share, short in zip(self.uses, shares, is_short, strict=True):
            more = np.where(takers > 0, short / np.maximum(takers, 1), 1 / self.count)
            use.weight = share + np.maximum(left, 0.0) * more

    def _pass_on_half(self, price: np.ndarray, most: Sequence[np.ndarray]) -> None:
        """Let the use that bears least by its weight pass on half of it to the one that would bear most, if it does."""
        rows = np.arange(len(price))
        left = [self.borne(use.weight) - asked for use, asked in zip(self.uses, most, strict=True)]
        slopes = np.array([price[rows, one.argmin(1)] for one in left])
        counts = np.array([use.count for use in self.uses])
        weights = np.array([use.weight for use in self.uses])
        least, highest = slopes.argmin(0), slopes.argmax(0)
        moved = weights[least, rows] / 2
        weights[least, rows] -= moved
        weights[highest, rows] += moved * counts[least] / counts[highest]
        borne = [(self.borne(weight) - asked).min(1) for weight, asked in zip(weights, most, strict=True)]
        before = counts @ np.array([one.min(1) for one in left])
        is_more = counts @ np.array(borne) > before
        for use, weight, made in zip(self.uses, weights, borne, strict=True):
            use.weight = np.where(is_more, weight, use.weight)
            use.made = np.where(is_more, _finite(made), use.made)


class DualBound:
    """A lower bound that rises with each sweep.

    Attributes:
        classes: the nodes, those alike together.
        states: the states of each class.
    """

    def __init__(self, classes: Sequence[AlikeNodes], states: Sequence[AllStates], prices: ReshardBounds):
        self.classes, self.states, self._prices = classes, states, prices
        self._needed = [[np.zeros(len(placements)) for placements in one.needed] for one in states]
        self._sources: list[list[list[tuple[_Value, _Use, np.ndarray]]]] = [[[] for _ in one.needed] for one in states]
        self._values = [
            [self._value(made, value) for made, value in zip(state.made, one.results, strict=True)]
            for state, one in zip(states, classes, strict=True)
        ]
        self._parts = [
            max(len(needed), sum(len(value.uses) for value in values), 1)
            for needed, values in zip(self._needed, self._values, strict=True)
        ]

    def _value(self, made: tuple[Placed, ...], of: AlikeValue) -> _Value:
        slots = dict.fromkeys(slot for role in of.roles for slot in role.users)
        needed = {(index, slot): self.states[index].needed[slot] for index, slot in slots}
        columns = {placed: at for at, placed in enumerate(dict.fromkeys(p for found in needed.values() for p in found))}
        at = {slot: np.array([columns[placed] for placed in found]) for slot, found in needed.items()}
        table = self._prices.table(of.meta, made, tuple(columns))
        users = [(role.count, [(slot, at[slot]) for slot in role.users]) for role in of.roles]
        value = _Value(table, users, of.counted)
        for use in value.uses:
            for (index, slot), columns_of_slot in use.users:
                self._sources[index][slot].append((value, use, columns_of_slot))
        return value

    def bound(self) -> float:
        """Return the lower bound, in seconds."""
        return sum(one.count * float(self.reduced(index).min()) for index, one in enumerate(self.classes))

    def reduced(self, index: int) -> np.ndarray:
        """Return the time of each state of a class with the numbers of its operands and results added."""
        states, cost = self.states[index], self.states[index].seconds.copy()
        for needed, placed in zip(self._needed[index], states.operands, strict=True):
            cost += needed[placed]
        for value, placed in zip(self._values[index], states.results, strict=True):
            for use in value.uses:
                cost += use.count * use.made[placed]
        return cost

    def sweep(self) -> None:
        """Let all nodes pass on what they can, to their users and then to those whose values they use."""
        for index in range(len(self.classes)):
            self._take_from_operands(index)
            self._give_to_results(index)
        for index in reversed(range(len(self.classes))):
            self._take_from_results(index)
            self._give_to_operands(index)
        for values in self._values:
            for value in values:
                if value.count > 1:
                    value.share_again(self._needed)

    def _take_from_operands(self, index: int) -> None:
        for needed, sources in zip(self._needed[index], self._sources[index], strict=True):
            needed[:] = _finite(
                np.minimum.reduce(
                    [(value.borne(use.weight)[:, at] - use.made[:, None]).min(0) for value, use, at in sources]
                )
            )

    def _take_from_results(self, index: int) -> None:
        for value in self._values[index]:
            for use in value.uses:
                borne = value.borne(use.weight)
                use.made[:] = _finite((borne - use.most_needed(self._needed, borne.shape[1])).min(1))

    def _give_to_results(self, index: int) -> None:
        cost = self.reduced(index)
        cost -= cost.min()
        for value, placed in zip(self._values[index], self.states[index].results, strict=True):
            if value.uses:
                excess = _excess(placed, cost, len(value.table.before)) / self._parts[index]
                for use in value.uses:
                    use.made -= excess / use.count

    def _give_to_operands(self, index: int) -> None:
        cost = self.reduced(index)
        cost -= cost.min()
        for needed, placed in zip(self._needed[index], self.states[index].operands, strict=True):
            needed -= _excess(placed, cost, len(needed)) / self._parts[index]

    def plan(self, slack: float) -> int:
        """Replace bounds on prices by the times of plans where they matter; return for how many reshards.

        They do between placements of states that are within `slack` seconds of the cheapest.
        """
        pairs: list[tuple[ReshardTable, int, int]] = []
        near = [self.reduced(index) for index in range(len(self.classes))]
        near = [cost <= cost.min() + slack for cost in near]
        for index, values in enumerate(self._values):
            for value, placed in zip(values, self.states[index].results, strict=True):
                table, made = value.table, np.unique(placed[near[index]])
                for use in value.uses:
                    borne = value.borne(use.weight)
                    spare = borne - use.made[:, None] - use.most_needed(self._needed, borne.shape[1])
                    unknown = (spare <= slack) & ~table.is_planned
                    for (user, slot), at in use.users:
                        needed = np.unique(at[self.states[user].operands[slot][near[user]]])
                        found = np.argwhere(unknown[np.ix_(made, needed)])
                        pairs += [(table, int(made[row]), int(needed[column])) for row, column in found]
        self._prices.plan(pairs)
        return len(pairs)


def _finite(numbers: np.ndarray) -> np.ndarray:
    """Return `numbers` with 0 for a placement that no reshard is from or to, which may have any: infinities of two such
    placements would add up to NaN."""
    return np.where(np.isinf(numbers), 0.0, numbers)


def _excess(placed: np.ndarray, cost: np.ndarray, count: int) -> np.ndarray:
    """Return the least cost of the states with each of `count` placements; 0 where it is infinite."""
    least = np.full(count, np.inf)
    np.minimum.at(least, placed, cost)
    least[np.isinf(least)] = 0.0
    return least
