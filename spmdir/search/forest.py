"""Moves of many parts at once: the best states of parts that form a forest, all other parts fixed.

Parts and the values between them are a graph. Parts are freed as long as no cycle of free parts appears; over the
forest that they form, the best states follow by dynamic programming. A value whose users need several placements may
be held in one copy beside the placement that it is made in; what the fixed parts have paid for is free.
The result is exact but for users that share more than one copy, so the moves are tried and only those kept that save.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial, reduce

import numpy as np

from spmdir.search.assignment import Assignment
from spmdir.search.joint_placements import Numbers


def improve_forest(now: Assignment, order: Iterable[int], least: float) -> float:
    """Free parts in this order, move them to their best states, and return what that saves.

    Args:
        least: what a move has to save at the least.
    """
    best = _Forest(now, order).best()
    return adopt(now, {part: state for part, state in best.items() if state != now.choice[part]}, least)


def adopt(now: Assignment, moves: dict[int, int], least: float) -> float:
    """Move parts to states where that saves more than `least`, region by region, and return what it saves."""
    gained = 0.0
    for region in _regions(now, moves):
        back = {part: now.choice[part] for part in region}
        gain = now.gain(region)
        if gain > least:
            gained += gain
        else:
            for part, state in back.items():
                now.choose(part, state)
    return gained


def _regions(now: Assignment, moves: dict[int, int]) -> list[dict[int, int]]:
    """Return `moves` in parts that share no value."""
    of_value: dict[int, int] = {}
    parent: dict[int, int] = {part: part for part in moves}

    def find(part: int) -> int:
        while parent[part] != part:
            parent[part] = parent[parent[part]]
            part = parent[part]
        return part

    for part in moves:
        for value in now.touched[part]:
            other = of_value.setdefault(value, part)
            if other != part:
                parent[find(part)] = find(other)
    found: dict[int, dict[int, int]] = {}
    for part, state in moves.items():
        found.setdefault(find(part), {})[part] = state
    return list(found.values())


class _Forest:
    def __init__(self, now: Assignment, order: Iterable[int]):
        self.now = now
        self.free: dict[int, Numbers] = {}
        self.members: dict[int, list[int]] = {}
        self._grow(order)
        self.paid: dict[int, list[int]] = {}
        self.price: dict[int, Numbers] = {}
        self._find_paid()

    def _grow(self, order: Iterable[int]) -> None:
        """Free parts as long as no cycle appears."""
        now, parent = self.now, {}

        def find(value: int) -> int:
            root = value
            while parent[root] != root:
                root = parent[root]
            while parent[value] != root:
                parent[value], value = root, parent[value]
            return root

        for part in order:
            if len(now.cost_rows[part]) == 1:
                continue
            values = now.touched[part]
            roots = [find(parent.setdefault(value, value)) for value in values]
            if len({*roots}) < len(roots):
                continue
            for root in roots[1:]:
                parent[root] = roots[0]
            self.free[part] = now.cost[part]
            for value in values:
                self.members.setdefault(value, []).append(part)

    def _find_paid(self) -> None:
        """Find what the fixed users of each value have paid for."""
        now = self.now
        for value, free in self.members.items():
            wanted = now.wanted[value]
            if wanted:
                left = dict(wanted)
                for part in free:
                    for needs in now.need_rows[part].get(value, ()):
                        left[needs[now.choice[part]]] -= 1
                paid = [placement for placement, count in left.items() if count]
            else:
                paid = []
            self.paid[value] = paid
            price = now.price[value]
            if paid:
                # What fixed users hold is there to be resharded from, as the value itself is.
                price = np.minimum(price, price[paid].min(0))
            self.price[value] = price

    def best(self) -> dict[int, int]:
        """Return the best state of each free part."""
        now = self.now
        self.message: dict[int, Numbers] = {part: self._alone(part) for part in self.free}
        seen: set[int] = set()
        chosen: dict[int, int] = {}
        for root in self.free:
            if root in seen:
                continue
            seen.add(root)
            stack: list[tuple[int, int | None]] = [(root, None)]
            sequence: list[tuple[str, int, int]] = []
            while stack:
                part, above = stack.pop()
                sequence.append(("part", part, -1))
                for value in now.touched[part]:
                    members = self.members[value]
                    if value == above or len(members) < 2:
                        continue
                    sequence.append(("value", value, part))
                    for member in members:
                        if member != part:
                            seen.add(member)
                            stack.append((member, value))
            stars = {}
            for what, which, parent in reversed(sequence):
                if what == "value":
                    star = stars[which] = _Star(self, which, parent)
                    self.message[parent] = self.message[parent] + star.up()
            for what, which, parent in sequence:
                if what == "value":
                    chosen.update(stars[which].down(chosen[parent]))
                elif which not in chosen:
                    chosen[which] = int(self.message[which].argmin())
        return chosen

    def _alone(self, part: int) -> Numbers:
        """Return the cost of each state of a part by itself and beside fixed parts."""
        now, cost = self.now, self.free[part]
        for value, made in now.makes[part].items():
            for placement in self.paid[value]:
                cost = cost + now.price[value][made, placement]
        for value, needs in now.needs[part].items():
            made = now.makes[part].get(value)
            if made is None and len(self.members[value]) == 1:
                made = now.made[value]
            if made is not None:
                cost = cost + needed_beside(self.price[value], made, needs)
        return cost


def _needed(price: Numbers, price_of: Callable[[Numbers], Numbers], needs: Sequence[Numbers]) -> Numbers:
    """Return, by state, what it costs to satisfy the operands of one part that are one value.

    Each operand may be made from the value, or from the copy that is made for one of them.

    Args:
        price: of resharding the value, [before, after].
        price_of: placements by state → what it costs to reshard to them from where the value is made.
    """
    own = list(map(price_of, needs))
    costs = []
    for copy, held in zip(needs, own, strict=True):
        for at, (more, made) in enumerate(zip(needs, own, strict=True)):
            if more is not copy:
                known = [other == more for other in needs[:at]]
                held = held + np.where(np.any(known, 0), 0.0, np.minimum(made, price[copy, more]))
        costs.append(held)
    return reduce(np.minimum, costs)


def needed_beside(price: Numbers, made: Numbers | int, needs: Sequence[Numbers]) -> Numbers:
    """Return, by state, what the operands of one part that are one value cost, made as the state or a part says."""
    return _needed(price, lambda placements: price[made, placements], needs)


def from_each(price: Numbers, needs: Sequence[Numbers], made: Numbers | int | slice = slice(None)) -> Numbers:
    """Return what it costs each state of a part, in the last dimension, to have its operands that are one value.

    Args:
        made: the placements that the value may be made in; all if not given.
    """
    return _needed(price, partial(price[made].take, axis=-1), needs)


class _Star:
    """A value between free parts: the part above it in the tree, and those below.

    Attributes:
        made: the placements that it may be made in.
        held: by these, the least cost of the part that makes it if that is below.
        price, price_made: of resharding it from each placement, and from each of `made`.
    """

    def __init__(self, forest: _Forest, value: int, parent: int):
        now = forest.now
        self.forest, self.now, self.parent = forest, now, parent
        self.price = forest.price[value]
        self.producer = producer = now.shared.producer[value][0]
        self.users = [p for p in forest.members[value] if p not in (parent, producer)]
        self.needs = [now.needs[user][value] for user in self.users]
        self.is_above, self.is_free = parent == producer, producer in forest.free
        if self.is_free:
            self.made, self.makes = now.makers[value]
            self.price_made = self.price[self.made]
        else:
            self.made = np.array([now.made[value]])
            self.price_made = self.price[now.made[value]][None, :]
        if self.is_above or not self.is_free:
            self.held = np.zeros(len(self.made))
        else:
            self.held = least_by(self.makes, forest.message[producer], len(self.made))
        if not self.is_above:
            self.needs_above = now.needs[parent][value]
        self.copies = len(self.users) + (not self.is_above) >= 2

    def up(self) -> Numbers:
        """Return the least cost below, by state of the part above."""
        price, made, messages = self.price, self.made, self.forest.message
        self.direct = self.held
        if not self.copies:
            for user, needs in zip(self.users, self.needs, strict=True):
                self.direct = self.direct + (from_each(price, needs, made) + messages[user]).min(1)
        else:
            copied = self.held[:, None] + self.price_made
            below = [
                (from_each(price, needs) + messages[user]).min(1)
                for user, needs in zip(self.users, self.needs, strict=True)
            ]
            self.below = below
            self.plain = self.held + sum(cost[made] for cost in below)
            for cost in below:
                copied = copied + np.minimum(cost[made][:, None], cost)
            self.copied, self.by_copy = copied, copied.min(0)
            self.direct = np.minimum(self.plain, copied.min(1))
        if self.is_above:
            return self.direct[self.makes]
        # By placement that the part above needs: from where it is made, or from the copy.
        cost = self._above(self.direct, made)
        return np.minimum(cost, self._above(self.by_copy, slice(None))) if self.copies else cost

    def _above(self, cost: Numbers, made: Numbers | slice) -> Numbers:
        """Return the least cost by state of the part above, given that of each placement to reshard from."""
        needs = self.needs_above
        if len(needs) == 1:
            return (cost[:, None] + self.price[made]).min(0)[needs[0]]
        return (cost[:, None] + from_each(self.price, needs, made)).min(0)

    def down(self, state: int) -> dict[int, int]:
        """Return the best states of the parts below, given that of the part above."""
        if self.is_above:
            at = int(self.makes[state])
            copy = self._copy_of(at)
        else:
            own = from_each(self.price, [needs[state : state + 1] for needs in self.needs_above])[:, 0]
            direct = self.direct + own[self.made]
            at = int(direct.argmin())
            copy = self._copy_of(at)
            if self.copies:
                through = self.by_copy + own
                best = int(through.argmin())
                if through[best] < direct[at]:
                    copy = best
                    at = int(self.copied[:, best].argmin())
        found, made = {}, self.made[at]
        for index, (user, needs) in enumerate(zip(self.users, self.needs, strict=True)):
            holder = copy if copy is not None and self.below[index][copy] < self.below[index][made] else made
            found[user] = int((self.forest.message[user] + from_each(self.price, needs, holder)).argmin())
        if not self.is_above and self.is_free:
            found[self.producer] = int(np.where(self.makes == at, self.forest.message[self.producer], np.inf).argmin())
        return found

    def _copy_of(self, at: int) -> int | None:
        if not self.copies:
            return None
        copy = int(self.copied[at].argmin())
        return copy if self.copied[at, copy] < self.plain[at] else None


def least_by(key: Numbers, cost: Numbers, size: int) -> Numbers:
    """Return, by key, the least cost; infinite where there is none."""
    least = np.full(size, np.inf)
    np.minimum.at(least, key, cost)
    return least
