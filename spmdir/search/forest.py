"""Moves of many parts at once: the best states of parts that form a forest, all other parts fixed.

Parts and the values between them are a graph. Parts are freed as long as no cycle of free parts appears; over the
forest that they form, the best states follow by dynamic programming. A value whose users need several placements may
be held in one copy beside the placement that it is made in; what the fixed parts have paid for is free.
The result is exact but for users that share more than one copy, so the moves are tried and only those kept that save.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from spmdir.search.assignment import Assignment
from spmdir.search.joint_states import Numbers


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
                price = price.copy()
                price[:, paid] = 0.0
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
            if made is not None:
                cost = cost + _needed(self.price[value], needs, made)
            elif len(self.members[value]) == 1:
                cost = cost + _needed(self.price[value], needs, now.made[value])
        return cost


def _needed(price: Numbers, needs: Sequence[Numbers], made) -> Numbers:
    """Return, by state, what it costs to satisfy the operands of one part that are one value."""
    cost = price[made, needs[0]]
    if len(needs) == 2:
        return cost + np.where(needs[0] == needs[1], 0.0, price[made, needs[1]])
    for at, more in enumerate(needs[1:], 1):
        known = needs[0] == more
        for other in needs[1:at]:
            known = known | (other == more)
        cost = cost + np.where(known, 0.0, price[made, more])
    return cost


class _Star:
    """A value between free parts: the part above it in the tree, and those below."""

    def __init__(self, forest: _Forest, value: int, parent: int):
        now = forest.now
        self.forest, self.now, self.value, self.parent = forest, now, value, parent
        self.price = forest.price[value]
        self.producer = producer = now.shared.producer[value][0]
        self.makes = now.makes[producer][value]
        self.users = [p for p in forest.members[value] if p not in (parent, producer)]
        self.is_above = parent == producer
        size = len(self.price)
        if self.is_above:
            self.held = np.zeros(size)
        elif producer in forest.free:
            self.held = least_by(self.makes, forest.message[producer], size)
        else:
            self.held = np.full(size, np.inf)
            self.held[now.made[value]] = 0.0
        self.from_holder = [self._from_holder(user) for user in self.users]

    def _from_holder(self, user: int) -> Numbers:
        """Return [holder] the least cost of a user below if the value is held so."""
        needs = self.now.needs[user][self.value]
        message = self.forest.message[user]
        return (self._states_from(needs) + message).min(1)

    def _states_from(self, needs: Sequence[Numbers]) -> Numbers:
        cost = self.price[:, needs[0]]
        for at, more in enumerate(needs[1:], 1):
            known = needs[0] == more
            for other in needs[1:at]:
                known = known | (other == more)
            cost = cost + np.where(known, 0.0, self.price[:, more])
        return cost

    def up(self) -> Numbers:
        """Return the least cost below, by state of the part above."""
        held, price = self.held, self.price
        self.plain = held + sum(self.from_holder) if self.from_holder else held
        self.copied = None
        copies = len(self.users) + (not self.is_above) >= 2
        if copies:
            copied = held[:, None] + price
            for cost in self.from_holder:
                copied = copied + np.minimum(cost[:, None], cost[None, :])
            self.copied = copied
        if self.is_above:
            best = self.plain if self.copied is None else np.minimum(self.plain, self.copied.min(1))
            return best[self.makes]
        # By placement that the part above needs: from where it is made, or from the copy.
        needs = self.now.needs[self.parent][self.value]
        direct = self.plain if self.copied is None else np.minimum(self.plain, self.copied.min(1))
        self.direct = direct
        own = self._states_from(needs)
        cost = (direct[:, None] + own).min(0)
        if self.copied is not None:
            self.by_copy = self.copied.min(0)
            cost = np.minimum(cost, (self.by_copy[:, None] + own).min(0))
        return cost

    def down(self, state: int) -> dict[int, int]:
        """Return the best states of the parts below, given that of the part above."""
        if self.is_above:
            made = int(self.makes[state])
            copy = self._copy_of(made)
        else:
            needs = self.now.needs[self.parent][self.value]
            own = self._states_from([n[state : state + 1] for n in needs])[:, 0]
            direct = self.direct + own
            made = int(direct.argmin())
            copy = self._copy_of(made)
            if self.copied is not None:
                through = self.by_copy + own
                at = int(through.argmin())
                if through[at] < direct[made]:
                    copy = at
                    made = int(self.copied[:, at].argmin())
        found = {}
        for user, cost in zip(self.users, self.from_holder, strict=True):
            holder = copy if copy is not None and cost[copy] < cost[made] else made
            needs = self.now.needs[user][self.value]
            states = self.forest.message[user] + self._states_from(needs)[holder]
            found[user] = int(states.argmin())
        if not self.is_above and self.producer in self.forest.free:
            message = np.where(self.makes == made, self.forest.message[self.producer], np.inf)
            found[self.producer] = int(message.argmin())
        return found

    def _copy_of(self, made: int) -> int | None:
        if self.copied is None:
            return None
        at = int(self.copied[made].argmin())
        return at if self.copied[made, at] < self.plain[made] else None


def least_by(key: Numbers, cost: Numbers, size: int) -> Numbers:
    """Return, by key, the least cost; infinite where there is none."""
    least = np.full(size, np.inf)
    np.minimum.at(least, key, cost)
    return least
