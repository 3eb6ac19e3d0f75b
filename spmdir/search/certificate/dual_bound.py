"""A lower bound on the cost of every decision, from prices on the placements of values.

Each use of a value has two arrays of prices in seconds. The producer pays `produced[p]` if its placement is p, and the
user pays `needed[r]` if it needs r. They satisfy

    produced[p] + needed[r] <= weight[p] * (seconds of a reshard from p to r)        (*)

The weights of all uses of a value add up to 1 for each p. The reshards of a value cost at least as much as its most
expensive reshard, even if they share steps. This is at least the weighted mean of its reshards. By (*), the reshards of
every decision therefore cost at least the sum of all `produced[p]` and `needed[r]`. So the program costs at least the
sum over the nodes of min over states of (own seconds + prices of its operands and results).

For example, a node produces p0 or p1 for 0 or 1 s, its only user needs r0 or r1 for 1 or 0 s, and a reshard between
different placements costs 2 s. Zero prices give the bound 0 + 0. With produced = (0, -1) and needed = (0, 1), (*)
holds: 0 + 0 <= 0, 0 + 1 <= 2, -1 + 0 <= 2 and -1 + 1 <= 0. The nodes cost min(0, 0) + min(1, 1), so the bound is 1 s.

The bound holds for all prices that satisfy (*). The prices are a solution of the dual of a linear relaxation, found by
block ascent: each node in turn passes the excess of each placement above its cheapest state on to its neighbours. The
bound never falls. Nodes of one class have equal prices.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spmdir.search.certificate.all_states import AllStates, Placed
from spmdir.search.certificate.node_classes import AlikeNodes, AlikeValue
from spmdir.search.certificate.reshard_bounds import ReshardBounds, ReshardTable

Slot = tuple[int, int]
"""An operand: (class, operand index)."""


class _Use:
    """The prices of equal uses of a value.

    Attributes:
        count: the number of these uses of one value.
        users: the operands, each with the columns of the table for its placements.
        produced, weight: [produced placement].
    """

    def __init__(self, count: int, users: Sequence[tuple[Slot, np.ndarray]], produced: np.ndarray, weight: np.ndarray):
        self.count, self.users, self.produced, self.weight = count, users, produced, weight

    def most_needed(self, needed: Sequence[Sequence[np.ndarray]], columns: int) -> np.ndarray:
        """Return [column of the table], the highest price of a user."""
        highest = np.full(columns, -np.inf)
        for (index, slot), columns_of_slot in self.users:
            highest[columns_of_slot] = np.maximum(highest[columns_of_slot], needed[index][slot])
        return highest


class _Value:
    """A value: the least seconds of its reshards, and its uses, which share them by weight.

    Attributes:
        counted_fraction: the fraction of the time of its reshards that counts.
    """

    def __init__(
        self,
        table: ReshardTable,
        users: Sequence[tuple[int, Sequence[tuple[Slot, np.ndarray]]]],
        counted_fraction: float,
    ):
        self.table, self.counted_fraction = table, counted_fraction
        self.count = sum(count for count, _ in users)
        rows = len(table.before)
        self.uses = [_Use(count, slots, np.zeros(rows), np.full(rows, 1.0 / self.count)) for count, slots in users]
        self._impossible = np.isinf(table.seconds)

    def price(self) -> np.ndarray:
        """Return [produced, needed], the seconds of reshards; 0 for impossible ones."""
        return np.where(self._impossible, 0.0, self.counted_fraction * self.table.seconds)

    def share_of_price(self, weight: np.ndarray) -> np.ndarray:
        """Return [produced, needed], the seconds of a reshard that a use of this weight pays."""
        fraction = self.counted_fraction * np.maximum(weight, 1e-300)[:, None]
        return np.where(self._impossible, np.inf, self.table.seconds * fraction)

    def redistribute_weights(self, needed: Sequence[Sequence[np.ndarray]]) -> None:
        """Move weight to the uses whose prices it raises."""
        price = self.price()
        needed_by_use = [use.most_needed(needed, price.shape[1]) for use in self.uses]
        self._pass_on_spare_weight(price, needed_by_use)
        if len(self.uses) > 1:
            self._pass_on_half_weight(price, needed_by_use)

    def _pass_on_spare_weight(self, price: np.ndarray, needed_by_use: Sequence[np.ndarray]) -> None:
        """Move weight that a use does not need to the uses that need all of their weight."""
        spare, required = np.ones(len(price)), []
        for use, highest_needed in zip(self.uses, needed_by_use, strict=True):
            least_weight = np.divide(
                use.produced[:, None] + highest_needed, price, out=np.zeros_like(price), where=price > 0.0
            )
            required.append(np.minimum(least_weight.max(1, initial=0.0), use.weight))
            spare -= use.count * required[-1]
        is_short = [weight >= use.weight * (1 - 1e-9) for weight, use in zip(required, self.uses, strict=True)]
        takers = sum(use.count * short for use, short in zip(self.uses, is_short, strict=True))
        for use, weight, short in zip(self.uses, required, is_short, strict=True):
            gained = np.where(takers > 0, short / np.maximum(takers, 1), 1 / self.count)
            use.weight = weight + np.maximum(spare, 0.0) * gained

    def _pass_on_half_weight(self, price: np.ndarray, needed_by_use: Sequence[np.ndarray]) -> None:
        """Move half of the weight from the use with the least gain to the one with the most, if the bound rises."""
        rows = np.arange(len(price))
        margins = [
            self.share_of_price(use.weight) - highest_needed
            for use, highest_needed in zip(self.uses, needed_by_use, strict=True)
        ]
        slopes = np.array([price[rows, margin.argmin(1)] for margin in margins])
        counts = np.array([use.count for use in self.uses])
        weights = np.array([use.weight for use in self.uses])
        least, highest = slopes.argmin(0), slopes.argmax(0)
        moved = weights[least, rows] / 2
        weights[least, rows] -= moved
        weights[highest, rows] += moved * counts[least] / counts[highest]
        produced = [
            (self.share_of_price(weight) - highest_needed).min(1)
            for weight, highest_needed in zip(weights, needed_by_use, strict=True)
        ]
        bound_before = counts @ np.array([margin.min(1) for margin in margins])
        is_higher = counts @ np.array(produced) > bound_before
        for use, weight, produced_of_use in zip(self.uses, weights, produced, strict=True):
            use.weight = np.where(is_higher, weight, use.weight)
            use.produced = np.where(is_higher, _finite(produced_of_use), use.produced)


class DualBound:
    """A lower bound that rises with each sweep.

    Attributes:
        classes: the classes of equal nodes.
        states: [class], its states.
    """

    def __init__(self, classes: Sequence[AlikeNodes], states: Sequence[AllStates], prices: ReshardBounds):
        self.classes, self.states, self._prices = classes, states, prices
        self._needed = [[np.zeros(len(placements)) for placements in state.needed] for state in states]
        self._sources: list[list[list[tuple[_Value, _Use, np.ndarray]]]] = [
            [[] for _ in state.needed] for state in states
        ]
        self._values = [
            [self._value(produced, value) for produced, value in zip(state.produced, node_class.results, strict=True)]
            for state, node_class in zip(states, classes, strict=True)
        ]
        self._neighbour_count = [
            max(len(needed), sum(len(value.uses) for value in values), 1)
            for needed, values in zip(self._needed, self._values, strict=True)
        ]

    def _value(self, produced: tuple[Placed, ...], alike_value: AlikeValue) -> _Value:
        slots = dict.fromkeys(slot for role in alike_value.roles for slot in role.users)
        needed = {(index, slot): self.states[index].needed[slot] for index, slot in slots}
        columns = {
            placed: columns_of_slot
            for columns_of_slot, placed in enumerate(
                dict.fromkeys(p for placements in needed.values() for p in placements)
            )
        }
        columns_of_slot = {
            slot: np.array([columns[placed] for placed in placements]) for slot, placements in needed.items()
        }
        table = self._prices.table(alike_value.meta, produced, tuple(columns))
        users = [(role.count, [(slot, columns_of_slot[slot]) for slot in role.users]) for role in alike_value.roles]
        value = _Value(table, users, alike_value.counted_fraction)
        for use in value.uses:
            for (index, slot), columns_of_slot in use.users:
                self._sources[index][slot].append((value, use, columns_of_slot))
        return value

    def bound(self) -> float:
        """Return the lower bound, in seconds."""
        return sum(
            node_class.count * float(self.reduced_costs(index).min()) for index, node_class in enumerate(self.classes)
        )

    def reduced_costs(self, index: int) -> np.ndarray:
        """Return [state], the seconds of a class plus the prices of its operands and results."""
        states, cost = self.states[index], self.states[index].seconds.copy()
        for needed, placed in zip(self._needed[index], states.operands, strict=True):
            cost += needed[placed]
        for value, placed in zip(self._values[index], states.results, strict=True):
            for use in value.uses:
                cost += use.count * use.produced[placed]
        return cost

    def sweep(self) -> None:
        """Pass excess costs of all nodes on to their users, then in reverse order to their producers."""
        for index in range(len(self.classes)):
            self._take_from_operands(index)
            self._give_to_results(index)
        for index in reversed(range(len(self.classes))):
            self._take_from_results(index)
            self._give_to_operands(index)
        for values in self._values:
            for value in values:
                if value.count > 1:
                    value.redistribute_weights(self._needed)

    def _take_from_operands(self, index: int) -> None:
        for needed, sources in zip(self._needed[index], self._sources[index], strict=True):
            needed[:] = _finite(
                np.minimum.reduce(
                    [
                        (value.share_of_price(use.weight)[:, columns] - use.produced[:, None]).min(0)
                        for value, use, columns in sources
                    ]
                )
            )

    def _take_from_results(self, index: int) -> None:
        for value in self._values[index]:
            for use in value.uses:
                share = value.share_of_price(use.weight)
                use.produced[:] = _finite((share - use.most_needed(self._needed, share.shape[1])).min(1))

    def _give_to_results(self, index: int) -> None:
        cost = self.reduced_costs(index)
        cost -= cost.min()
        for value, placed in zip(self._values[index], self.states[index].results, strict=True):
            if value.uses:
                excess = _excess(placed, cost, len(value.table.before)) / self._neighbour_count[index]
                for use in value.uses:
                    use.produced -= excess / use.count

    def _give_to_operands(self, index: int) -> None:
        cost = self.reduced_costs(index)
        cost -= cost.min()
        for needed, placed in zip(self._needed[index], self.states[index].operands, strict=True):
            needed -= _excess(placed, cost, len(needed)) / self._neighbour_count[index]

    def add_plans(self, slack: float) -> int:
        """Replace bounds of reshards by exact plans where this may raise the bound; return their number.

        These are reshards between placements of states within `slack` seconds of the cheapest state.
        """
        pairs: list[tuple[ReshardTable, int, int]] = []
        is_near = [self.reduced_costs(index) for index in range(len(self.classes))]
        is_near = [cost <= cost.min() + slack for cost in is_near]
        for index, values in enumerate(self._values):
            for value, placed in zip(values, self.states[index].results, strict=True):
                table, produced = value.table, np.unique(placed[is_near[index]])
                for use in value.uses:
                    share = value.share_of_price(use.weight)
                    spare = share - use.produced[:, None] - use.most_needed(self._needed, share.shape[1])
                    unknown = (spare <= slack) & ~table.is_planned
                    for (user, slot), columns in use.users:
                        needed = np.unique(columns[self.states[user].operands[slot][is_near[user]]])
                        unknown_pairs = np.argwhere(unknown[np.ix_(produced, needed)])
                        pairs += [(table, int(produced[row]), int(needed[column])) for row, column in unknown_pairs]
        self._prices.add_plans(pairs)
        return len(pairs)


def _finite(numbers: np.ndarray) -> np.ndarray:
    """Return `numbers` with 0 in place of infinities, which belong to placements without a reshard."""
    return np.where(np.isinf(numbers), 0.0, numbers)


def _excess(placed: np.ndarray, cost: np.ndarray, count: int) -> np.ndarray:
    """Return [placement], the least cost of the states with this placement; 0 if there is none."""
    least = np.full(count, np.inf)
    np.minimum.at(least, placed, cost)
    least[np.isinf(least)] = 0.0
    return least
