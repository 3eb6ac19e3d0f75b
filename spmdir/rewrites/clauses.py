"""What rewrites may speak of: every collective and its start, those of plug-ins too, and `wait`; and their clauses."""

from __future__ import annotations

from spmdir.reshard.clause import START, Clause
from spmdir.reshard.collective_spec import CollectiveSpec
from spmdir.reshard.collectives import collective, collectives

OTHERS = ("wait",)
"""Ops on one operand that are not collectives; they have no clauses, and keep the sharding."""


def kinds() -> tuple[str, ...]:
    """Return the names, without `spmd.`, of the ops that a term may be."""
    starts = (spec.name + START for spec in collectives() if spec.may_be_async)
    return (*(spec.name for spec in collectives()), *starts, *OTHERS)


def spec_of(kind: str) -> CollectiveSpec | None:
    """Return what a collective, or the one that is started, declares; None for the other ops."""
    return None if kind in OTHERS else collective(kind.removesuffix(START))


def clauses_of(kind: str) -> dict[str, Clause]:
    """Return the clauses of the text of an op by keyword."""
    spec = spec_of(kind)
    return {clause.keyword: clause for clause in spec.clauses} if spec else {}


def names_axes(kind: str) -> bool:
    """Return whether the op names its mesh axes, or keeps the sharding; else its result's sharding says it all."""
    spec = spec_of(kind)
    return spec is None or spec.names_axes
