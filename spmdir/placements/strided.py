"""`Strided(dim, split)`: every rank has a shard of each of `split` blocks of a dimension.

Two things are laid out so:

- The nesting order of FSDP over tensor parallelism. Weights are sharded by `tp` first and then by `dp`, but where
  placements are listed in the order of the mesh's axes, `dp` stands first: `dp: Strided(0, 2), tp: S(0)` with two ranks
  on `tp` gives every rank the rows that `tp: S(0), dp: S(0)` gives it.
- Flattening. A dimension of 4 × 6 elements whose inner part is sharded is one of 24 elements of which ranks have shards
  of 4 blocks: `S(1)` becomes `Strided(0, 4)`.

With `Strided(0, 2)`, two ranks hold of eight rows

    rank 0: 0 1 4 5     rank 1: 2 3 6 7

It is what DTensor calls `_StridedShard`, uneven sizes included.
"""

from __future__ import annotations

from typing import ClassVar

import attrs

from spmdir.core.intervals import Ranges, Run, chunk, chunk_runs, joined, summed_runs
from spmdir.core.placement.base import Placement, ShardPlacement
from spmdir.core.placement.standard import Shard


@attrs.frozen
class Strided(ShardPlacement):
    """Rank i has chunk i of each of `split` blocks; both as `torch.chunk` makes them."""

    text: ClassVar[str] = "Strided({dim}, {split})"
    dim: int
    split: int = attrs.field(validator=attrs.validators.ge(1))

    def ranges(self, size: int, count: int, index: int) -> Ranges:
        ranges = []
        for stretch in range(self.split):
            start, extent = chunk(size, self.split, stretch)
            offset, own = chunk(extent, count, index)
            ranges.append((start + offset, start + offset + own))
        return joined(ranges)

    def runs(self, size: int, count: int) -> tuple[Run, ...]:
        stretches = chunk_runs(size, self.split)
        return summed_runs(((number, chunk_runs(extent, count)) for _, number, extent in stretches), count)

    def stretches(self, size: int, count: int) -> int:
        return min(size, self.split * count)

    def scaled(self, inner: int) -> Strided:
        return self

    def unscaled(self, inner: int) -> Strided:
        return self

    def inside(self, outer: int) -> Placement | None:
        if self.split % outer:
            return None
        return Shard(self.dim) if self.split == outer else Strided(self.dim, self.split // outer)
