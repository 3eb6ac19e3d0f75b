"""A decision of the search: one state for each part of a program, and what it costs.

A value's reshards cost one price for each distinct joint placement that its users need, or, where that is less, what
it costs to bring the value to one placement and from there to the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from spmdir.search.joint_placements import Numbers
from spmdir.search.joint_states import StateTable
from spmdir.search.prices import Prices
from spmdir.search.repeats import Quotient


class Assignment:
    """The parts of a program with their states, of which one is chosen for each.

    Joint placements are numbered for each value here: those that its parts make or need.

    Attributes:
        cost: part → seconds of each of its states.
        needs: part → {value: for each operand that is this value, the placement that each state needs}.
        makes: part → {value: the placement that each state makes}.
        makers: value → the placements that it may be made in, and by state of its part, the index of one of them.
        price: value → what a reshard of it costs, [before, after].
        choice: part → its state.
        made: value → the placement that it is made in.
        wanted: value → {placement: how many operands need it}.
    """

    def __init__(self, shared: Quotient, states: Sequence[StateTable], prices: Prices):
        self.shared, self.states = shared, states
        self.cost = cost = [own.seconds * weight for own, weight in zip(states, shared.weight, strict=True)]
        columns: list[list[Numbers]] = [[] for _ in shared.values]
        for part, node in enumerate(shared.nodes):
            operands, results = states[part].operands.T, states[part].results.T
            for slot, value in shared.uses[part]:
                columns[value].append(operands[slot])
            for value, column in zip(node.results, results, strict=True):
                columns[value].append(column)
        self.numbers: list[Numbers] = []
        self._place = place = []
        for found in columns:
            occurs = np.zeros(len(prices.placements.all), dtype=bool)
            occurs[prices.placements.replicated] = True
            for column in found:
                occurs[column] = True
            self.numbers.append(occurs.nonzero()[0])
            place.append(np.where(occurs, occurs.cumsum() - 1, -1))
        self.price: list[Numbers] = []
        known: dict[object, Numbers] = {}
        self._prices = prices
        self._alike: dict[object, list[int]] = {}
        self._key: list[object] = []
        self._exact: set[tuple[int, int, int]] = set()
        holding, copy_holding, exposed = shared.holding, shared.copy_holding, shared.exposed
        for value, numbers in enumerate(self.numbers):
            meta, weight = shared.values[value], shared.value_weight[value]
            alike = (
                meta,
                copy_holding and copy_holding[value],
                exposed and exposed[value],
                value in shared.ties,
                value in shared.unsent,
                value in shared.unsliced,
            )
            key = numbers.tobytes(), weight, alike
            if key not in known:
                known[key] = prices.table(numbers, value)
            self.price.append(known[key])
            self._alike.setdefault(alike, []).append(value)
            self._key.append(alike)
        rows: dict[int, list[list[float]]] = {}
        self.rows: list[list[list[float]]] = []
        for price in self.price:
            if id(price) not in rows:
                rows[id(price)] = price.tolist()
            self.rows.append(rows[id(price)])
        self.needs: list[dict[int, list[Numbers]]] = []
        self.makes: list[dict[int, Numbers]] = []
        for part, node in enumerate(shared.nodes):
            operands, results = states[part].operands.T, states[part].results.T
            needs: dict[int, list[Numbers]] = {}
            for slot, value in shared.uses[part]:
                needs.setdefault(value, []).append(place[value][operands[slot]])
            self.needs.append(needs)
            self.makes.append(
                {value: place[value][column] for value, column in zip(node.results, results, strict=True)}
            )
        if holding:
            for part, node in enumerate(shared.nodes):
                for position, value in enumerate(node.results):
                    held = prices.held(self.states[part].results[:, position], value)
                    cost[part] = cost[part] + holding[value] * held
        self.makers = {
            value: np.unique(makes, return_inverse=True) for found in self.makes for value, makes in found.items()
        }
        self.need_rows = [{v: [a.tolist() for a in arrays] for v, arrays in needs.items()} for needs in self.needs]
        self.make_rows = [{v: a.tolist() for v, a in makes.items()} for makes in self.makes]
        self.cost_rows = [c.tolist() for c in cost]
        self.choice = [-1] * len(shared.nodes)
        self.made = [0] * len(shared.values)
        self.wanted: list[dict[int, int]] = [{} for _ in shared.values]
        self.touched = [
            list(dict.fromkeys((*self.needs[part], *node.results))) for part, node in enumerate(shared.nodes)
        ]
        self._wants = [
            [(self.wanted[value], row) for value, rows in needs.items() for row in rows] for needs in self.need_rows
        ]

    def assume(self, choice: Iterable[int]) -> None:
        """Choose a state for every part."""
        for part, state in enumerate(choice):
            self.choose(part, state)

    def choose(self, part: int, state: int) -> None:
        """Choose a state for a part."""
        former = self.choice[part]
        if former == state:
            return
        self.choice[part] = state
        for wanted, needs in self._wants[part]:
            new = needs[state]
            if former >= 0:
                old = needs[former]
                if old == new:
                    continue
                if wanted[old] == 1:
                    del wanted[old]
                else:
                    wanted[old] -= 1
            wanted[new] = wanted.get(new, 0) + 1
        for value, makes in self.make_rows[part].items():
            self.made[value] = makes[state]

    def value_cost(self, value: int) -> float:
        """Return what the reshards of a value cost as decided now."""
        rows, wanted = self.rows[value], self.wanted[value]
        row = rows[self.made[value]]
        direct = 0.0
        for placement in wanted:
            direct += row[placement]
        if not direct or len(wanted) == 1:
            return direct
        for copy in wanted:
            if row[copy]:
                through, held = row[copy], rows[copy]
                for placement in wanted:
                    through += min(row[placement], held[placement])
                if through < direct:
                    direct = through
        return direct

    def total(self) -> float:
        """Return the cost of the program as decided now."""
        cost = 0.0
        for costs, state in zip(self.cost_rows, self.choice, strict=True):
            cost += costs[state]
        return cost + sum(map(self.value_cost, range(len(self.made))))

    def learn(self) -> list[int]:
        """Take the planner's prices for the reshards of the decision, and return the values of which prices changed."""
        changed: dict[int, None] = {}
        for value, wanted in enumerate(self.wanted):
            made = self.made[value]
            sources = [made, *wanted] if len(wanted) > 1 else [made]
            for before in dict.fromkeys(sources):
                for after in wanted:
                    if before != after:
                        changed.update(dict.fromkeys(self._learn(value, before, after)))
        return list(changed)

    def _learn(self, value: int, before: int, after: int) -> list[int]:
        """Take the planner's price for one reshard of a value and of those like it; return which have another price."""
        alike, (source, target) = self._alike[self._key[value]], self.numbers[value][[before, after]]
        if (alike[0], source, target) in self._exact:
            return []
        self._exact.add((alike[0], source, target))
        exact = self._prices.exact(source, target, value) / self.shared.value_weight[value]
        changed, tables = [], set[int]()  # equal values have one table
        for other in alike:
            row, column = self._place[other][[source, target]]
            if row < 0 or column < 0:
                continue
            price, seconds = self.price[other], exact * self.shared.value_weight[other]
            if abs(seconds - price[row, column]) > 1e-9 * seconds:
                price[row, column] = self.rows[other][row][column] = seconds
                tables.add(id(price))
            if id(price) in tables:
                changed.append(other)
        return changed

    def gain(self, moves: dict[int, int]) -> float:
        """Move parts to states, and return what that saves; they stay there."""
        values: dict[int, None] = {}
        before = after = 0.0
        for part, state in moves.items():
            costs = self.cost_rows[part]
            before += costs[self.choice[part]]
            after += costs[state]
            for value in self.touched[part]:
                values[value] = None
        for value in values:
            before += self.value_cost(value)
        for part, state in moves.items():
            self.choose(part, state)
        for value in values:
            after += self.value_cost(value)
        return before - after
