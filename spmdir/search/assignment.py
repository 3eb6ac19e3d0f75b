"""A decision of the search, one state for each part of a program, and its cost.

The reshards of a value cost one price for each distinct joint placement that its users need. If it is cheaper, the
value is resharded to one copy first, and the users reshard from the value or from the copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from spmdir.search.joint_placements import Numbers
from spmdir.search.joint_states import StateTable
from spmdir.search.merged_nodes import Quotient
from spmdir.search.reshard_prices import IMPOSSIBLE, Prices


class Assignment:
    """The parts of a program with their states, and the chosen state of each part.

    Each value has its own numbering of joint placements: R, and those that its parts produce or need. "Placement" means
    such a number in all attributes but `numbers`.

    Attributes:
        numbers: value → [placement], its number in `JointPlacements`.
        cost: part → [state], seconds without reshards, including the price of holding the results.
        needs: needs[part][value] has an array for each operand that is the value: [state], the placement needed.
        produces: produces[part][value]: [state], the placement produced.
        producer_placements: value → its possible produced placements, and [state of the producer] the index in them.
        price: value → [before, after], seconds of a reshard. Equal values share one table.
        touched: part → the values that it uses or produces.
        choice: part → its chosen state; -1 before the first choice.
        produced: value → the placement that it is produced in, under the chosen states.
        need_counts: value → {placement: the number of operands that need it}, under the chosen states.
        cost_rows, need_rows, produce_rows, price_rows: `cost`, `needs`, `produces` and `price` as lists.
    """

    def __init__(self, shared: Quotient, states: Sequence[StateTable], prices: Prices):
        self.shared, self.states, self._prices = shared, states, prices
        self._number_placements()
        self._read_prices()
        self.needs = [self._needs_of(part) for part in range(len(shared.nodes))]
        self.produces = [self._produces_of(part) for part in range(len(shared.nodes))]
        self.producer_placements = {  # the distinct placements, and the index of that of each state
            value: np.unique(produced, return_inverse=True)
            for produced_by_value in self.produces
            for value, produced in produced_by_value.items()
        }
        self.touched = [
            list(dict.fromkeys((*self.needs[part], *node.results))) for part, node in enumerate(shared.nodes)
        ]
        self.cost = [self._cost_of(part) for part in range(len(shared.nodes))]
        # Lists of the same numbers, because indexing a list is faster.
        self.cost_rows = [cost.tolist() for cost in self.cost]
        self.need_rows = [
            {value: [column.tolist() for column in columns] for value, columns in needs.items()} for needs in self.needs
        ]
        self.produce_rows = [
            {value: column.tolist() for value, column in produced.items()} for produced in self.produces
        ]
        self.choice = [-1] * len(shared.nodes)
        self.produced = [0] * len(shared.values)
        self.need_counts: list[dict[int, int]] = [{} for _ in shared.values]
        # part → (the counts to update, [state] the placement needed) for each operand
        self._counts_and_needs = [
            [(self.need_counts[value], row) for value, rows in needs.items() for row in rows]
            for needs in self.need_rows
        ]

    def _number_placements(self) -> None:
        """Set `numbers`, and `_index_of_number`: value → [number in `JointPlacements`], the placement, or -1.

        For example, the parts of a value have it in the joint placements 4 and 7, and R is 0. Then `numbers` of the
        value is [0, 4, 7], and its placements are 0, 1 and 2.
        """
        shared, placements = self.shared, self._prices.placements
        # value → [number in `JointPlacements`], whether a part may have the value in this joint placement
        occurs = [np.zeros(len(placements.all), dtype=bool) for _ in shared.values]
        for occurs_of_value in occurs:
            occurs_of_value[placements.replicated] = True
        for part, node in enumerate(shared.nodes):
            for operand_index, value in shared.uses[part]:
                occurs[value][self.states[part].operands[:, operand_index]] = True
            for result_index, value in enumerate(node.results):
                occurs[value][self.states[part].results[:, result_index]] = True
        self.numbers: list[Numbers] = [row.nonzero()[0] for row in occurs]
        self._index_of_number = [np.where(row, row.cumsum() - 1, -1) for row in occurs]

    def _read_prices(self) -> None:
        """Set `price` and `price_rows`. Values with equal types, placements and weights share one table."""
        self.price: list[Numbers] = []
        self.price_rows: list[list[list[float]]] = []
        self._key: list[object] = []  # value → its `_price_key`
        self._values_with_key: dict[object, list[int]] = {}
        # The reshards with exact prices: (first value with the key, numbers before and after).
        self._learned: set[tuple[int, int, int]] = set()
        tables: dict[object, tuple[Numbers, list[list[float]]]] = {}  # key → the table as an array, and as lists
        for value, numbers in enumerate(self.numbers):
            price_key = self._price_key(value)
            table_key = numbers.tobytes(), self.shared.value_weight[value], price_key
            if table_key not in tables:
                price = self._prices.table(numbers, value)
                tables[table_key] = price, price.tolist()
            price, price_rows = tables[table_key]
            self.price.append(price)
            self.price_rows.append(price_rows)
            self._key.append(price_key)
            self._values_with_key.setdefault(price_key, []).append(value)

    def _price_key(self, value: int) -> object:
        """Return a key. Values with equal keys have equal prices between equal placements, apart from their weights."""
        shared = self.shared
        return (
            shared.values[value],
            shared.copy_holding and shared.copy_holding[value],
            shared.exposed and shared.exposed[value],
            value in shared.ties,
            value in shared.unsent,
            value in shared.unsliced,
        )

    def _needs_of(self, part: int) -> dict[int, list[Numbers]]:
        """Return value → for each operand of a part that is the value, [state] the placement needed."""
        needs: dict[int, list[Numbers]] = {}
        for operand_index, value in self.shared.uses[part]:
            numbers = self.states[part].operands[:, operand_index]
            needs.setdefault(value, []).append(self._index_of_number[value][numbers])
        return needs

    def _produces_of(self, part: int) -> dict[int, Numbers]:
        """Return value → [state] the placement produced, for each result of a part."""
        results = enumerate(self.shared.nodes[part].results)
        states = self.states[part]
        return {value: self._index_of_number[value][states.results[:, result_index]] for result_index, value in results}

    def _cost_of(self, part: int) -> Numbers:
        """Return for each state of a part its seconds without reshards, including the price of holding its results."""
        shared, states = self.shared, self.states[part]
        cost = states.seconds * shared.weight[part]
        if shared.holding:
            for result_index, value in enumerate(shared.nodes[part].results):
                bytes_held = self._prices.bytes_held(states.results[:, result_index], value)
                cost = cost + shared.holding[value] * bytes_held
        return cost

    def assume(self, choice: Iterable[int]) -> None:
        """Choose a state for every part.

        Args:
            choice: part → state.
        """
        for part, state in enumerate(choice):
            self.choose(part, state)

    def choose(self, part: int, state: int) -> None:
        """Choose a state for a part, and update what its values are produced in and how often each is needed."""
        previous_state = self.choice[part]
        if previous_state == state:
            return
        self.choice[part] = state
        for counts, needs in self._counts_and_needs[part]:
            need = needs[state]
            if previous_state >= 0:
                previous_need = needs[previous_state]
                if previous_need == need:
                    continue
                if counts[previous_need] == 1:
                    del counts[previous_need]
                else:
                    counts[previous_need] -= 1
            counts[need] = counts.get(need, 0) + 1
        for value, produced in self.produce_rows[part].items():
            self.produced[value] = produced[state]

    def value_cost(self, value: int) -> float:
        """Return the seconds of the reshards of a value under the chosen states.

        They are the least over reshards without a copy, and with one copy in a placement that a user needs.
        """
        rows, needed = self.price_rows[value], self.need_counts[value]
        prices_from_produced = rows[self.produced[value]]
        least_cost = 0.0
        for placement in needed:
            least_cost += prices_from_produced[placement]
        if not least_cost or len(needed) == 1:
            return least_cost
        for copy in needed:
            if prices_from_produced[copy]:  # a copy that costs nothing saves nothing
                cost_with_copy, prices_from_copy = prices_from_produced[copy], rows[copy]
                for placement in needed:
                    cost_with_copy += min(prices_from_produced[placement], prices_from_copy[placement])
                if cost_with_copy < least_cost:
                    least_cost = cost_with_copy
        return least_cost

    def parts_with_impossible_reshards(self) -> frozenset[int]:
        """Return the parts with a value that has no reshard from its placement to one that a user needs."""
        values = {value for value in range(len(self.produced)) if self.value_cost(value) >= IMPOSSIBLE}
        return frozenset(part for part, touched in enumerate(self.touched) if not values.isdisjoint(touched))

    def total(self) -> float:
        """Return the seconds of the program under the chosen states."""
        cost = 0.0
        for costs, state in zip(self.cost_rows, self.choice, strict=True):
            cost += costs[state]
        return cost + sum(map(self.value_cost, range(len(self.produced))))

    def learn_exact_prices(self) -> list[int]:
        """Replace the estimated prices of the chosen reshards by the planner's; return the values with changed prices.

        These are the reshards between the placements in which the chosen states produce and need each value.
        """
        changed: dict[int, None] = {}
        for value, counts in enumerate(self.need_counts):
            produced = self.produced[value]
            # With several users, one may reshard from the copy of another.
            placements_before = [produced, *counts] if len(counts) > 1 else [produced]
            for before in dict.fromkeys(placements_before):
                for after in counts:
                    if before != after:
                        changed.update(dict.fromkeys(self._learn_exact_price(value, before, after)))
        return list(changed)

    def _learn_exact_price(self, value: int, before: int, after: int) -> list[int]:
        """Replace the price of one reshard by the planner's, for all values with the same key.

        Returns: the values with changed prices; none if the price was replaced before. A price that differs from the
        planner's by a rounding error only does not change.
        """
        values_alike, (source, target) = self._values_with_key[self._key[value]], self.numbers[value][[before, after]]
        if (values_alike[0], source, target) in self._learned:
            return []
        self._learned.add((values_alike[0], source, target))
        exact = self._prices.exact(source, target, value) / self.shared.value_weight[value]
        # Equal values share one table. A change for the first of them is also one for the others, in later iterations.
        changed, changed_tables = [], set[int]()  # values, and the ids of their tables
        for alike_value in values_alike:
            row, column = self._index_of_number[alike_value][[source, target]]
            if row < 0 or column < 0:
                continue  # no part needs or produces one of the placements
            price, seconds = self.price[alike_value], exact * self.shared.value_weight[alike_value]
            if abs(seconds - price[row, column]) > 1e-9 * seconds:
                price[row, column] = self.price_rows[alike_value][row][column] = seconds
                changed_tables.add(id(price))
            if id(price) in changed_tables:
                changed.append(alike_value)
        return changed

    def gain(self, moves: dict[int, int]) -> float:
        """Move parts to states, and return the seconds saved, negative if the cost rises. The moves are kept.

        Args:
            moves: part → its new state.
        """
        values: dict[int, None] = {}
        cost_before = cost_after = 0.0
        for part, state in moves.items():
            costs = self.cost_rows[part]
            cost_before += costs[self.choice[part]]
            cost_after += costs[state]
            for value in self.touched[part]:
                values[value] = None
        for value in values:
            cost_before += self.value_cost(value)
        for part, state in moves.items():
            self.choose(part, state)
        for value in values:
            cost_after += self.value_cost(value)
        return cost_before - cost_after
