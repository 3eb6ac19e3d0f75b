"""A lower bound on the cost of all decisions, by prices on the placements in which values are made and needed.

Each use of a value gets two sets of numbers: `made[p]`, for the node that makes the value with placement p, and
`needed[r]`, for the node that uses it with placement r, such that made[p] + needed[r] is at most the part of the price
of a reshard from p to r that this use bears. The uses of a value bear at most the whole price together, so one reshard
that serves several of them counts once. So the reshards of every decision cost at least the sum of made[p] and
needed[r] over all uses, and the program costs at least what it would if each node chose by itself what is cheapest for
it, with these numbers added to its own time.

This holds whatever the numbers are. Those found here are a solution of the dual of the linear relaxation, by block
ascent: one node after the other passes on to its neighbours by how much each placement is dearer than its cheapest
state, so that the bound never falls. Nodes that look alike get equal numbers.

A value may reach a user through a copy that serves another. So a use bears a part of the price of each first reshard,
from the placement p that the value is made in to a copy c, and of each second one, from c to r.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spmdir.search.certificate.alike import AlikeNodes, AlikeValue, Role
from spmdir.search.certificate.all_states import AllStates, Placed
from spmdir.search.certificate.reshard_bounds import ReshardBounds, ReshardTable

Slot = tuple[int, int]
"""An operand: (class, operand index)."""


class _Use:
    """The numbers of the uses of a value that look alike.

    Attributes:
        count: how many of them a value has.
        made: by placement made.
        first: the part of the price of each first reshard that a use bears, [made, copy].
        second: of each second reshard, [copy, copy].
        users: the operands, each with the index of its placements among the copies.
    """

    def __init__(self, role: Role, users: list[tuple[Slot, np.ndarray]]):
        self.count, self.users = role.count, users
        self.made = self.first = self.second = np.zeros(0)


class _Value:
    """What the reshards of a value cost and its uses bear.

    Attributes:
        tables: the least prices of first and second reshards, shared with equal values.
        prices: those of which the uses bear parts now.
        uses: its uses; where there is one alone, no copy serves two, and there are no second reshards.
    """

    def __init__(self, tables: Sequence[ReshardTable], uses: list[_Use]):
        self.tables, self.uses = tables, uses
        self.prices = [table.seconds.copy() for table in tables]
        self.count = sum(use.count for use in uses)
        self.is_shared = len(tables) > 1
        for use in uses:
            use.made = np.zeros(len(self.prices[0]))
            use.first = self.prices[0] / self.count
            use.second = self.prices[-1] / self.count

    def most_needed(self, use: _Use, needed: list[list[np.ndarray]]) -> np.ndarray:
        """Return the most that users have for each copy, by needing it."""
        most = np.full(self.prices[0].shape[1], -np.inf)
        for (index, slot), at in use.users:
            most[at] = np.maximum(most[at], needed[index][slot])
        return most

    def worth(self, use: _Use, needed: list[list[np.ndarray]]) -> np.ndarray:
        """Return the most that users have for each copy, by needing it or what is made of it, [made, copy]."""
        direct = self.most_needed(use, needed)
        if not self.is_shared:
            return direct[None, :]
        through = (direct[None, :] - use.second).max(1)
        return np.where(self.prices[0] > 0.0, np.maximum(direct, through), direct)

    def reach(self, use: _Use) -> np.ndarray:
        """Return the least that is left to bear for each copy, after what the maker has for it."""
        direct, copied = self._to_copies(use)
        return np.minimum(direct, (copied[:, None] + use.second).min(0)) if self.is_shared else direct

    def _to_copies(self, use: _Use) -> tuple[np.ndarray, np.ndarray]:
        """Return the least that is left to bear for each copy, and for those that cost anything."""
        left = use.first - use.made[:, None]
        return left.min(0), np.where(self.prices[0] > 0.0, left, np.inf).min(0)

    def share_again(self, needed: list[list[np.ndarray]]) -> None:
        """Let uses that bear more than they need to pass it on to those that do not."""
        slack = [use.first - use.made[:, None] - self.worth(use, needed) for use in self.uses]
        _pass_on(self.prices[0], [use.first for use in self.uses], slack, self.uses)
        slack = [
            self._to_copies(use)[1][:, None] + use.second - self.most_needed(use, needed)[None, :] for use in self.uses
        ]
        _pass_on(self.prices[1], [use.second for use in self.uses], slack, self.uses)

    def follow_tables(self) -> None:
        """Raise prices to those of the tables."""
        for at, (price, table) in enumerate(zip(self.prices, self.tables, strict=True)):
            more = np.where(np.isfinite(price), table.seconds - price, 0.0)
            price += more
            for use in self.uses:
                part = use.second if at else use.first
                part += more / self.count


def _pass_on(price: np.ndarray, parts: Sequence[np.ndarray], slack: Sequence[np.ndarray], uses: Sequence[_Use]) -> None:
    """Take the slack from each use's part of a price, and give it in equal parts to the uses without."""
    possible = np.isfinite(price)
    left, takers, takes = np.where(possible, price, 0.0), np.zeros(price.shape), []
    for part, spare, use in zip(parts, slack, uses, strict=True):
        takes.append(possible & (spare <= 1e-9 * price))
        takers += use.count * takes[-1]
        np.subtract(part, np.clip(spare, 0.0, part), out=part, where=possible)
        np.subtract(left, use.count * part, out=left, where=possible)
    np.maximum(left, 0.0, out=left)
    everyone = sum(use.count for use in uses)
    for part, taking in zip(parts, takes, strict=True):
        part += left * np.where(takers > 0, taking / np.maximum(takers, 1), 1 / everyone)


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
        slots = [slot for role in of.roles for slot in role.users]
        copies = tuple(dict.fromkeys(p for index, operand in slots for p in self.states[index].needed[operand]))
        number = {placed: index for index, placed in enumerate(copies)}
        uses = [
            _Use(
                role,
                [(slot, np.array([number[p] for p in self.states[slot[0]].needed[slot[1]]])) for slot in role.users],
            )
            for role in of.roles
        ]
        is_shared = sum(role.count for role in of.roles) > 1
        value = _Value(
            [self._prices.table(of.meta, before, copies) for before in (made, copies)[: 1 + is_shared]], uses
        )
        for use in uses:
            for (index, slot), at in use.users:
                self._sources[index][slot].append((value, use, at))
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
                if value.is_shared:
                    value.share_again(self._needed)

    def _take_from_operands(self, index: int) -> None:
        for needed, sources in zip(self._needed[index], self._sources[index], strict=True):
            needed[:] = np.minimum.reduce([value.reach(use)[at] for value, use, at in sources])

    def _take_from_results(self, index: int) -> None:
        for value in self._values[index]:
            for use in value.uses:
                use.made[:] = (use.first - value.worth(use, self._needed)).min(1)

    def _give_to_results(self, index: int) -> None:
        cost = self.reduced(index)
        cost -= cost.min()
        for value, placed in zip(self._values[index], self.states[index].results, strict=True):
            if value.uses:
                excess = _excess(placed, cost, len(value.prices[0])) / self._parts[index]
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
                table, made = value.tables[0], np.unique(placed[near[index]])
                for use in value.uses:
                    tight = use.first - use.made[:, None] - value.worth(use, self._needed) <= slack
                    for (user, slot), at in use.users:
                        needed = np.unique(at[self.states[user].operands[slot][near[user]]])
                        found = np.argwhere((tight & ~table.is_planned)[np.ix_(made, needed)])
                        pairs += [(table, int(made[row]), int(needed[column])) for row, column in found]
        self._prices.plan(pairs)
        for values in self._values:
            for value in values:
                value.follow_tables()
        return len(pairs)


def _excess(placed: np.ndarray, cost: np.ndarray, count: int) -> np.ndarray:
    """Return the least cost of the states with each of `count` placements; 0 where it is infinite."""
    least = np.full(count, np.inf)
    np.minimum.at(least, placed, cost)
    least[np.isinf(least)] = 0.0
    return least
