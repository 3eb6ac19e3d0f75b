"""Message passing between the parts of a program: a lower bound on the cost of all decisions, and good decisions.

A *part* has states, one of which is chosen. A *value* links the part that produces it with the parts that use it. Its
reshards cost time if a user needs another placement than the producer has. Each link has a *message*: one
number for each placement. The message is added to the cost of the value and subtracted from the cost of the part, so
the cost of a decision does not change. The sum of the minima of all parts and all values is a lower bound.

For example, part A produces a value in placement 0 or 1, at a cost of 0 or 1 seconds. Part B uses it in placement 0 or
1, at a cost of 1 or 0 seconds. A reshard costs 2 seconds.

    no messages: min(0, 1) + min(1, 0) + min(0, 2) = 0 seconds is a lower bound, too low
    A sends what its states cost above the cheapest, (0, 1)
    B adds what its value costs for each of its states: min(0 + 0, 1 + 2) = 0 and min(0 + 2, 1 + 0) = 1
    B's states cost 1 + 0 and 0 + 1, so the bound is 1 second: the cost of the best decision

The algorithm is sequential reweighted message passing (V. Kolmogorov, "A new look at reweighted message passing",
2015). In program order and back, each part adds the costs of its values to the costs of its states (*min-marginals*).
It sends the extra cost of each state over the cheapest to the values that it shares with later parts, in equal
fractions. The bound never falls in such a pass. Both passes together are a *turn*. After a turn, each message moves on
by a fraction of its last change (Nesterov's momentum). This may lower the bound, but it usually rises several times as
fast.

After each pass, the parts are decided one after another. Each takes its cheapest state, given the parts that are
decided already and the messages of the others. If the bound is tight, the decision is optimal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from spmdir.search.assignment import Assignment
from spmdir.search.forest_moves import operand_cost
from spmdir.search.joint_placements import Numbers
from spmdir.search.reshard_prices import IMPOSSIBLE
from spmdir.search.value_factor import End, Use, UsePrices, ValueFactor

MOMENTUM = 0.8
"""The largest fraction of a message's last change that is added once more."""

_least, _least_of = np.minimum.reduce, np.minimum.reduceat


class _Part:
    """A part with its ends. The placements of all ends are concatenated in one array.

    Attributes:
        cost: [state], seconds without the reshards of the values that this part shares with other parts.
        message: [placement], the messages of all ends.
        is_leaf: whether the part shares only one value. It sends its whole cost there, once.
    """

    def __init__(self, cost: Numbers):
        self.cost, self.is_leaf = cost, False
        self.ends: list[tuple[ValueFactor, End]] = []

    @property
    def size(self) -> int:
        """Return the number of placements of all ends."""
        return sum(end.size for _, end in self.ends)

    def join(self, messages: Numbers) -> None:
        """Make the messages of all ends views of one array."""
        sizes = [end.size for _, end in self.ends]
        self._offsets = offsets = [sum(sizes[:offset]) for offset in range(len(sizes))]
        self.message = messages
        for offset, (_, end) in zip(offsets, self.ends, strict=True):
            end.message = messages[offset : offset + end.size]
        numbered_ends = [(offset, end) for offset, (_, end) in zip(offsets, self.ends, strict=True)]
        self._placement_of_state = np.array(
            [end.placement_of_state + offset for offset, end in numbered_ends], dtype=np.intp
        ).reshape(len(numbered_ends), len(self.cost))
        order = [np.argsort(end.placement_of_state, kind="stable") for _, end in numbered_ends]
        self._states_by_placement = np.concatenate(order) if order else np.zeros(0, dtype=np.intp)
        states = len(self.cost)
        starts = [
            index * states + np.searchsorted(end.placement_of_state[by_key], np.arange(end.size))
            for index, ((_, end), by_key) in enumerate(zip(numbered_ends, order, strict=True))
        ]
        self._placement_starts = np.concatenate(starts) if starts else np.zeros(0, dtype=np.intp)
        self._shares = []
        for direction in (0, 1):
            to_come = [not end.is_last[direction] for _, end in numbered_ends]
            self._shares.append(np.repeat(np.array(to_come) / max(sum(to_come), 1), sizes))
        if self.is_leaf:
            self.message[:] = _least_of(self.cost[self._states_by_placement], self._placement_starts)

    def min_marginals(self) -> tuple[Numbers, Numbers]:
        """Return the cost of each state including its values, and the cost of the values by placement."""
        if not self.ends:
            return self.cost, np.zeros(0)
        value_costs = np.concatenate([factor.least(end) for factor, end in self.ends])
        return self.cost + np.add.reduce(value_costs[self._placement_of_state]), value_costs

    def least_own_cost(self) -> float:
        """Return the minimum over the states of cost minus messages, without the values."""
        return float(_least(self.cost - np.add.reduce(self.message[self._placement_of_state])))

    def least_value_cost(self, value_costs: Numbers) -> float:
        """Return the least cost of all values of this part, if each may take its cheapest placement.

        A value may take a placement that no state of the part has with the placements of the other values, so the sum
        is a lower bound. It includes the messages.
        """
        return float(np.add.reduce(_least_of(value_costs + self.message, self._offsets))) if self.ends else 0.0

    def send(self, excess: Numbers, value_costs: Numbers, direction: int) -> None:
        """Send the excess of each state to the values that later parts in this direction share."""
        if self.ends:
            np.subtract(
                _least_of(excess[self._states_by_placement], self._placement_starts) * self._shares[direction],
                value_costs,
                out=self.message,
            )
            for _, end in self.ends:
                end.copy_costs = None

    def decide(self, state: int | None) -> None:
        """Record the decided state at all ends; None removes it."""
        for _, end in self.ends:
            end.decided = None if state is None else int(end.placement_of_state[state])
            end.copy_costs = None


class MessagePassing:
    """The messages of a program.

    Attributes:
        bound: seconds, after the last pass. No decision costs less, except that users which share several copies of one
            value may cost less than the bound assumes.
    """

    def __init__(self, assignment: Assignment):
        self.assignment, self.bound, self._rising_turns, self._is_back = assignment, 0.0, 0, True
        self._parts, self._factors = list(map(_Part, assignment.cost)), dict[int, ValueFactor]()
        members = {value: self._members(value) for value in range(len(assignment.price))}
        shared = Counter(part for parts in members.values() for part in parts)
        known: dict[object, UsePrices] = {}
        for value, parts in members.items():
            if parts:
                self._add(value, parts, [part for part in parts if shared[part] > 1], known)
        self._messages = np.zeros(sum(part.size for part in self._parts))
        offset = 0
        for part in self._parts:
            part.join(self._messages[offset : offset + part.size])
            offset += part.size
        self._previous = self._messages.copy()

    def _members(self, value: int) -> Sequence[int]:
        """Return the producer of a value and the other parts that use it; empty if only its producer uses it."""
        assignment, shared = self.assignment, self.assignment.shared
        producer = shared.producer[value][0]
        members = dict.fromkeys([producer, *(user for user, _ in shared.users[value])])
        if value in assignment.needs[producer]:
            added_cost = operand_cost(
                assignment.price[value], assignment.produces[producer][value], assignment.needs[producer][value]
            )
            self._parts[producer].cost = self._parts[producer].cost + added_cost
        return list(members) if len(members) > 1 else ()

    def _add(
        self, value: int, members: Sequence[int], shared_parts: Sequence[int], known: dict[object, UsePrices]
    ) -> None:
        """Add the factor of a value.

        Args:
            shared_parts: the parts that share other values too.
            known: as of `ValueFactor`.
        """
        assignment = self.assignment
        produced, placement_of_state = assignment.producer_placements[value]
        producer = End(placement_of_state, len(produced))
        uses = [Use(assignment.needs[user][value]) for user in members[1:]]
        factor = self._factors[value] = ValueFactor(produced, producer, uses, assignment.price[value], known)
        for member, end in zip(members, (producer, *uses), strict=True):
            end.is_last = member >= max(shared_parts or members), member <= min(shared_parts or members)
            part = self._parts[member]
            part.ends.append((factor, end))
            part.is_leaf = bool(shared_parts) and member not in shared_parts

    def read(self, values: Collection[int]) -> None:
        """Read changed prices of values from the assignment."""
        known: dict[object, UsePrices] = {}
        for value in values:
            if value in self._factors:
                self._factors[value].read(self.assignment.price[value], known)

    def improve(self) -> Iterator[bool]:
        """Run one pass in program order and one in reverse; yield after each whether it was the reverse pass."""
        momentum = min(MOMENTUM, self._rising_turns / (self._rising_turns + 1.5))
        messages = self._messages.copy()
        self._messages += momentum * (messages - self._previous)
        self._previous = messages
        for part in self._parts:
            part.decide(None)
        previous_bound = self.bound
        for self._is_back in (False, True):
            self._pass()
            yield self._is_back
        self._rising_turns = self._rising_turns + 1 if self.bound > previous_bound else 0

    def _pass(self) -> None:
        bound = 0.0
        for part in reversed(self._parts) if self._is_back else self._parts:
            if part.is_leaf:
                continue
            cost, value_costs = part.min_marginals()
            least = float(_least(cost))
            part.send(cost - least, value_costs, int(self._is_back))
            bound += least
        self.bound = bound

    def alternatives(self, choice: Sequence[int], limit: float, order: Iterable[int]) -> Iterator[tuple[int, int]]:
        """Yield (part, state) for the parts in `order`: the state other than the chosen one with the lowest bound.

        Parts are left out if every decision with another state costs at least `limit`.
        """
        own_cost = sum(part.least_own_cost() for part in self._parts)
        bound = own_cost + sum(factor.lower_bound() for factor in self._factors.values())
        for index in order:
            part = self._parts[index]
            if part.is_leaf or len(part.cost) == 1:
                continue
            cost, value_costs = part.min_marginals()
            lower_bounds = cost + (bound - part.least_own_cost() - part.least_value_cost(value_costs))
            lower_bounds[choice[index]] = np.inf
            state = int(lower_bounds.argmin())
            if lower_bounds[state] < limit:
                yield index, state

    @contextmanager
    def restricted(self, index: int, state: int) -> Iterator[None]:
        """Restrict a part to one state. Afterwards, messages and bound are as before."""
        part, bound, rising_turns = self._parts[index], self.bound, self._rising_turns
        cost, messages, previous = part.cost, self._messages.copy(), self._previous
        part.cost = np.where(np.arange(len(cost)) == state, cost, cost + IMPOSSIBLE)
        self._rising_turns = 0
        try:
            yield
        finally:
            part.cost, self._messages[:], self._previous = cost, messages, previous
            self.bound, self._rising_turns = bound, rising_turns
            for member in self._parts:
                member.decide(None)

    def decisions_below(self, limit: Callable[[], float]) -> Iterator[list[int]]:
        """Yield decisions that cost less than the limit. `limit()` is called for each state that is tried.

        This is branch and bound: parts are decided in program order, cheapest state first. A state is skipped if its
        lower bound, given the parts decided before it, reaches the limit. A decision that is not yielded therefore
        costs at least the lowest limit so far, unless its users share several copies of one value.
        """
        for part in self._parts:
            part.decide(None)
        own_cost = sum(part.least_own_cost() for part in self._parts)
        return self._decisions_below(
            limit, [], own_cost + sum(factor.lower_bound() for factor in self._factors.values())
        )

    def _decisions_below(self, limit: Callable[[], float], choice: list[int], bound: float) -> Iterator[list[int]]:
        if len(choice) == len(self._parts):
            yield choice
            return
        part = self._parts[len(choice)]
        cost, value_costs = part.min_marginals()
        lower_bounds = cost + (bound - part.least_own_cost() - part.least_value_cost(value_costs))
        for state in lower_bounds.argsort().tolist():
            if lower_bounds[state] >= limit():
                break
            part.decide(state)
            yield from self._decisions_below(limit, [*choice, state], float(lower_bounds[state]))
        part.decide(None)

    def decide(self, order: Sequence[int] | None = None) -> list[int]:
        """Return a state for each part, decided in this order; by default opposite to the last pass.

        Each part takes its cheapest state, given the parts decided before it and the messages of the others. Leaves
        come last, because their messages hold nothing about the rest of the program.
        """
        order = order or range(len(self._parts))[:: 1 if self._is_back else -1]
        choice = [0] * len(self._parts)
        for index in sorted(order, key=lambda index: self._parts[index].is_leaf):
            part = self._parts[index]
            choice[index] = int(part.min_marginals()[0].argmin())
            part.decide(choice[index])
        for part in self._parts:
            part.decide(None)
        return choice
