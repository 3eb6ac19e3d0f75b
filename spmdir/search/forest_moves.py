"""Moves of many parts at once: the best states of a set of parts that form a forest, all other parts fixed.

Consider the graph whose vertices are parts and values, with an edge where a part produces or uses a value. Parts are
freed one after another; a part that would close a cycle of free parts stays fixed. The free parts form a forest, so
dynamic programming finds their best states: costs go up from the leaves to the root, decisions go down.

For example, in `y = f(x); z = g(x)` all three parts can be free: x links them, and there is no cycle. If h uses both y
and z, the four parts form a cycle, and one of them stays fixed.

Users of a value may reshard from the placement that it is produced in, or from one copy in another placement. Reshards
that fixed users need anyway are free for the others. The result is exact unless the best decision shares several
copies of one value. Therefore a move is kept only if the cost of the whole assignment falls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial, reduce

import numpy as np

from spmdir.search.assignment import Assignment
from spmdir.search.joint_placements import Numbers


def improve_forest(assignment: Assignment, order: Iterable[int], least_saving: float) -> float:
    """Free parts in this order, move them to their best states, and return the seconds saved.

    Args:
        assignment: its chosen states are changed.
        order: all parts, in any order. A part that would close a cycle of free parts is not moved.
        least_saving: seconds; connected moves that save no more are undone.
    """
    best = _Forest(assignment, order).best()
    return adopt(
        assignment, {part: state for part, state in best.items() if state != assignment.choice[part]}, least_saving
    )


def adopt(assignment: Assignment, moves: dict[int, int], least_saving: float) -> float:
    """Apply moves, and return the seconds saved. Moves of parts that share values are kept or undone together.

    Args:
        assignment: its chosen states are changed.
        moves: part → its new state.
        least_saving: seconds; connected moves that save no more are undone.
    """
    saved = 0.0
    for region in _regions(assignment, moves):
        previous_states = {part: assignment.choice[part] for part in region}
        gain = assignment.gain(region)
        if gain > least_saving:
            saved += gain
        else:
            for part, state in previous_states.items():
                assignment.choose(part, state)
    return saved


def _regions(assignment: Assignment, moves: dict[int, int]) -> list[dict[int, int]]:
    """Return `moves` as connected components: parts that share a value are in one component (by union-find).

    For example, the parts 1 and 2 share a value, and part 3 shares none with them: {1: s, 2: t} and {3: u}.
    """
    part_of_value: dict[int, int] = {}
    parent: dict[int, int] = {part: part for part in moves}

    def find(part: int) -> int:
        """Return the part that represents the component of `part`, and shorten the path to it."""
        while parent[part] != part:
            parent[part] = parent[parent[part]]
            part = parent[part]
        return part

    for part in moves:
        for value in assignment.touched[part]:
            first_part = part_of_value.setdefault(value, part)
            if first_part != part:
                parent[find(part)] = find(first_part)
    regions: dict[int, dict[int, int]] = {}
    for part, state in moves.items():
        regions.setdefault(find(part), {})[part] = state
    return list(regions.values())


class _Forest:
    """The free parts of an assignment, and the values that they share.

    Attributes:
        free: free part → [state], its cost.
        members: value → the free parts that produce or use it.
        fixed_needs: value → the placements that fixed users need.
        price: value → [before, after], seconds of a reshard, given the reshards for fixed users.
        message: free part → [state], its cost plus the costs of the parts below it.
    """

    def __init__(self, assignment: Assignment, order: Iterable[int]):
        self.assignment = assignment
        self.free: dict[int, Numbers] = {}
        self.members: dict[int, list[int]] = {}
        self._grow(order)
        self.fixed_needs: dict[int, list[int]] = {}
        self.price: dict[int, Numbers] = {}
        self._find_fixed_needs()

    def _grow(self, order: Iterable[int]) -> None:
        """Free each part that has several states and closes no cycle of free parts."""
        assignment, parent = self.assignment, {}  # a union-find forest: values that free parts connect

        def find(value: int) -> int:
            """Return the value that represents the component of `value`, and shorten the path to it."""
            root = value
            while parent[root] != root:
                root = parent[root]
            while parent[value] != root:
                parent[value], value = root, parent[value]
            return root

        for part in order:
            if len(assignment.cost_rows[part]) == 1:
                continue
            values = assignment.touched[part]
            roots = [find(parent.setdefault(value, value)) for value in values]
            if len({*roots}) < len(roots):
                continue
            for root in roots[1:]:
                parent[root] = roots[0]
            self.free[part] = assignment.cost[part]
            for value in values:
                self.members.setdefault(value, []).append(part)

    def _find_fixed_needs(self) -> None:
        """Set `fixed_needs` and `price`.

        The reshards to the placements that fixed users need are made anyway, so free users do not pay for them.
        """
        assignment = self.assignment
        for value, free_parts in self.members.items():
            need_counts = dict(assignment.need_counts[value])  # of all users; those of free parts are subtracted
            if need_counts:
                for part in free_parts:
                    for needs in assignment.need_rows[part].get(value, ()):
                        need_counts[needs[assignment.choice[part]]] -= 1
            fixed_needs = [placement for placement, count in need_counts.items() if count]
            self.fixed_needs[value] = fixed_needs
            price = assignment.price[value]
            if fixed_needs:
                # Copies for fixed users exist already, so other users may reshard from them.
                price = np.minimum(price, price[fixed_needs].min(0))
            self.price[value] = price

    def best(self) -> dict[int, int]:
        """Return the best state of each free part.

        The free parts form trees. For each tree, costs are added up from the leaves to the root, the first free part of
        the tree. Then states are chosen from the root to the leaves.
        """
        self.message: dict[int, Numbers] = {part: self._cost_alone(part) for part in self.free}
        chosen: dict[int, int] = {}
        for root in self.free:
            if root in chosen:
                continue  # it belongs to the tree of an earlier root
            bottom_up: list[_LinkingValue] = []
            for value, parent in reversed(self._links_below(root)):
                bottom_up.append(_LinkingValue(self, value, parent))
                self.message[parent] = self.message[parent] + bottom_up[-1].cost_for_parent()
            chosen[root] = int(self.message[root].argmin())
            for link in reversed(bottom_up):
                chosen.update(link.best_states_below(chosen[link.parent]))
        return chosen

    def _links_below(self, root: int) -> list[tuple[int, int]]:
        """Return (value, the part above it) for the values that link the parts of a tree, from the root down.

        For example, a produces x, which b and c use, and c produces y, which d uses. The links below a are (x, a) and
        (y, c).
        """
        links: list[tuple[int, int]] = []
        stack: list[tuple[int, int | None]] = [(root, None)]  # (part, the value that links it to the part above)
        while stack:
            part, value_above = stack.pop()
            for value in self.assignment.touched[part]:
                members = self.members[value]
                if value != value_above and len(members) > 1:
                    links.append((value, part))
                    stack += [(member, value) for member in members if member != part]
        return links

    def _cost_alone(self, part: int) -> Numbers:
        """Return an array [state]: the cost of a free part, and of those reshards that depend on no other free part.

        These are reshards of its results for fixed users, of its own uses of its results, and of operands that it
        shares with fixed parts only.
        """
        assignment, cost = self.assignment, self.free[part]
        for value, produced in assignment.produces[part].items():
            for placement in self.fixed_needs[value]:
                cost = cost + assignment.price[value][produced, placement]
        for value, needs in assignment.needs[part].items():
            produced = assignment.produces[part].get(value)
            if produced is None and len(self.members[value]) == 1:
                produced = assignment.produced[value]
            if produced is not None:
                cost = cost + operand_cost(self.price[value], produced, needs)
        return cost


def _operand_cost(
    price: Numbers, cost_from_produced_to: Callable[[Numbers], Numbers], needs: Sequence[Numbers]
) -> Numbers:
    """Return an array [state]: the cost of the reshards of one value to the operands of one part.

    Each operand is resharded from the value, or from the copy that is made for one of these operands. For example, two
    operands need X and Y. The reshards from the produced placement to X and Y cost 5 and 6, and X → Y costs 1. With the
    copy in X, the cost is 5 + min(6, 1) = 6; if Y → X costs 3, the copy in Y costs 6 + min(5, 3) = 9. The result is 6.

    Args:
        price: [before, after], of resharding the value.
        cost_from_produced_to: [state] placements → the cost to reshard the value from its produced placement.
        needs: for each operand, [state] the placement that it needs.
    """
    costs_from_produced = list(map(cost_from_produced_to, needs))
    costs_by_copy = []
    for copy, cost in zip(needs, costs_from_produced, strict=True):
        for position, (needed, cost_from_produced) in enumerate(zip(needs, costs_from_produced, strict=True)):
            if needed is not copy:
                # An operand that needs the same placement as an earlier one costs nothing.
                is_same = [earlier == needed for earlier in needs[:position]]
                cost = cost + np.where(np.any(is_same, 0), 0.0, np.minimum(cost_from_produced, price[copy, needed]))
        costs_by_copy.append(cost)
    return reduce(np.minimum, costs_by_copy)


def operand_cost(price: Numbers, produced: Numbers | int, needs: Sequence[Numbers]) -> Numbers:
    """Return for each state of a part the cost of its operands that are one value.

    Args:
        produced: the placement that the value is produced in, or [state], if the part produces it.
    """
    return _operand_cost(price, lambda placements: price[produced, placements], needs)


def operand_costs(price: Numbers, needs: Sequence[Numbers], produced: Numbers | int | slice = slice(None)) -> Numbers:
    """Return an array [produced, state]: the cost of the operands of one part that are one value.

    Args:
        produced: the placements that the value may be produced in; all if omitted.
    """
    return _operand_cost(price, partial(price[produced].take, axis=-1), needs)


class _LinkingValue:
    """A value that links a free part, its *parent* in the tree, with the free parts below it.

    The parent is the producer or a user of the value. All other free parts of the value are below.

    Attributes:
        is_above: whether the parent is the producer.
        is_free: whether the producer is a free part, the parent or a part below.
        users: the users below.
        produced: the placements that the value may be produced in.
        produced_cost: [produced], the least cost of the producer if it is below, else 0.
        price: [before, after], seconds of a reshard of the value.
        price_from_produced: the rows of `price` for the placements in `produced`.
        may_copy: whether a copy may pay, because several free parts use the value.
        cost_by_produced: [produced], the least cost of the value and of all parts below. `cost_for_parent` sets it.
        cost_below, cost_without_copy, cost_with_copy, cost_by_copy: the parts of this cost if `may_copy`: for each user
            [placement to reshard from], then [produced], [produced, copy] and [copy]. `cost_for_parent` sets them.
    """

    def __init__(self, forest: _Forest, value: int, parent: int):
        assignment = forest.assignment
        self.forest, self.assignment, self.parent = forest, assignment, parent
        self.price = forest.price[value]
        self.producer = producer = assignment.shared.producer[value][0]
        self.users = [p for p in forest.members[value] if p not in (parent, producer)]
        self.needs = [assignment.needs[user][value] for user in self.users]
        self.is_above, self.is_free = parent == producer, producer in forest.free
        # A free producer may have several placements; a fixed one has that of its chosen state.
        if self.is_free:
            # the possible placements, and for each state of the producer the index of its placement
            self.produced, self.placement_of_state = assignment.producer_placements[value]
            self.price_from_produced = self.price[self.produced]
        else:
            self.produced = np.array([assignment.produced[value]])
            self.price_from_produced = self.price[assignment.produced[value]][None, :]
        if self.is_above or not self.is_free:
            self.produced_cost = np.zeros(len(self.produced))
        else:
            self.produced_cost = least_by(self.placement_of_state, forest.message[producer], len(self.produced))
        parent_is_user = not self.is_above
        if parent_is_user:
            self.needs_above = assignment.needs[parent][value]
        self.may_copy = len(self.users) + parent_is_user >= 2

    def cost_for_parent(self) -> Numbers:
        """Return for each state of the parent the least cost of the value and of all parts below it.

        The method sets the attributes whose names begin with `cost`, which `best_states_below` reads.
        """
        price, produced, messages = self.price, self.produced, self.forest.message
        users_and_needs = list(zip(self.users, self.needs, strict=True))
        if self.may_copy:
            # A user below reshards from the produced placement, or from the copy if it is cheaper.
            self.cost_below = [(operand_costs(price, needs) + messages[user]).min(1) for user, needs in users_and_needs]
            self.cost_without_copy = self.produced_cost + sum(cost[produced] for cost in self.cost_below)
            cost_with_copy = self.produced_cost[:, None] + self.price_from_produced
            for cost in self.cost_below:
                cost_with_copy = cost_with_copy + np.minimum(cost[produced][:, None], cost)
            self.cost_with_copy, self.cost_by_copy = cost_with_copy, cost_with_copy.min(0)
            self.cost_by_produced = np.minimum(self.cost_without_copy, cost_with_copy.min(1))
        else:
            self.cost_by_produced = self.produced_cost
            for user, needs in users_and_needs:
                user_cost = (operand_costs(price, needs, produced) + messages[user]).min(1)
                self.cost_by_produced = self.cost_by_produced + user_cost
        if self.is_above:
            return self.cost_by_produced[self.placement_of_state]
        # The parent reshards from the produced placement or from the copy.
        cost = self._cost_above(self.cost_by_produced, produced)
        return np.minimum(cost, self._cost_above(self.cost_by_copy, slice(None))) if self.may_copy else cost

    def _cost_above(self, cost: Numbers, produced: Numbers | slice) -> Numbers:
        """Return for each state of the parent, which uses the value, the least cost over the given source placements.

        Args:
            cost: [source placement], the cost of everything below if the parent reshards from this placement.
            produced: the numbers of the source placements, or a slice of all placements.
        """
        needs = self.needs_above
        if len(needs) == 1:
            return (cost[:, None] + self.price[produced]).min(0)[needs[0]]
        return (cost[:, None] + operand_costs(self.price, needs, produced)).min(0)

    def best_states_below(self, state: int) -> dict[int, int]:
        """Return the best states of the parts below, given the state of the parent. Call `cost_for_parent` before.

        The value gets its best produced placement, and a copy if the copy lowers the cost. Each user below then takes
        its cheapest state, resharded from the produced placement or from the copy. A free producer below takes its
        cheapest state that produces the placement.
        """
        produced_index, copy = self._best_placements(state)
        states, produced = {}, self.produced[produced_index]
        for index, (user, needs) in enumerate(zip(self.users, self.needs, strict=True)):
            resharded_from = produced
            if copy is not None and self.cost_below[index][copy] < self.cost_below[index][produced]:
                resharded_from = copy
            user_cost = self.forest.message[user] + operand_costs(self.price, needs, resharded_from)
            states[user] = int(user_cost.argmin())
        if not self.is_above and self.is_free:
            states[self.producer] = int(
                np.where(self.placement_of_state == produced_index, self.forest.message[self.producer], np.inf).argmin()
            )
        return states

    def _best_placements(self, state: int) -> tuple[int, int | None]:
        """Return the best produced placement, as an index into `produced`, and that of the copy; None without a copy.

        Args:
            state: of the parent.
        """
        if self.is_above:
            produced_index = int(self.placement_of_state[state])
            return produced_index, self._best_copy(produced_index)
        parent_cost = operand_costs(self.price, [needs[state : state + 1] for needs in self.needs_above])[:, 0]
        # The parent reshards from the produced placement, or from the copy.
        cost_from_produced = self.cost_by_produced + parent_cost[self.produced]
        produced_index = int(cost_from_produced.argmin())
        if self.may_copy:
            cost_from_copy = self.cost_by_copy + parent_cost
            copy = int(cost_from_copy.argmin())
            if cost_from_copy[copy] < cost_from_produced[produced_index]:
                return int(self.cost_with_copy[:, copy].argmin()), copy
        return produced_index, self._best_copy(produced_index)

    def _best_copy(self, produced_index: int) -> int | None:
        """Return the placement of the cheapest copy for the parts below; None if no copy is cheaper."""
        if not self.may_copy:
            return None
        copy = int(self.cost_with_copy[produced_index].argmin())
        return copy if self.cost_with_copy[produced_index, copy] < self.cost_without_copy[produced_index] else None


def least_by(key: Numbers, cost: Numbers, size: int) -> Numbers:
    """Return an array [key]: the least cost of the states with this key; infinite if there are none.

    Args:
        key: [state], a number below `size`.
        cost: [state].
    """
    least = np.full(size, np.inf)
    np.minimum.at(least, key, cost)
    return least
