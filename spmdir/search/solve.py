"""The sharding search: picks one strategy for every node on every axis at the least cost of the program.

Nodes that cannot be told apart by their surroundings share one decision (`repeats.py`), so that repeated layers are
decided once, and alike however many there are. Blocks of up to two axes are decided together (`block_search.py`), the
others fixed.

The cost is in seconds of one rank: its part of the compute, and reshards as the planner prices them, one for each
distinct placement that the users of a value require.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from operator import itemgetter

import attrs

from spmdir.rules.strategies.strategy import Strategy
from spmdir.search.block_search import BlockEnd, BlockSearch
from spmdir.search.colours import Colours
from spmdir.search.joint_cost import joint_cost
from spmdir.search.problem import Problem
from spmdir.search.repeats import as_if_repeated, quotient
from spmdir.search.worth import PLAIN, Worth

DEPTH = 4
"""The depth to which the surroundings of nodes are compared before merging."""

LAYERS = 4
"""How many equal layers programs of more than a few are decided for."""

TOGETHER = 2
"""The most axes that are decided together, but in programs of few nodes."""


@attrs.frozen
class Solution:
    """The result of the search.

    Attributes:
        strategies: axis → the strategy of each node.
        cost: of the program, in seconds, reshards of equal nodes priced alike; what else counts is left out.
        orders: by node, the axes by position, those that shard one dimension in the nesting order that was priced.
        ends: how the search on each block of axes ended, in order.
        worth: what else counted.
    """

    strategies: dict[str, list[Strategy]]
    cost: float
    orders: Sequence[tuple[int, ...]] = ()
    ends: tuple[BlockEnd, ...] = ()
    worth: Worth = PLAIN


Decision = dict[str, list[Strategy]]
"""Axis → the strategy of each part."""


class Search:
    """The search of the best decision for a problem.

    Args:
        effort: the most turns of messages on each block of axes.
        depth: of the comparison of surroundings.
    """

    def __init__(self, problem: Problem, effort: int = 100, depth: int = DEPTH):
        self.problem, self.effort = problem, effort
        self._colours = Colours(problem, len(problem.nodes) if problem.is_small else depth)
        self._shared = quotient(problem, self._colours.rounds[-1])

    def of(self, problem: Problem) -> Search:
        """Return the search for the same nodes where some have other sources."""
        other = copy.copy(self)
        other.problem, other._shared = problem, quotient(problem, self._colours.of(problem))
        return other

    def alike(self, node: int) -> Sequence[int]:
        """Return the nodes of the program that are merged with `node`, itself among them."""
        return self._shared.members[self._shared.node_class[node]]

    def _joints(self, decided: Solution) -> list[tuple[Strategy, ...]]:
        """Return the strategies on all axes of the first node of each part."""
        axes = self.problem.mesh.axis_names
        return [tuple([decided.strategies[axis][first] for axis in axes]) for first, *_ in self._shared.members]

    def solution(self, worth: Worth = PLAIN, start: Solution | None = None) -> Solution:
        """Return the best decision that is found.

        Args:
            worth: what counts beside time.
            start: a decision for the same nodes, whose strategies may be none of theirs; what is found is no worse
                than the nearest one to it that moves lead to.

        Raises:
            Unsolvable: the user annotations leave a node without a strategy.
        """
        problem, shared = self.problem, self._shared
        decided_for = as_if_repeated(shared.weighed(worth), LAYERS)
        axes, orders = problem.mesh.axis_names, ()
        starts = None if start is None else self._joints(start)
        joints = None if starts is None else [()] * len(starts)
        ends: list[BlockEnd] = []
        found: list[tuple[float, Decision, Sequence[tuple[int, ...]]]] = []
        together = TOGETHER + (problem.is_small and not problem.plugin_placements)
        for block in _blocks(len(axes), together):
            decided = axes[: max(block) + 1] if joints is None or len(joints[0]) < len(axes) else axes
            if joints is not None and len(joints[0]) < len(decided):
                known, end = len(joints[0]), len(decided)
                missing = starts or [(None,) * len(axes)] * len(joints)
                joints = [(*joint, *others[known:end]) for joint, others in zip(joints, missing, strict=True)]
                orders = ()
            search = BlockSearch(problem, decided_for, decided, block, joints, orders)
            joints, orders = search.run(self.effort, starts is not None), search.orders
            ends.append(search.end)
            if decided == axes:
                decision = {axis: [joint[at] for joint in joints] for at, axis in enumerate(axes)}
                found.append((joint_cost(problem.mesh, shared, decision, orders), decision, orders))
        # Times leave out what else counts, which the last block has seen on all axes.
        cost, strategies, orders = min(found, key=itemgetter(0)) if worth == PLAIN else found[-1]
        every = {axis: [chosen[part] for part in shared.node_class] for axis, chosen in strategies.items()}
        return Solution(every, cost, [orders[part] for part in shared.node_class], tuple(ends), worth)


def solve(problem: Problem, effort: int = 100, depth: int = DEPTH) -> Solution:
    """Return the best decision that the search finds; arguments and errors are those of `Search`."""
    return Search(problem, effort, depth).solution()


def _blocks(count: int, together: int) -> Sequence[tuple[int, ...]]:
    """Return the positions of the axes that are decided together: each with the next, the last with the first.

    There are as many blocks as axes, and those that decide every axis once come first.
    """
    if count <= together:
        return [tuple(range(count))]
    starts = (*range(0, count, 2), *range(1, count, 2))
    return [tuple(sorted((start + step) % count for step in range(together))) for start in starts]
