"""The sharding search: choose one strategy for every node on every axis at the least cost of the program.

Nodes with equal neighbourhoods share one decision (`merged_nodes.py`). Repeated layers are therefore decided once, and
alike for any number of layers. Blocks of up to three axes are decided together (`block_search.py`), with the other axes
fixed.

The cost is in seconds of one rank: compute, and reshards at the planner's prices. A value is resharded once for each
distinct placement that its users need.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import attrs

from spmdir.rules.strategies.strategy import Strategy
from spmdir.search.block_search import BlockEnd, BlockSearch
from spmdir.search.colour_refinement import Colours
from spmdir.search.joint_cost import joint_cost
from spmdir.search.merged_nodes import as_if_repeated, quotient
from spmdir.search.problem import Problem
from spmdir.search.value_prices import NO_PRICES, ValuePrices

DEPTH = 4
"""The number of steps to which neighbourhoods are compared before nodes are merged."""

DECIDED_LAYERS = 4
"""Programs of more equal layers are decided as if they had this many."""

AXES_TOGETHER = 3
"""The largest number of axes decided together. Pairs of axes are decided if there are more, or plug-in placements."""


@attrs.frozen
class Solution:
    """The result of the search.

    Attributes:
        strategies: axis → the strategy of each node.
        cost: seconds of the program, without `prices`; reshards of equal nodes have one price.
        orders: [node], positions of axes; axes that shard one dimension are in the nesting order that was priced.
        ends: how the search of each block of axes ended, in order.
        prices: the prices of memory and of hidden transfers in this decision.
    """

    strategies: dict[str, list[Strategy]]
    cost: float
    orders: Sequence[tuple[int, ...]] = ()
    ends: tuple[BlockEnd, ...] = ()
    prices: ValuePrices = NO_PRICES


Decision = dict[str, list[Strategy]]
"""Axis → the strategy of each part."""


class Search:
    """The search for the best decision of a problem.

    Args:
        effort: the largest number of turns of message passing for each block of axes.
        depth: the number of steps to which neighbourhoods are compared.
        gap: as in `BlockSearch.run`.
    """

    def __init__(self, problem: Problem, effort: int = 100, depth: int = DEPTH, gap: float = 0.0):
        self.problem, self.effort, self.gap = problem, effort, gap
        self._colours = Colours(problem, len(problem.nodes) if problem.is_small else depth)
        self._shared = quotient(problem, self._colours.rounds[-1])

    def of(self, problem: Problem) -> Search:
        """Return the search for the same nodes after some sources changed. Only nodes near these are compared again.

        Args:
            problem: equal to the problem of this search, apart from sources. A changed source is another object.
        """
        search = copy.copy(self)
        search.problem, search._shared = problem, quotient(problem, self._colours.of(problem))
        return search

    def alike(self, node: int) -> Sequence[int]:
        """Return the nodes of the program that are merged with `node`, including itself."""
        return self._shared.members[self._shared.node_class[node]]

    def _joints(self, decided: Solution) -> list[tuple[Strategy, ...]]:
        """Return for each part the strategies of its first node on all axes."""
        axes = self.problem.mesh.axis_names
        return [tuple([decided.strategies[axis][first] for axis in axes]) for first, *_ in self._shared.members]

    def solution(
        self, prices: ValuePrices = NO_PRICES, start: Solution | None = None, limit: float = math.inf
    ) -> Solution:
        """Return the best decision found.

        Blocks of axes are decided one after the other. Each search starts from the strategies decided so far; axes that
        no block has contained yet are left out. Of the decisions on all axes, the cheapest is returned; with prices in
        `prices`, the last one.

        Args:
            prices: prices of memory and of hidden transfers.
            start: a decision for the same nodes; some of its strategies may not exist here. The result is at least as
                good as the nearest legal decision after moves.
            limit: seconds. If all decisions cost more, the result is one of them, with an infinite cost.

        Raises:
            Unsolvable: the user annotations leave a node without a strategy.
        """
        problem, shared = self.problem, self._shared
        repeated = as_if_repeated(shared.with_prices(prices), DECIDED_LAYERS)
        axes, orders = problem.mesh.axis_names, ()
        starts = None if start is None else self._joints(start)
        # [part], the strategies on the axes decided so far; None before the first block of a search without a start
        joints = None if starts is None else [()] * len(starts)
        ends: list[BlockEnd] = []
        decisions: list[tuple[Decision, Sequence[tuple[int, ...]]]] = []  # (decision, orders of parts)
        is_wide = len(axes) > AXES_TOGETHER and not problem.is_small
        block_size = 2 if is_wide or problem.plugin_placements else AXES_TOGETHER
        for block in _blocks(len(axes), block_size):
            # The first axes, up to the last one of the block; all axes as soon as each has a strategy.
            decided = axes[: max(block) + 1] if joints is None or len(joints[0]) < len(axes) else axes
            if joints is not None and len(joints[0]) < len(decided):
                joints, orders = _extended(joints, starts, len(decided)), ()
            search = BlockSearch(problem, repeated, decided, block, joints, orders)
            joints, orders = search.run(self.effort, starts is not None, self.gap), search.orders
            ends.append(search.end)
            if decided == axes:
                decision = {axis: [joint[position] for joint in joints] for position, axis in enumerate(axes)}
                decisions.append((decision, orders))
        # `joint_cost` omits `prices`, so it cannot compare decisions that were made with prices. The last one is the
        # best, because its search started from the one before.
        candidates = decisions if prices == NO_PRICES else decisions[-1:]
        cost, strategies, orders = self._cheapest(candidates, limit)
        by_node = {axis: [by_part[part] for part in shared.node_class] for axis, by_part in strategies.items()}
        return Solution(by_node, cost, [orders[part] for part in shared.node_class], tuple(ends), prices)

    def _cheapest(
        self, decisions: Sequence[tuple[Decision, Sequence[tuple[int, ...]]]], limit: float
    ) -> tuple[float, Decision, Sequence[tuple[int, ...]]]:
        """Return the cost, the strategies and the orders of the cheapest decision. The first wins a tie.

        Args:
            decisions: (decision, orders of parts) pairs.
            limit: seconds. Decisions that cost more have an infinite cost.
        """
        mesh, shared = self.problem.mesh, self._shared
        strategies, orders = decisions[-1]
        cost = joint_cost(mesh, shared, strategies, orders, limit)
        for decision, decision_orders in reversed(decisions[:-1]):
            decision_cost = joint_cost(mesh, shared, decision, decision_orders, min(cost, limit))
            if decision_cost <= cost:
                cost, strategies, orders = decision_cost, decision, decision_orders
        return cost, strategies, orders


def solve(problem: Problem, effort: int = 100, depth: int = DEPTH) -> Solution:
    """Return the best decision that the search finds. Arguments are those of `Search`, errors of `Search.solution`."""
    return Search(problem, effort, depth).solution()


def _extended(
    joints: Sequence[tuple[Strategy | None, ...]], starts: Sequence[tuple[Strategy, ...]] | None, count: int
) -> list[tuple[Strategy | None, ...]]:
    """Return for each part `count` strategies, one for each of the first axes.

    Decided ones come first, then those of the start; None on further axes without a start.

    Args:
        joints: [part], the strategies on the axes decided so far.
        starts: [part], the strategies of the start on all axes; None if there is no start.
    """
    if starts is None:
        return [(*joint, *[None] * (count - len(joint))) for joint in joints]
    return [(*joint, *start[len(joint) : count]) for joint, start in zip(joints, starts, strict=True)]


def _blocks(count: int, block_size: int) -> Sequence[tuple[int, ...]]:
    """Return the positions of the axes that are decided together, for `count` axes.

    If one block has all axes, it is the only one. Otherwise, a block starts at each axis, and the axes form a ring. The
    first half of the blocks decides every axis. For example, four axes in pairs give (0, 1), (2, 3), (1, 2), (0, 3).
    """
    if count <= block_size:
        return [tuple(range(count))]
    starts = (*range(0, count, 2), *range(1, count, 2))
    return [tuple(sorted((start + step) % count for step in range(block_size))) for start in starts]
