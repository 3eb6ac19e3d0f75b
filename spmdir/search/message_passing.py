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
    """A part with its *ends*, the links to the values that it shares with other parts.

    The placements of all ends are concatenated, in the order of `ends`. Arrays [placement] below have this order.

    Attributes:
        cost: [state], seconds without the reshards of the values that this part shares with other parts.
        message: [placement], the messages of all ends, in seconds.
        is_leaf: whether the part shares only one value, with a part that shares several. A leaf sends its whole cost
            to that value, once, and passes skip it.
    """

    def __init__(self, cost: Numbers):
        self.cost, self.is_leaf = cost, False
        self.ends: list[tuple[ValueFactor, End]] = []

    @property
    def size(self) -> int:
        """Return the number of placements of all ends."""
        return sum(end.size for _, end in self.ends)

    def use_messages(self, messages: Numbers) -> None:
        """Keep the messages of all ends in one array, and index the states by placement. A leaf sends its cost.

        Call it once, when all ends are known. For example, the states of a part with one end have the placements 1, 0
        and 1. Then `_states_by_placement` is 1, 0, 2: state 1 has placement 0, and the states 0 and 2 have placement 1.
        `_placement_starts` is 0, 1.

        Args:
            messages: [placement], zeros.
        """
        ends = [end for _, end in self.ends]
        sizes, state_count = [end.size for end in ends], len(self.cost)
        self._offsets = [sum(sizes[:index]) for index in range(len(sizes))]  # [end], its first placement
        self.message = messages
        for offset, end in zip(self._offsets, ends, strict=True):
            end.message = messages[offset : offset + end.size]
        # [end, state], the placement.
        self._placement_of_state = np.array(
            [end.placement_of_state + offset for offset, end in zip(self._offsets, ends, strict=True)], dtype=np.intp
        ).reshape(len(ends), state_count)
        # For each end, the states in the order of their placements, and where the states of each placement begin.
        # With these, `reduceat` computes the least cost of the states with each placement.
        sorted_states, starts = [np.zeros(0, dtype=np.intp)], [np.zeros(0, dtype=np.intp)]
        for index, end in enumerate(ends):
            states = np.argsort(end.placement_of_state, kind="stable")
            starts_of_end = np.searchsorted(end.placement_of_state[states], np.arange(end.size))
            sorted_states.append(states)
            starts.append(index * state_count + starts_of_end)
        self._states_by_placement, self._placement_starts = np.concatenate(sorted_states), np.concatenate(starts)
        # For each direction [placement], the fraction of the excess to send: equal for all ends with a later part.
        self._shares = []
        for direction in (0, 1):
            has_later_part = [not end.is_last[direction] for end in ends]
            self._shares.append(np.repeat(np.array(has_later_part) / max(sum(has_later_part), 1), sizes))
        if self.is_leaf:
            self.message[:] = _least_of(self.cost[self._states_by_placement], self._placement_starts)

    def min_marginals(self) -> tuple[Numbers, Numbers]:
        """Return two arrays: [state], its cost with that of the values, and [placement], the cost of the value alone.

        Both omit the messages of this part. The costs of values contain the messages of the other parts.
        """
        if not self.ends:
            return self.cost, np.zeros(0)
        value_costs = np.concatenate([factor.least(end) for factor, end in self.ends])
        return self.cost + np.add.reduce(value_costs[self._placement_of_state]), value_costs

    def least_own_cost(self) -> float:
        """Return the minimum over the states of cost minus messages: what the part adds to the lower bound."""
        return float(_least(self.cost - np.add.reduce(self.message[self._placement_of_state])))

    def least_value_cost(self, value_costs: Numbers) -> float:
        """Return the least cost of all values of this part, if each may take its cheapest placement.

        A value may take a placement that no state of the part has with the placements of the other values, so the sum
        is a lower bound. It includes the messages.
        """
        return float(np.add.reduce(_least_of(value_costs + self.message, self._offsets))) if self.ends else 0.0

    def send(self, excess: Numbers, value_costs: Numbers, direction: int) -> None:
        """Set the messages of all ends, so that later parts receive the excess of each state.

        The part takes over the costs of its values. Each end whose value has a later part then gets an equal fraction
        of the excess: for each placement, that of the cheapest state with this placement. For example, states 0 and 1
        have the placements 0 and 1 at the only end, an excess of 0 and 2 s, and a value that costs 0 and 4 s there. The
        message becomes (0 − 0, 2 − 4).

        Args:
            excess: [state], the cost including the values, minus that of the cheapest state.
            value_costs: [placement], as of `min_marginals`.
            direction: 0 in program order, 1 in reverse.
        """
        if self.ends:
            np.subtract(
                _least_of(excess[self._states_by_placement], self._placement_starts) * self._shares[direction],
                value_costs,
                out=self.message,
            )
            for _, end in self.ends:
                end.copy_costs = None

    def decide(self, state: int | None) -> None:
        """Record the decided state at all ends; None makes the part undecided again."""
        for _, end in self.ends:
            end.decided = None if state is None else int(end.placement_of_state[state])
            end.copy_costs = None


class MessagePassing:
    """The messages of a program.

    Attributes:
        bound: seconds, the lower bound after the last pass; 0 before. A decision costs less only if users share several
            copies of one value, which the costs of values do not allow.
    """

    def __init__(self, assignment: Assignment):
        self.assignment, self.bound = assignment, 0.0
        self._rising_turns = 0  # the number of turns in a row that raised the bound
        self._is_back = True  # whether the last pass was in reverse
        self._parts = list(map(_Part, assignment.cost))
        self._factors: dict[int, ValueFactor] = {}  # value that several parts share → its factor
        members: dict[int, Sequence[int]] = {}  # value → the parts that share it, the producer first
        for value in range(len(assignment.price)):
            self._add_cost_of_own_use(value)
            producer, users = assignment.shared.producer[value][0], assignment.shared.users[value]
            parts = list(dict.fromkeys([producer, *(user for user, _ in users)]))
            if len(parts) > 1:
                members[value] = parts
        shared_values = Counter(part for parts in members.values() for part in parts)  # part → their number
        known: dict[object, UsePrices] = {}
        for value, parts in members.items():
            branching = [part for part in parts if shared_values[part] > 1]
            self._add_factor(value, parts, branching, known)
        # All messages are in one array, of which each part has a slice.
        self._messages = np.zeros(sum(part.size for part in self._parts))
        offset = 0
        for part in self._parts:
            part.use_messages(self._messages[offset : offset + part.size])
            offset += part.size
        self._previous = self._messages.copy()  # the messages before the last turn

    def _add_cost_of_own_use(self, value: int) -> None:
        """If the producer of a value uses the value too, add the seconds of these reshards to the producer's cost."""
        assignment = self.assignment
        producer = assignment.shared.producer[value][0]
        if value in assignment.needs[producer]:
            added_cost = operand_cost(
                assignment.price[value], assignment.produces[producer][value], assignment.needs[producer][value]
            )
            self._parts[producer].cost = self._parts[producer].cost + added_cost

    def _add_factor(
        self, value: int, members: Sequence[int], branching: Sequence[int], known: dict[object, UsePrices]
    ) -> None:
        """Add the factor of a value, with one end for each part that shares it.

        Args:
            members: the parts that share the value; the producer is first.
            branching: those of them that share other values too. If there are any, the other members are leaves.
            known: as of `ValueFactor.read`.
        """
        assignment = self.assignment
        produced, placement_of_state = assignment.producer_placements[value]
        producer = End(placement_of_state, len(produced))
        uses = [Use(assignment.needs[user][value]) for user in members[1:]]
        factor = self._factors[value] = ValueFactor(produced, producer, uses, assignment.price[value], known)
        for member, end in zip(members, (producer, *uses), strict=True):
            visited_members = branching or members  # passes skip leaves
            end.is_last = member >= max(visited_members), member <= min(visited_members)
            part = self._parts[member]
            part.ends.append((factor, end))
            part.is_leaf = bool(branching) and member not in branching

    def read(self, values: Collection[int]) -> None:
        """Read changed prices of values from the assignment. Values that only one part uses are ignored."""
        known: dict[object, UsePrices] = {}
        for value in values:
            if value in self._factors:
                self._factors[value].read(self.assignment.price[value], known)

    def improve(self) -> Iterator[bool]:
        """Run a turn: momentum, then a pass in program order and one in reverse. Yield after each pass.

        All decisions of parts are removed first. Momentum grows with the number of turns in a row that raised the
        bound, and a turn that does not raise it ends the momentum.

        Yields: whether it was the reverse pass.
        """
        # 0, 0.4, 0.57, 0.67, …, up to MOMENTUM
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
        """Visit the parts in the current direction: each sends its excess. The sum of the least costs is the bound."""
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
        """Yield (part, state) for parts in `order`: the state with the lowest bound, except for the chosen state.

        A part is left out if it is a leaf, has one state, or if all decisions with another state cost at least `limit`.

        Args:
            choice: part → the chosen state.
            limit: seconds.
        """
        own_cost = sum(part.least_own_cost() for part in self._parts)
        bound = own_cost + sum(factor.lower_bound() for factor in self._factors.values())
        for index in order:
            part = self._parts[index]
            if part.is_leaf or len(part.cost) == 1:
                continue
            lower_bounds = self._lower_bounds(part, bound)
            lower_bounds[choice[index]] = np.inf
            state = int(lower_bounds.argmin())
            if lower_bounds[state] < limit:
                yield index, state

    def _lower_bounds(self, part: _Part, bound: float) -> Numbers:
        """Return for each state of a part a lower bound on the cost of all decisions with this state.

        The bound of the program contains the least cost of the part and the least costs of its values. The cost of the
        state with its values replaces these terms.

        Args:
            bound: the lower bound of the program, given the parts that are decided.
        """
        cost, value_costs = part.min_marginals()
        return cost + (bound - part.least_own_cost() - part.least_value_cost(value_costs))

    @contextmanager
    def restricted(self, index: int, state: int) -> Iterator[None]:
        """Restrict the part `index` to one state inside a `with` block.

        At the end, messages and bound are as before, and no part is decided.
        """
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
        """Yield decisions, part → state, whose lower bound is below the limit, by branch and bound.

        Parts are decided in program order, cheapest state first. A state is skipped if its lower bound, given the parts
        decided before it, reaches the limit. A decision that is not yielded therefore costs at least the lowest limit
        so far, unless its users share several copies of one value.

        Args:
            limit: called for each state that is tried. Seconds; −inf ends the search.
        """
        for part in self._parts:
            part.decide(None)
        own_cost = sum(part.least_own_cost() for part in self._parts)
        return self._decisions_below(
            limit, [], own_cost + sum(factor.lower_bound() for factor in self._factors.values())
        )

    def _decisions_below(self, limit: Callable[[], float], choice: list[int], bound: float) -> Iterator[list[int]]:
        """Yield the decisions of `decisions_below` that begin with `choice`, decided already, at the bound `bound`."""
        if len(choice) == len(self._parts):
            yield choice
            return
        part = self._parts[len(choice)]
        lower_bounds = self._lower_bounds(part, bound)
        for state in lower_bounds.argsort().tolist():
            if lower_bounds[state] >= limit():
                break
            part.decide(state)
            yield from self._decisions_below(limit, [*choice, state], float(lower_bounds[state]))
        part.decide(None)

    def decide(self, order: Sequence[int] | None = None) -> list[int]:
        """Return a state for each part, decided in this order; by default in the order opposite to the last pass.

        Each part takes its cheapest state, given the parts decided before it and the messages of the others. Leaves
        come last, because their messages contain their own costs only. Afterwards, no part is decided.

        Args:
            order: all parts, in the order of their decisions.
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
