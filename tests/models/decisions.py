"""Any decision in place of the search's: what is right may not depend on which shardings are chosen."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import pytest

from spmdir.core.errors import ShardingError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.standard import Partial, Placement
from spmdir.rules.strategies.strategy import UNSHARDED, Strategy, shard_counts
from spmdir.search.problem import Node, Problem
from spmdir.search.solve import Search, Solution

SHARDING_RATE = 0.85
"""The probability that a node that can shard a factor does."""

TRIES = 100
"""How often strategies of all axes are drawn for a node, until they go together."""

Choice = dict[str, Strategy]
"""Axis → the strategy of a node."""


def decide_at_random(patch: pytest.MonkeyPatch, seed: str) -> None:
    """While `patch` holds, `propagate` gives every op one of its rule's strategies, whatever the reshards between."""
    patch.setattr(Search, "solution", random_solution(seed))


def random_solution(seed: str) -> Callable[..., Solution]:
    """Stands for `Search.solution`: a random strategy for every node on every axis.

    Strategies that only pass on a partial value are for operands that have it; no value is partial by two kinds.
    """

    def solution(search: Search, *_: object, **__: object) -> Solution:
        problem = search.problem
        choice = random.Random(seed)
        held: dict[str, dict[int, Placement]] = {axis: {} for axis in problem.mesh.sizes}
        chosen: dict[str, list[Strategy]] = {axis: [] for axis in problem.mesh.sizes}
        for node in problem.nodes:
            drawn = (_drawn(choice, node, problem.mesh, held) for _ in range(TRIES))
            taken = next(one for one in drawn if _go_together(problem, node, one))
            for axis, strategy in taken.items():
                chosen[axis].append(strategy)
                held[axis].update(zip(node.results, strategy.results, strict=True))
        return Solution(chosen, 0.0)

    return solution


def _drawn(choice: random.Random, node: Node, mesh: Mesh, held: Mapping[str, Mapping[int, Placement]]) -> Choice:
    taken: Choice = {}
    for axis, count in mesh.sizes.items():
        sharded = shard_counts((strategy, mesh.sizes[other]) for other, strategy in taken.items())
        wanted = [held[axis][value] for value in node.operands]
        fitting = [s for s in node.source.strategies(axis, count, sharded) if _fits(s, wanted, list(taken.values()))]
        fitting = fitting or list(node.source.strategies(axis, count, UNSHARDED))
        splitting = [strategy for strategy in fitting if strategy.factors]
        taken[axis] = choice.choice(splitting if splitting and choice.random() < SHARDING_RATE else fitting)
    return taken


def _go_together(problem: Problem, node: Node, taken: Choice) -> bool:
    """Return whether the strategy of each axis is one beside the others, and the values can be sharded so."""
    mesh = problem.mesh
    if not problem.plugin_placements:
        return True
    for axis, strategy in taken.items():
        others = shard_counts((other, mesh.sizes[a]) for a, other in taken.items() if a != axis)
        beside = node.source.strategies(axis, mesh.sizes[axis], others)
        if not any((s.operands, s.results) == (strategy.operands, strategy.results) for s in beside):
            return False
    for position, value in enumerate((*node.operands, *node.results)):
        placed = [(axis, (*s.operands, *s.results)[position]) for axis, s in taken.items()]
        placed.sort(key=lambda entry: not entry[1].is_demanding)
        try:
            Sharding(placed, mesh.name).check_shape(mesh, problem.values[value].shape)
        except ShardingError:
            return False
    return True


def _fits(strategy: Strategy, held: list[Placement], others: list[Strategy]) -> bool:
    if any(_kind(want) and want != have for want, have in zip(strategy.operands, held, strict=True)):
        return False
    mine = (*strategy.operands, *strategy.results)
    kinds = [(_kind(a), _kind(b)) for o in others for a, b in zip(mine, (*o.operands, *o.results), strict=True)]
    return all(a == b for a, b in kinds if a and b)


def _kind(placement: Placement) -> str | None:
    """Return which reduction is partial; a sum and an average commute."""
    return placement.op.replace("avg", "sum") if isinstance(placement, Partial) else None
