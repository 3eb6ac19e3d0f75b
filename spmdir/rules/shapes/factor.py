"""A factor: a dimension that operands and results of one call share."""

from __future__ import annotations

import attrs

Dims = tuple[tuple[int, ...], ...]
"""Per dimension, the factors that make it up, major first; none for a dimension of size 1 that no factor fills."""


@attrs.frozen
class Factor:
    """A dimension that operands and results share, with what the clauses of the rule say of it.

    Attributes:
        name: as messages and `--print-rules` show it.
        size: its number of elements over all ranks.
        kind: "plain", "unsharded" (never sharded), "same" (results without it do not depend on it), or the reduction
            that results without it are partial by.
        rewrite: "expand" or "local" when sharding it replaces the op.
        least: the elements that every rank must have of it.
        aligned: whether every rank must have a multiple of 16 bytes of it.
        clauses: the indices of the clauses that may rewrite the op when it is sharded; the last that suits counts.
        alone: those of these clauses that handle one of their factors at a time.
    """

    name: str
    size: int
    kind: str = "plain"
    rewrite: str | None = None
    least: int = 0
    aligned: bool = False
    clauses: tuple[int, ...] = ()
    alone: tuple[int, ...] = ()

    @property
    def least_elements(self) -> int:
        """Return the elements that every rank must have: a maximum of none and a local form of none do not exist."""
        return self.least_by(self.rewrite)

    def least_by(self, rewrite: str | None) -> int:
        """Return the elements that every rank must have where sharding it rewrites the op so."""
        return max(self.least, self.kind in ("max", "min") or rewrite == "local")
