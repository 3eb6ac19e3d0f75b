"""The search on a block of mesh axes, with the strategies on the other axes fixed.

Message passing proposes decisions and gives a lower bound (`message_passing.py`). Moves over forests of parts improve
each decision (`forest_moves.py`). If a decision looks better than the best so far, the planner prices its reshards
exactly. The exact prices replace the estimates, also for later decisions. A search without progress ends with dives:
message passing with one part restricted to another state.
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
from spmdir.search.forest_moves import adopt, improve_forest
from spmdir.search.joint_placements import JointPlacements
from spmdir.search.joint_states import StateFinder, StateTable
from spmdir.search.joint_strategies import Joint
from spmdir.search.merged_nodes import Quotient
from spmdir.search.message_passing import MessagePassing
from spmdir.search.placement_catalogue import catalogue
from spmdir.search.problem import FEW_NODES, Problem
from spmdir.search.reshard_prices import Prices

LEAST_SAVING = 1e-9
"""The least saving of a move, as a fraction of the cost of the program; larger than rounding errors."""

SEED = 0
"""The seed of random numbers. It is fixed, so every run decides alike."""

START_FORESTS = 3
"""The number of forests that improve a start, each grown in another random order."""

FIRST_DECISION = 3
"""The number of turns of message passing before the first decision."""

GOOD_ENOUGH = 0.002
"""The search ends if the gap between best decision and bound is this fraction of the cost that states may change: the
cost of the decision minus the sum of the cheapest state of each part. Small programs end at `LEAST_SAVING`."""

PATIENCE = 34
"""The search ends if 1/PATIENCE of all turns pass without progress."""

DIVES, DIVE_TURNS = 6, 8
"""The largest number of dives after a search without progress, and the turns of each."""

LEAST_RISE = 1e-3
"""A bound that rises by this fraction is progress."""

STATES_PER_TURN = 100
"""The number of states tried for each turn of the effort, in the exhaustive search of small programs."""


@attrs.frozen
class BlockEnd:
    """How the search on a block of axes ended.

    Attributes:
        axes: the axes of the block.
        turns: the number of turns of message passing, each a pass in program order and one in reverse.
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
        shared: the problem with equal nodes merged into parts.
        axes: the axes decided so far and those of the block.
        block: positions in `axes` of the axes to decide.
        fixed: [part], a strategy for each of `axes`; for axes of the block it is a start, or None.
        orders: [part], the nesting order of the start, as in the attribute `orders`; empty for any order.

    Attributes:
        best: [part], the state of the best decision; empty before the first decision.
        least_cost: its cost in seconds; infinite before the first decision.
        orders: [part], positions of axes; axes that shard one factor are in the decided nesting order. `run` sets it.
        end: how the search ended.

    Raises:
        Unsolvable: a part has no state.
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
        # for each part, its states: all on the axes of the block, with the fixed strategies on the other axes
        states = [
            finder.of(part, block, fixed[part] if fixed is not None else None) for part in range(len(shared.nodes))
        ]
        self.assignment = Assignment(shared, states, Prices(problem.mesh, shared, placements))
        self.random = random.Random(SEED)
        # [part], the state of the start; empty if there is no start
        self.start: list[int] = []
        if fixed is not None:
            start_orders = orders or [()] * len(states)
            self.start = list(map(_find_state, states, fixed, start_orders))
        self.messages = MessagePassing(self.assignment)
        self.uses_exact_prices = len(axes) <= PRECISE_AXES
        self.best: list[int] = []
        self.least_cost = np.inf
        self.end = BlockEnd(tuple([axes[axis] for axis in block]), 0, "effort used up")

    def run(self, effort: int, has_start: bool = False, gap: float = 0.0) -> list[Joint]:
        """Return for each part the strategies on all axes in the best decision found.

        Args:
            effort: the largest number of turns of message passing; 0 is one turn.
            has_start: whether the start is a decision for another program. If so, the search does not end before it
                has made at least one more decision.
            gap: there are no dives if the gap between decision and bound is at most this fraction of the cost that
                states may change, as in `GOOD_ENOUGH`.
        """
        if self.start:
            self._consider(self.start, START_FORESTS)
        self.end = self._pass_messages(effort, has_start)
        assignment = self.assignment
        if len(assignment.choice) <= FEW_NODES:
            self._try_all(STATES_PER_TURN * effort)
        elif self.end.reason == "no progress" and not self._is_within(gap):
            self._dive(effort - self.end.turns)
        assignment.assume(self.best)
        self.orders = [
            states.order[choice] for states, choice in zip(assignment.states, assignment.choice, strict=True)
        ]
        return [states.strategies(choice) for states, choice in zip(assignment.states, assignment.choice, strict=True)]

    def _pass_messages(self, effort: int, has_start: bool) -> BlockEnd:
        """Run turns of message passing, and consider their decisions. Return how this ended.

        Progress is a decision that looks better than the best one, or a bound that rises by `LEAST_RISE`. The first
        turns only raise the bound: they make no decision, and count as progress. The arguments are those of `run`.
        """
        turns = max(effort, 1)
        first_deciding_turn = min(FIRST_DECISION, turns - 1)
        near_fraction = GOOD_ENOUGH if len(self.assignment.choice) > FEW_NODES else LEAST_SAVING
        last_progress, bound_at_progress = 0, 0.0
        for turn in range(turns):
            is_deciding = turn >= first_deciding_turn
            looked_better = self._run_turn(is_deciding, is_stuck=turn - last_progress > 1)
            bound = self.messages.bound
            if not is_deciding or looked_better or bound > bound_at_progress * (1 + LEAST_RISE):
                last_progress, bound_at_progress = turn, bound
            may_end = bool(self.best) and (is_deciding or not has_start)
            if may_end and self._is_within(near_fraction):
                return attrs.evolve(self.end, turns=turn + 1, reason="near its own bound")
            if turn + 1 < effort and (turn - last_progress) * PATIENCE >= effort:
                return attrs.evolve(self.end, turns=turn + 1, reason="no progress")
        return attrs.evolve(self.end, turns=turns)

    def _is_within(self, gap: float) -> bool:
        """Return whether the best decision exceeds its bound by at most `gap` times the cost that states may change."""
        least_compute = sum(map(min, self.assignment.cost_rows))
        return self.least_cost - self.messages.bound <= gap * (self.least_cost - least_compute)

    def _run_turn(self, is_deciding: bool, is_stuck: bool) -> bool:
        """Run a turn of message passing, and return whether a decision that it makes looks better than the best one.

        A decision after the reverse pass has a random order, which rarely helps before the search is stuck.
        """
        looked_better = False
        for is_back in self.messages.improve():
            if is_deciding and (is_stuck or not is_back):
                order = self._random_order() if is_back else None
                looked_better |= self._consider(self.messages.decide(order), 1)
        return looked_better

    def _dive(self, max_turns: int) -> None:
        """Look for decisions far from the best one, in at most `max_turns` turns.

        If two very different decisions have nearly equal costs, the messages make states of both equally cheap, and
        decisions mix both. A dive restricts one part to a state other than that of the best decision, and runs
        `DIVE_TURNS` turns. Then messages prefer one of both. If the best decision mixes placements without a reshard
        between them, dives start at the parts with such values.
        """
        order, turns = list(range(len(self.assignment.choice))), self.end.turns
        self.random.shuffle(order)
        self.assignment.assume(self.best)
        # The parts with impossible reshards come first, each group in random order.
        stuck = self.assignment.parts_with_impossible_reshards()
        order.sort(key=lambda part: part not in stuck)
        alternatives = self.messages.alternatives(self.best, self.least_cost * (1 - LEAST_SAVING), order)
        for part, state in itertools.islice(alternatives, min(DIVES, max_turns // DIVE_TURNS)):
            with self.messages.restricted(part, state):
                for turn in range(DIVE_TURNS):
                    for _ in self.messages.improve():
                        if turn >= FIRST_DECISION:
                            self._consider(self.messages.decide(), 1)
            turns += DIVE_TURNS
        self.end = attrs.evolve(self.end, turns=turns)

    def _try_all(self, max_states: int) -> None:
        """Try all decisions that may beat the best one, until `max_states` states were tried.

        If a decision looks better, exact prices may have changed bounds. So the enumeration starts again, and ends when
        no decision looks better. Each enumeration is followed by a turn of messages, for the new prices.
        """
        tried_states, progress = itertools.count(), True

        def limit() -> float:
            """Return the cost that a decision must beat; −inf, which ends the enumeration, after `max_states` calls."""
            return self.least_cost * (1 - LEAST_SAVING) if next(tried_states) < max_states else -np.inf

        while progress:
            progress = any(self._consider(choice, 0) for choice in self.messages.decisions_below(limit))
            for _ in self.messages.improve():
                pass

    def _consider(self, choice: Sequence[int], forests: int) -> bool:
        """Improve a decision, and keep it if it beats the best one at exact prices.

        If the improved decision is not better, its differences from the best decision are tried one by one. While it
        looks better, the planner's prices of its reshards replace the estimates, and it is improved again.

        Args:
            choice: [part], its state.
            forests: the number of forests that improve the decision. With 0, differences are not tried.

        Returns: whether it looked better at estimated prices. If so, the best decision or a price has changed.
        """
        assignment, progress = self.assignment, False
        assignment.assume(choice)
        self._improve(forests)
        if forests and self.best and assignment.total() >= self.least_cost * (1 - LEAST_SAVING):
            differences = {part: state for part, state in enumerate(assignment.choice) if state != self.best[part]}
            assignment.assume(self.best)
            adopt(assignment, differences, LEAST_SAVING * self.least_cost)
            self._improve(1)
        while (total := assignment.total()) < self.least_cost * (1 - LEAST_SAVING):
            progress = True
            changed = assignment.learn_exact_prices() if self.uses_exact_prices else []
            if not changed:
                self.best, self.least_cost = list(assignment.choice), total
                break
            self.messages.read(changed)
            self._improve(1)
        return progress

    def _random_order(self) -> Sequence[int] | None:
        """Return the parts in breadth-first order from a random part; None before the first decision."""
        if not self.best:
            return None
        neighbours = self.assignment.shared.neighbours
        start = self.random.randrange(len(neighbours))
        visited = dict.fromkeys([start])
        waiting = [start]
        for part in waiting:
            unvisited = [neighbour for neighbour in neighbours[part] if neighbour not in visited]
            visited.update(dict.fromkeys(unvisited))
            waiting += unvisited
        return [*visited, *(part for part in range(len(neighbours)) if part not in visited)]

    def _improve(self, forests: int) -> None:
        """Improve the chosen states by moves over forests, each grown in another random order."""
        order, least_saving = list(range(len(self.assignment.choice))), LEAST_SAVING * self.assignment.total()
        for _ in range(forests):
            self.random.shuffle(order)
            improve_forest(self.assignment, order, least_saving)


def _find_state(states: StateTable, joint: Sequence[Strategy | None], order: tuple[int, ...]) -> int:
    """Return the index of the state with these strategies, preferably in this order; the cheapest if there is none.

    Strategies are compared by the placements of their operands and results. A strategy of None matches no state.

    Args:
        order: positions of axes, in nesting order; () matches no order.
    """
    placements = [None if strategy is None else (strategy.operands, strategy.results) for strategy in joint]
    matches = [
        state
        for state in range(len(states.order))
        if [(strategy.operands, strategy.results) for strategy in states.strategies(state)] == placements
    ]
    default = matches[0] if matches else int(states.seconds.argmin())
    return next((state for state in matches if states.order[state] == order), default)
