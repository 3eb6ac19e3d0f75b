"""A factor: a dimension that operands and results of one call share."""

from __future__ import annotations

import attrs

Dims = tuple[tuple[int, ...], ...]
"""The factors of each dimension, major first. A dimension of size 1 may have none."""


@attrs.frozen
class Factor:
    """A dimension that operands and results share, with its properties from active clauses.

    Attributes:
        name: its name in messages and in the output of `--print-rules`.
        size: its global number of elements.
        kind: "plain", "unsharded" (never sharded), "same" (results without it do not depend on it), or the reduction by
            which results without it are partial.
        rewrite: "expand" or "local" if sharding it replaces the op.
        least: the number of its elements that every rank must have.
        aligned: whether every rank must have a multiple of 16 bytes of it.
        clauses: the indices of the clauses that may rewrite the op if it is sharded. The last suitable one is used.
        alone: the indices of those clauses that support one sharded factor only.
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
        """The number of elements that every rank must have: at least 1 for maxima, minima and local forms."""
        return self.least_with(self.rewrite)

    def least_with(self, rewrite: str | None) -> int:
        """Return the number of elements that every rank must have if sharding this factor leads to `rewrite`."""
        # An empty shard has no maximum or minimum, and local forms do not support empty shards.
        requires_one = self.kind in ("max", "min") or rewrite == "local"
        return max(self.least, int(requires_one))
