"""The search on a block of mesh axes, the strategies on the other axes fixed.

Messages between parts say which decisions may be good, and how good one can be (`messages.py`); moves over forests of
parts improve each decision (`forest.py`). Where one seems better than the best so far, its reshards are priced as the
planner does, and if it is not better after all, later ones take that into account.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import attrs
import numpy as np

from spmdir.core.progress import say
from spmdir.reshard.plan_tree import PRECISE_AXES
from spmdir.rules.strategies.strategy import Strategy
from spmdir.search.assignment import Assignment
from spmdir.search.catalogue import catalogue
from spmdir.search.forest import adopt, improve_forest
from spmdir.search.joint_placements import JointPlacements
from spmdir.search.joint_states import StateFinder, StateTable
from spmdir.search.joint_strategies import Joint
from spmdir.search.messages import MessagePassing
from spmdir.search.prices import Prices
from spmdir.search.problem import FEW_NODES, Problem
from spmdir.search.repeats import Quotient

LEAST = 1e-9
"""What a move has to save, as a part of the cost of the program: rounding errors are smaller."""

SEED = 0
"""That of the random numbers, so that a program is decided alike every time."""

FORESTS = 3
"""How often parts of a start are freed, each time in another order."""

UNDECIDED = 3
"""After how many turns of messages the first decision is made."""

NEAR = 0.02
"""A decision is good enough that is so near the bound, as a part of its cost above that of the cheapest states."""

PATIENCE = 34
"""One of so many of all turns may pass without progress until the search ends."""

RISE = 1e-3
"""The part of the bound by which it has to rise to be progress."""

STATES = 100
"""How many states are tried for each turn that the effort allows, where all decisions of a small program are."""


@attrs.frozen
class BlockEnd:
    """How the search on a block of axes ended.

    Attributes:
        axes: those of the block.
        turns: how many turns of messages there were.
        reason: "near its own bound", "no progress" or "effort used up".
    """

    axes: tuple[str, ...]
    turns: int
    reason: str

    def __str__(self) -> str:
        return f"axes {', '.join(self.axes)}: {self.turns} turn{'s' * (self.turns != 1)}, {self.reason}"


class BlockSearch:
    """The search of the best states of all parts on a block of axes.

    Args:
        axes: those that are decided: the block, and axes before it.
        block: positions in `axes` of those to decide.
        fixed: by part, a strategy for each of `axes`; of those in the block it is a start, or None.
        orders: by part, the nesting order of the start, as in the attribute; any if there are none.

    Attributes:
        orders: by part, the axes by position, those that shard one factor in the nesting order that was decided.
        end: how it ended.
    """

    def __init__(
        self,
        problem: Problem,
        shared: Quotient,
        axes: Sequence[str],
        block: Sequence[int],
        fixed: Sequence[Sequence[Strategy | None]] | None,
        orders: Sequence[tuple[int, ...]] = (),
    ):
        say("propagate: deciding axes {}", ", ".join(axes[axis] for axis in block))
        rank = max((meta.rank for meta in shared.values), default=0)
        placements = JointPlacements(problem.mesh, axes, catalogue(rank, shared.plugin_placements))
        finder = StateFinder(problem, shared, placements)
        states = [
            finder.of(part, block, fixed[part] if fixed is not None else None) for part in range(len(shared.nodes))
        ]
        self.now = Assignment(shared, states, Prices(problem.mesh, shared, placements))
        self.random = random.Random(SEED)
        nested = orders or [()] * len(states)
        starts = zip(states, fixed, nested, strict=True) if fixed is not None else ()
        self.start = list(itertools.starmap(_position, starts))
        self.messages = MessagePassing(self.now)
        self.plans = len(axes) <= PRECISE_AXES
        self.best: list[int] = []
        self.least = np.inf
        self.end = BlockEnd(tuple([axes[axis] for axis in block]), 0, "effort used up")

    def run(self, effort: int, has_start: bool = False) -> list[Joint]:
        """Return the strategies of each part on all axes, after at most `effort` turns of messages.

        Args:
            has_start: whether the start is a decision for another program: others are made before it is good enough.
        """
        if self.start:
            self._consider(self.start, FORESTS)
        self.end = attrs.evolve(self.end, turns=max(effort, 1))
        last, bound, floor = 0, 0.0, sum(map(min, self.now.cost_rows))
        near = NEAR if len(self.now.choice) > FEW_NODES else LEAST
        undecided = min(UNDECIDED, max(effort, 1) - 1)
        for turn in range(max(effort, 1)):
            decides = turn >= undecided
            seemed = [
                decides and self._consider(self.messages.decide(self._order() if is_back else None), 1)
                for is_back in self.messages.improve()
            ]
            gap = self.least - self.messages.bound
            if not decides or any(seemed) or self.messages.bound > bound * (1 + RISE):
                last, bound = turn, self.messages.bound
            if self.best and (decides or not has_start) and gap <= near * (self.least - floor):
                self.end = attrs.evolve(self.end, turns=turn + 1, reason="near its own bound")
                break
            if turn + 1 < effort and (turn - last) * PATIENCE >= effort:
                self.end = attrs.evolve(self.end, turns=turn + 1, reason="no progress")
                break
        now = self.now
        if len(now.choice) <= FEW_NODES:
            self._try_all(STATES * effort)
        now.assume(self.best)
        self.orders = [states.order[choice] for states, choice in zip(now.states, now.choice, strict=True)]
        return [states.strategies(choice) for states, choice in zip(now.states, now.choice, strict=True)]

    def _try_all(self, most: int) -> None:
        """Try all decisions that may be better than the best, up to so many states, again with each price learned."""
        states, progress = itertools.count(), True

        def limit() -> float:
            return self.least * (1 - LEAST) if next(states) < most else -np.inf

        while progress:
            progress = any(self._consider(choice, 0) for choice in self.messages.decisions_below(limit))
            for _ in self.messages.improve():
                pass

    def _consider(self, choice: Sequence[int], forests: int) -> bool:
        """Improve a decision, and take it if it is better than the best when its reshards are priced exactly.

        Returns: whether it seemed better, so that there is a better one or a price is known better.
        """
        now, progress = self.now, False
        now.assume(choice)
        self._improve(forests)
        if forests and self.best and now.total() >= self.least * (1 - LEAST):
            other = list(now.choice)
            now.assume(self.best)
            adopt(
                now, {part: state for part, state in enumerate(other) if state != self.best[part]}, LEAST * self.least
            )
            self._improve(1)
        while (total := now.total()) < self.least * (1 - LEAST):
            progress = True
            changed = now.learn() if self.plans else []
            if not changed:
                self.best, self.least = list(now.choice), total
                break
            self.messages.read(changed)
            self._improve(1)
        return progress

    def _order(self) -> Sequence[int] | None:
        """Return the parts as they lie around one that is chosen at random; None while nothing is decided."""
        if not self.best:
            return None
        neighbours = self.now.shared.neighbours
        first = self.random.randrange(len(neighbours))
        found = dict.fromkeys([first])
        waiting = [first]
        for part in waiting:
            new = [other for other in neighbours[part] if other not in found]
            found.update(dict.fromkeys(new))
            waiting += new
        return [*found, *(part for part in range(len(neighbours)) if part not in found)]

    def _improve(self, times: int) -> None:
        order, least = list(range(len(self.now.choice))), LEAST * self.now.total()
        for _ in range(times):
            self.random.shuffle(order)
            improve_forest(self.now, order, least)


def _position(states: StateTable, joint: Sequence[Strategy | None], order: tuple[int, ...]) -> int:
    """Return which of the states has these strategies, and this nesting order if one has; the cheapest if none has."""
    wanted = [(s.operands, s.results) if s is not None else None for s in joint]
    found = [
        at
        for at in range(len(states.order))
        if all((s.operands, s.results) == want for s, want in zip(states.strategies(at), wanted, strict=True))
    ]
    return next((at for at in found if states.order[at] == order), found[0] if found else int(states.seconds.argmin()))
