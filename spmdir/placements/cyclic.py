"""`Cyclic(dim, block)`: block-cyclic, the layout of ScaLAPACK's matrices.

A dimension is partitioned into blocks of `block` elements, which are dealt to the ranks in turn. With `Cyclic(0, 2)`,
three ranks hold of ten rows

    rank 0: 0 1 6 7     rank 1: 2 3 8 9     rank 2: 4 5

Where work shrinks from one end of a matrix to the other, as in a factorisation or under a causal mask, all ranks keep
about as much of it.
"""

from __future__ import annotations

from typing import ClassVar

import attrs

from spmdir.core.intervals import Ranges, Run, joined, summed_runs
from spmdir.core.placement.base import ShardPlacement


@attrs.frozen
class Cyclic(ShardPlacement):
    """Rank i holds the blocks i, i + n, i + 2n, … of n ranks; the last block may be short."""

    text: ClassVar[str] = "Cyclic({dim}, {block})"
    dim: int
    block: int = attrs.field(validator=attrs.validators.ge(1))

    def ranges(self, size: int, count: int, index: int) -> Ranges:
        starts = range(index * self.block, size, count * self.block)
        return joined((start, min(start + self.block, size)) for start in starts)

    def runs(self, size: int, count: int) -> tuple[Run, ...]:
        rounds, rest = divmod(size, self.block * count)
        full, last = divmod(rest, self.block)
        last_round = ((0, full, self.block), (full, 1, last), (full + 1, count - full - 1, 0))
        return summed_runs([(rounds, ((0, count, self.block),)), (1, last_round)], count)

    def stretches(self, size: int, count: int) -> int:
        return -(-size // self.block)

    def scaled(self, inner: int) -> Cyclic:
        return Cyclic(self.dim, self.block * inner)

    def unscaled(self, inner: int) -> Cyclic | None:
        return None if self.block % inner else Cyclic(self.dim, self.block // inner)

    def inside(self, outer: int) -> Cyclic:
        # Every block is dealt alike where complete rounds fill it.
        return self
