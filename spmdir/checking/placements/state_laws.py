"""Laws of what ranks keep for a step from one run to the next."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from spmdir.checking.placements.law import Example, Law, can_be_held
from spmdir.checking.placements.layouts import layouts, usual_counts
from spmdir.checking.placements.simulated_steps import Move, run_again
from spmdir.checking.placements.step_laws import edges_on, name_of_edge
from spmdir.core.dtype import F32, F64
from spmdir.core.placement.base import Placement
from spmdir.simulator.distribution import collect

RUNS = 32
"""Runs after which what a step leaves out of each must have been added, but for what the last ones left."""

GROWTH = 1.5
"""How many times as large the errors of twice as many runs may be in sum; those that nothing corrects are twice."""


def _keeping(placement: Placement) -> list[str]:
    return [name_of_edge(edge) for edge in placement.edges() if edge.state] if can_be_held(placement) else []


def _stateful(placement: Placement) -> Iterator[Move]:
    if not _keeping(placement):
        return
    dtype = next((kind for kind in (F64, F32) if placement.supports(kind)), None)
    for count in usual_counts(placement) if dtype else ():
        taken = [one for one in layouts(placement) if one.count == count and math.prod(one.shape or ())]
        taken.sort(key=lambda one: (len(one.shape or ()) != 2, abs(math.prod(one.shape or ()) - 6)))
        found = (edges_on(placement, Example(count, one.shape, dtype), two_axes=False) for one in taken)
        yield from next(filter(None, ([move for move in moves if move.states] for moves in found)), [])


def _kept(placement: Placement, example: Example) -> str | None:
    assert isinstance(example, Move) and example.shape is not None
    tensor, held, shape = example.tensor(), example.held(), example.shape
    sums, total, changed = [], torch.zeros_like(tensor), False
    first: list[list[torch.Tensor]] | None = None
    for value, *states in run_again(example, held, 2 * RUNS):
        for one, kept in zip(example.states, states, strict=True):
            if not all(state.isfinite().all() for state in kept):
                return f"after {len(sums) + 1} runs the state '{one.name}' is not finite"
        first = first or states
        changed = changed or any(map(_differ, first, states)) or any(state.any() for each in states for state in each)
        total = total + collect(value, example.target, example.mesh, shape, tensor.dtype) - tensor
        sums.append(float(torch.linalg.vector_norm(total)))
    # The errors of low-rank factors rise and fall, as these turn from one direction to another.
    before, after = max(sums[:RUNS]), max(sums[RUNS:])
    if after <= 1e-3 * RUNS * float(torch.linalg.vector_norm(tensor)):
        return None
    if not changed:
        return "its states never change, and its results are not exact; expected the new states beside the result"
    own = [one for one in example.states if one.feedback]
    if own and after > GROWTH * before:
        return (
            f"the errors of {2 * RUNS} runs on one value are {after:.3g} in sum, those of {RUNS} runs {before:.3g}; "
            f"expected that what a run leaves in '{own[0].name}' is added to later ones"
        )
    return None


def _differ(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return any(not torch.equal(one, other) for one, other in zip(left, right, strict=True))


STATE_LAWS = (
    Law(
        "state",
        "states stay finite, and what a run leaves in one with `feedback` is added to later ones",
        _stateful,
        _kept,
        ("edges",),
        subjects=_keeping,
    ),
)
