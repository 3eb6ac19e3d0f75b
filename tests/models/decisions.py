"""Any decision in place of the search's: what is right may not depend on which shardings are chosen."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from spmdir.core.placement.standard import Partial, Placement
from spmdir.passes import propagate
from spmdir.rules.strategies.strategy import UNSHARDED, shard_counts
from spmdir.search.problem import NodeStrategy, Problem
from spmdir.search.solve import Solution

SHARDING_RATE = 0.85
"""The probability that a node that can shard a factor does."""


def decide_at_random(patch: pytest.MonkeyPatch, seed: str) -> None:
    """While `patch` holds, `propagate` gives every op one of its rule's strategies, whatever the reshards between."""
    patch.setattr(propagate, "solve", random_solution(seed))


def random_solution(seed: str) -> Callable[..., Solution]:
    """Stands for `search.solve.solve`: a random strategy for every node on every axis.

    Strategies that only pass on a partial value are for operands that have it; no value is partial by two kinds.
    """

    def solve(problem: Problem, *_: object, **__: object) -> Solution:
        choice = random.Random(seed)
        chosen: dict[str, list[NodeStrategy]] = {}
        for axis, count in problem.mesh.sizes.items():
            held: dict[int, Placement] = {}
            taken: list[NodeStrategy] = []
            for index, node in enumerate(problem.nodes):
                others = [chosen[other][index] for other in chosen]
                sharded = shard_counts(zip(others, [problem.mesh.sizes[other] for other in chosen], strict=True))
                wanted = [held[value] for value in node.operands]
                strategies = [
                    strategy
                    for strategy in node.source.strategies(axis, count, sharded)
                    if _fits(strategy, wanted, others)
                ]
                strategies = strategies or list(node.source.strategies(axis, count, UNSHARDED))
                splitting = [strategy for strategy in strategies if strategy.factors]
                strategy = choice.choice(splitting if splitting and choice.random() < SHARDING_RATE else strategies)
                held.update(zip(node.results, strategy.results, strict=True))
                taken.append(strategy)
            chosen[axis] = taken
        return Solution(chosen, 0.0, 0)

    return solve


def _fits(strategy: NodeStrategy, held: list[Placement], others: list[NodeStrategy]) -> bool:
    if any(_kind(want) and want != have for want, have in zip(strategy.operands, held, strict=True)):
        return False
    mine = (*strategy.operands, *strategy.results)
    kinds = [(_kind(a), _kind(b)) for o in others for a, b in zip(mine, (*o.operands, *o.results), strict=True)]
    return all(a == b for a, b in kinds if a and b)


def _kind(placement: Placement) -> str | None:
    """Return which reduction is partial; a sum and an average commute."""
    return placement.op.replace("avg", "sum") if isinstance(placement, Partial) else None
