"""`Cyclic(dim, block)`: the block-cyclic layout, as in ScaLAPACK.

A dimension is partitioned into blocks of `block` elements, which are assigned to the ranks in turn. With
`Cyclic(0, 2)`, three ranks have these of ten rows:

    rank 0: 0 1 6 7     rank 1: 2 3 8 9     rank 2: 4 5

In a factorisation or under a causal mask, the work decreases from one end of a matrix to the other. This layout
balances it between the ranks.
"""

from __future__ import annotations

from typing import ClassVar

import attrs

from spmdir.core.intervals import Ranges, Run, joined, summed_runs
from spmdir.core.placement.shards import ShardPlacement


@attrs.frozen
class Cyclic(ShardPlacement):
    """Rank i of n has the blocks i, i + n, i + 2n, … The last block may be shorter."""

    text: ClassVar[str] = "Cyclic({dim}, {block})"
    dim: int
    block: int = attrs.field(validator=attrs.validators.ge(1))

    def ranges(self, size: int, count: int, index: int) -> Ranges:
        starts = range(index * self.block, size, count * self.block)
        return joined((start, min(start + self.block, size)) for start in starts)

    def runs(self, size: int, count: int) -> tuple[Run, ...]:
        """Return the runs of ranks with shards of equal length.

        In each complete round, every rank gets a block. In the last round, some ranks get a full block, one rank the
        short block, and the others nothing. For ten rows of `Cyclic(0, 2)` on three ranks, there is one complete round
        of six rows. The other four rows are a block for rank 0 and a block for rank 1.
        """
        complete_rounds, remaining = divmod(size, self.block * count)
        full_blocks, short_length = divmod(remaining, self.block)
        last_round = (
            (0, full_blocks, self.block),
            (full_blocks, 1, short_length),
            (full_blocks + 1, count - full_blocks - 1, 0),
        )
        return summed_runs([(complete_rounds, ((0, count, self.block),)), (1, last_round)], count)

    def stretches(self, size: int, count: int) -> int:
        return -(-size // self.block)

    def scaled(self, inner: int) -> Cyclic:
        return Cyclic(self.dim, self.block * inner)

    def unscaled(self, inner: int) -> Cyclic | None:
        return None if self.block % inner else Cyclic(self.dim, self.block // inner)

    def inside(self, outer: int) -> Cyclic:
        # Complete rounds fill each outer block, so all of them are assigned in the same way.
        return self
