"""What rewrites may speak of: the ops of the `spmd` dialect on one operand, with their clauses."""

from __future__ import annotations

from spmdir.dialects.buckets import UnbucketOp
from spmdir.dialects.collectives import Collective, WaitOp
from spmdir.dialects.spmd import Spmd
from spmdir.reshard.steps import MOVES

KINDS = {
    op.name.removeprefix("spmd."): op for op in Spmd.operations if issubclass(op, Collective | WaitOp | UnbucketOp)
}
"""Name without `spmd.` → class."""


def clauses_of(kind: str) -> tuple[tuple[str, str], ...]:
    """Return the (keyword, argument) pairs of the text of an op."""
    return KINDS[kind].CLAUSES


def names_axes(kind: str) -> bool:
    """Return whether the op names its mesh axes, or keeps the sharding; else its result's sharding says it all."""
    return "on" in dict(clauses_of(kind)) or not issubclass(KINDS[kind], Collective)


def orders_axes(kind: str) -> bool:
    """Return whether the order of its axes matters: it is the nesting order of a dimension that they leave or join."""
    return "shard" in MOVES.get(kind, ())
