"""The search on a block of mesh axes, the strategies on the other axes fixed.

Sweeps over the whole program begin, then moves over forests of parts, then moves that one part starts and others
follow. Every move is kept only if the program costs less after it.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence

from spmdir.core.progress import say
from spmdir.search.assignment import Assignment
from spmdir.search.catalogue import catalogue
from spmdir.search.follow import Follower
from spmdir.search.forest import adopt, improve_forest
from spmdir.search.joint_cost import joint_cost
from spmdir.search.joint_states import Joint, JointPlacements, StateFinder, StateTable
from spmdir.search.prices import Prices
from spmdir.search.problem import NodeStrategy, Problem
from spmdir.search.repeats import Quotient
from spmdir.search.sweeps import sweep

HOPELESS = 0.2
"""A move that costs this part of all reshards at first is undone before its surroundings are improved."""

LEAST = 1e-9
"""What a move has to save, as a part of the cost of the program: rounding errors are smaller."""

STARTS = 2
"""After how many shakes a decision is made from nothing."""

FEW_NODES = 40
"""Up to how many nodes a program is small: no nodes merged, three axes together, and in the end exact prices."""

EXACT = 12
"""How often reshards of small programs are priced exactly at most."""

SEED = 0
"""That of the random numbers, so that a program is decided alike every time."""

KICKS = 30
"""The most moves that one part starts after each shake."""

SHAKE = 4
"""How many such moves a shake counts as."""

SHAKEN = 0.6
"""The part of values whose reshards cost otherwise in a shake."""

FORESTS = 3
"""How often parts are freed in another order before the moves that one part starts."""


class BlockSearch:
    """The search of the best states of all parts on a block of axes.

    Args:
        axes: those that are decided: the block, and axes before it.
        block: positions in `axes` of those to decide.
        fixed: by part, a strategy for each of `axes`; of those in the block it is a start, or None.
    """

    def __init__(
        self,
        problem: Problem,
        shared: Quotient,
        axes: Sequence[str],
        block: Sequence[int],
        fixed: Sequence[Sequence[NodeStrategy | None]] | None,
    ):
        say("propagate: deciding axes {}", ", ".join(axes[axis] for axis in block))
        self.shared, self.mesh = shared, problem.mesh
        self.placements = JointPlacements(problem.mesh, axes, catalogue(shared.plugin_placements))
        finder = StateFinder(problem.mesh, shared, self.placements)
        states = [
            finder.of(part, block, fixed[part] if fixed is not None else None) for part in range(len(shared.nodes))
        ]
        self.prices = Prices(problem.mesh, shared, self.placements)
        self.now = Assignment(shared, states, self.prices)
        self.follower = Follower(self.now, self.placements)
        self.block, self.random = block, random.Random(SEED)
        self.start = None if fixed is None else [_position(s, joint) for s, joint in zip(states, fixed, strict=True)]

    def run(self, effort: int) -> list[Joint]:
        """Return the strategies of each part on all axes, with at most `effort` moves that one part starts."""
        now = self.now
        if self.start is not None and None not in self.start:
            now.assume(self.start)  # type: ignore
        else:
            now.assume(sweep(now))
        self._improve(FORESTS)
        left = min(effort, 2 * sum(len(rows) - 1 for rows in now.cost_rows))
        left -= self._descend(min(left, KICKS))
        best, least = list(now.choice), now.total()
        for turn in itertools.count(1):
            if left <= 0:
                break
            self._shake(turn % STARTS == 1)
            left -= SHAKE + self._descend(min(left, KICKS))
            self._cross(best)
            total = now.total()
            if total < least * (1 - LEAST):
                best, least = list(now.choice), total
            else:
                now.assume(best)
        if len(self.shared.nodes) <= FEW_NODES and len(self.placements.axes) == len(self.mesh.axes):
            self._price_exactly()
        self.orders = self._orders()
        return self._joints()

    def _joints(self) -> list[Joint]:
        now = self.now
        return [states.strategies(choice) for states, choice in zip(now.states, now.choice, strict=True)]

    def _orders(self) -> list[tuple[int, ...]]:
        now = self.now
        return [states.order[choice] for states, choice in zip(now.states, now.choice, strict=True)]

    def _exact(self) -> float:
        """Return what the decision costs with reshards as the planner prices them."""
        chosen = dict(zip(self.placements.axes, zip(*self._joints(), strict=True), strict=True))
        return joint_cost(self.mesh, self.shared, chosen, self._orders())

    def _price_exactly(self) -> None:
        """Take the planner's prices for the reshards that decisions use, and decide again until they are all known."""
        now, best, least = self.now, list(self.now.choice), self._exact()
        for turn in range(EXACT):
            changed = False
            for value, wanted in enumerate(now.wanted):
                before = now.made[value]
                for after in wanted:
                    exact = self.prices.exact(now.numbers[value][before], now.numbers[value][after], value)
                    if abs(exact - now.rows[value][before][after]) > 1e-9 * exact:
                        now.price[value] = now.price[value].copy()
                        now.price[value][before, after] = exact
                        now.rows[value] = now.price[value].tolist()
                        changed = True
            if not changed:
                break
            now.assume(sweep(now) if turn % 2 else list(now.choice))
            self._improve(FORESTS)
            self._descend(KICKS)
            if (cost := self._exact()) < least * (1 - LEAST):
                best, least = list(now.choice), cost
        now.assume(best)

    def _descend(self, effort: int) -> int:
        """Try moves that one part starts, and return how many were tried."""
        return effort - Kicks(self).run(effort)

    def _cross(self, other: Sequence[int]) -> None:
        """Take over from another decision, region by region, what saves."""
        now = self.now
        own = list(now.choice)
        adopt(now, _moves(own, other), 0.0)
        mine, total = list(now.choice), now.total()
        now.assume(other)
        adopt(now, _moves(other, own), 0.0)
        if now.total() > total:
            now.assume(mine)

    def _shake(self, fresh: bool) -> None:
        """Improve the decision, or decide anew, as if the reshards of values cost otherwise, then as they are."""
        now, chance = self.now, self.random
        price, scale = now.price, now.scale
        now.price, now.scale = list(price), list(scale)
        for value in range(len(price)):
            if fresh or chance.random() < SHAKEN:
                now.scale[value] = math.exp(chance.gauss(0.0, 1.0))
                now.price[value] = price[value] * now.scale[value]
        if fresh:
            now.assume(sweep(now))
        self._improve(2)
        now.price, now.scale = price, scale
        self._improve(2 if fresh else 1)

    def _improve(self, times: int) -> None:
        order, least = list(range(len(self.now.choice))), LEAST * self.now.total()
        for _ in range(times):
            self.random.shuffle(order)
            improve_forest(self.now, order, least)


class Kicks:
    """Moves that one part starts: at a reshard, it takes another strategy on an axis, and others follow."""

    def __init__(self, search: BlockSearch):
        self.search, self.now, self.shared = search, search.now, search.shared
        self.follower, self.beside = search.follower, self.shared.neighbours
        self.reshards = 0.0
        self._note()
        self.tried: set[object] = set()
        self.reached: set[object] = set()

    def run(self, effort: int) -> int:
        """Try up to `effort` moves; stop when none that has not been tried saves anything."""
        left, changed = effort, True
        while changed and left > 0:
            changed = False
            for part, axis, state in self._moves():
                if left <= 0:
                    break
                left -= 1
                changed = self._try(part, axis, state)
                if changed:
                    break
        return left

    def _note(self) -> None:
        """Note what the program and the reshards of each value cost as decided now."""
        self.costs = [self.now.value_cost(value) for value in range(len(self.now.made))]
        self.total = self.now.total()

    def _total(self, former: dict[int, int]) -> float:
        """Return the cost of the program after moves from `former` states."""
        now, total = self.now, self.total
        for part, state in former.items():
            rows = now.cost_rows[part]
            total += rows[now.choice[part]] - rows[state]
        for value in {value for part in former for value in now.touched[part]}:
            total += now.value_cost(value) - self.costs[value]
        return total

    def _moves(self) -> Iterator[tuple[int, int, int]]:
        """Yield parts next to reshards, the most expensive first, with an axis and another state."""
        now, costs = self.now, self.costs
        self.reshards = sum(costs)
        parts: dict[int, None] = {}
        for value in sorted(range(len(costs)), key=lambda value: (-costs[value], value)):
            if costs[value] <= 0:
                break
            parts.setdefault(self.shared.producer[value][0])
            parts.update(dict.fromkeys(user for user, _ in self.shared.users[value]))
        for part, rows in enumerate(now.cost_rows):
            if not self.shared.uses[part] and min(rows) < rows[now.choice[part]]:
                parts.setdefault(part)
        for part in parts:
            for axis in self.search.block:
                for state in self.follower.states_beside(part, now.choice[part], axis):
                    move = part, axis, self.follower.keys[part][state][axis]
                    if move not in self.tried and self.follower.keys[part][now.choice[part]][axis] != move[2]:
                        self.tried.add(move)
                        at = self.follower.state_with(part, now.choice[part], axis, move[2])
                        if at is not None:
                            yield part, axis, at

    def _try(self, part: int, axis: int, state: int) -> bool:
        """Move a part and what follows, improve what is around them, and keep that if it saves."""
        now = self.now
        former = self.follower.follow(part, state, axis)
        reached = frozenset((moved, now.choice[moved]) for moved in former)
        if reached in self.reached:
            self._undo(former)
            return False
        self.reached.add(reached)
        total = self._total(former)
        if total - self.total <= HOPELESS * self.reshards:
            around = dict.fromkeys(former)
            for moved in former:
                around.update(dict.fromkeys(self.beside[moved]))
            order = list(around)
            self.search.random.shuffle(order)
            for moved in order:
                former.setdefault(moved, now.choice[moved])
            total -= improve_forest(now, order, LEAST * self.total)
            if total < self.total * (1 - LEAST):
                self._note()
                return True
        self._undo(former)
        return False

    def _undo(self, former: dict[int, int]) -> None:
        for part, state in former.items():
            self.now.choose(part, state)


def _moves(before: Sequence[int], after: Sequence[int]) -> dict[int, int]:
    """Return the parts whose states differ, with those after."""
    return {part: b for part, (a, b) in enumerate(zip(before, after, strict=True)) if a != b}


def _position(states: StateTable, joint: Sequence[NodeStrategy | None]) -> int | None:
    """Return which of the states has these strategies; None if there is none."""
    wanted = [(s.operands, s.results) if s is not None else None for s in joint]
    for at in range(len(states.joints)):
        if all((s.operands, s.results) == want for s, want in zip(states.strategies(at), wanted, strict=True)):
            return at
    return None
