"""Any decision in place of the search's: what is right may not depend on which shardings are chosen."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from spmdir.core.placement.standard import Partial, Placement
from spmdir.passes import propagate
from spmdir.search.problem import Problem, Row
from spmdir.search.solve import Solution

DIVIDING = 0.85
"""How often a node that can divide something does."""


def decide_at_random(patch: pytest.MonkeyPatch, seed: str) -> None:
    """While `patch` holds, `propagate` gives every op one of its rule's strategies, whatever the reshards between."""
    patch.setattr(propagate, "solve", random_solution(seed))


def random_solution(seed: str) -> Callable[..., Solution]:
    """Stands for `planner.search.solve`: a random row for every node on every axis.

    Rows that only pass on a pending reduction are for operands that have it; no value pends by two kinds.
    """

    def solve(problem: Problem, *_: object, **__: object) -> Solution:
        choice = random.Random(seed)
        chosen: dict[str, list[Row]] = {}
        for axis, count in problem.mesh.sizes.items():
            held: dict[int, Placement] = {}
            rows: list[Row] = []
            for index, node in enumerate(problem.nodes):
                others = [chosen[other][index] for other in chosen]
                divided: dict[int, int] = {}
                for other, row in zip(chosen, others, strict=True):
                    if row.factor is not None:
                        divided[row.factor] = divided.get(row.factor, 1) * problem.mesh.sizes[other]
                wanted = [held[value] for value in node.operands]
                offered = [row for row in node.offer.rows(axis, count, divided) if _fits(row, wanted, others)]
                offered = offered or list(node.offer.rows(axis, count, {}))
                dividing = [row for row in offered if row.factor is not None]
                row = choice.choice(dividing if dividing and choice.random() < DIVIDING else offered)
                held.update(zip(node.results, row.results, strict=True))
                rows.append(row)
            chosen[axis] = rows
        return Solution(chosen, 0.0, 0)

    return solve


def _fits(row: Row, held: list[Placement], others: list[Row]) -> bool:
    if any(_kind(want) and want != have for want, have in zip(row.operands, held, strict=True)):
        return False
    mine = (*row.operands, *row.results)
    kinds = [(_kind(a), _kind(b)) for o in others for a, b in zip(mine, (*o.operands, *o.results), strict=True)]
    return all(a == b for a, b in kinds if a and b)


def _kind(placement: Placement) -> str | None:
    """Which reduction is pending; a sum and an average commute."""
    return placement.op.replace("avg", "sum") if isinstance(placement, Partial) else None
