"""Laws of edge states, the tensors that ranks keep for a step from one run to the next."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from spmdir.checking.placements.law import Example, Law, is_value_placement
from spmdir.checking.placements.layouts import layouts, usual_counts
from spmdir.checking.placements.simulated_steps import Move, run_repeatedly
from spmdir.checking.placements.step_laws import edge_name, moves_along_edges
from spmdir.core.dtype import F32, F64
from spmdir.core.placement.base import Placement
from spmdir.simulator.distribution import collect

RUNS = 32
"""Error feedback must have added the error of each run after this number of further runs."""

GROWTH = 1.5
"""The largest allowed growth of the summed error when the number of runs doubles. Without error feedback it doubles."""


def _edges_with_state(placement: Placement) -> list[str]:
    """Return the names of the edges that keep state."""
    return [edge_name(edge) for edge in placement.edges() if edge.state] if is_value_placement(placement) else []


def _moves_with_states(placement: Placement) -> Iterator[Move]:
    """Yield the moves of one tensor along edges with states, on each of the usual numbers of ranks.

    The first tensor with such a move is used. Matrices come first, and shapes of about 6 elements.
    """
    if not _edges_with_state(placement):
        return
    dtype = next((dtype for dtype in (F64, F32) if placement.supports(dtype)), None)
    if dtype is None:
        return
    for count in usual_counts(placement):
        shapes = [example.shape or () for example in layouts(placement) if example.count == count]
        shapes = sorted(filter(math.prod, shapes), key=lambda shape: (len(shape) != 2, abs(math.prod(shape) - 6)))
        for shape in shapes:
            moves = moves_along_edges(placement, Example(count, shape, dtype), two_axes=False)
            moves_with_states = [move for move in moves if move.edge_states]
            if moves_with_states:
                yield from moves_with_states
                break


def _find_state_fault(placement: Placement, example: Example) -> str | None:
    """Run the move on the same tensor many times; return a fault of its states or of the sum of its errors, else None.

    A compression that loses 0.1 in each run has an error of 3.2 after 32 runs, and of 6.4 after 64. With error feedback
    the next run adds what was lost, so the sum stays near 0.1.
    """
    assert isinstance(example, Move) and example.shape is not None
    tensor, states_of_edge = example.tensor(), example.edge_states
    error_norms, summed_error, has_changed = [], torch.zeros_like(tensor), False
    first_states: list[list[torch.Tensor]] | None = None
    for result, *states in run_repeatedly(example, example.source_shards(), 2 * RUNS):
        for state, shards in zip(states_of_edge, states, strict=True):
            if not all(shard.isfinite().all() for shard in shards):
                runs = len(error_norms) + 1
                return f"the state '{state.name}' has NaN or infinities after {runs} runs; expected finite elements"
        first_states = first_states or states
        is_nonzero = any(shard.any() for shards in states for shard in shards)  # states start as zeros
        has_changed = has_changed or is_nonzero or any(map(_differ, first_states, states))
        summed_error += collect(result, example.target, example.mesh, example.shape, tensor.dtype) - tensor
        error_norms.append(float(torch.linalg.vector_norm(summed_error)))
    # The errors of low-rank factors oscillate, because the factors rotate from run to run.
    before, after = max(error_norms[:RUNS]), max(error_norms[RUNS:])
    # The sum of the errors is negligible: the results are exact up to rounding.
    if after <= 1e-3 * RUNS * float(torch.linalg.vector_norm(tensor)):
        return None
    if not has_changed:
        return (
            "the states of the edge never change, and its results are not exact; expected that `lower` returns the new "
            "states after the result"
        )
    feedback = [state for state in states_of_edge if state.feedback]
    if feedback and after > GROWTH * before:
        return (
            f"the errors of {2 * RUNS} runs on one tensor sum to {after:.3g}, those of {RUNS} runs to {before:.3g}; "
            f"expected that each run stores its error in '{feedback[0].name}', and that the next run adds it"
        )
    return None


def _differ(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    """Return whether two lists of tensors differ in an element."""
    return any(not torch.equal(left_shard, right_shard) for left_shard, right_shard in zip(left, right, strict=True))


EDGE_STATE_LAWS = (
    Law(
        "state",
        "edge states stay finite, and later runs add the error that a run stores in a state with `feedback`",
        _moves_with_states,
        _find_state_fault,
        ("edges",),
        subjects=_edges_with_state,
    ),
)
