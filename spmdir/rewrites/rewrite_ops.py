"""The ops in terms of rewrites: all collectives and their starts, including those of plug-ins, and `wait`."""

from __future__ import annotations

from spmdir.reshard.clause import START, Clause
from spmdir.reshard.collective_spec import CollectiveSpec
from spmdir.reshard.collectives import collective, collectives

OTHERS = ("wait",)
"""Ops on one operand that are not collectives. They have no clauses and do not change the sharding."""


def kinds() -> tuple[str, ...]:
    """Return the names of the ops that terms may contain, without `spmd.`."""
    starts = (spec.name + START for spec in collectives() if spec.may_be_async)
    return (*(spec.name for spec in collectives()), *starts, *OTHERS)


def spec_of(kind: str) -> CollectiveSpec | None:
    """Return the spec of a collective or of its start; None for other ops."""
    return None if kind in OTHERS else collective(kind.removesuffix(START))


def clauses_of(kind: str) -> dict[str, Clause]:
    """Return keyword → clause for an op."""
    spec = spec_of(kind)
    return {clause.keyword: clause for clause in spec.clauses} if spec else {}


def names_axes(kind: str) -> bool:
    """Return whether an op names its mesh axes or keeps the sharding. If not, the sharding of its result defines it."""
    spec = spec_of(kind)
    return spec is None or spec.names_axes
