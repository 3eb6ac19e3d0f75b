"""`Strided(dim, split)`: each rank has a shard of each of `split` blocks of a dimension.

With `Strided(0, 2)`, two ranks have these of eight rows:

    rank 0: 0 1 4 5     rank 1: 2 3 6 7

There are two uses:

- FSDP over tensor parallelism shards weights along `tp` first, and then along `dp`. A sharding in the order of the mesh
  axes lists `dp` first. With two ranks on `tp`, `dp: Strided(0, 2), tp: S(0)` assigns the same rows as
  `tp: S(0), dp: S(0)`.
- If a 4 × 6 tensor with `S(1)` is flattened to 24 elements, each rank has a shard of each of 4 blocks: the placement
  becomes `Strided(0, 4)`.

DTensor calls it `_StridedShard`, also for uneven sizes.
"""

from __future__ import annotations

from typing import ClassVar

import attrs

from spmdir.core.intervals import Ranges, Run, chunk, chunk_runs, joined, summed_runs
from spmdir.core.placement.base import Placement
from spmdir.core.placement.shards import ShardPlacement
from spmdir.core.placement.standard import Shard


@attrs.frozen
class Strided(ShardPlacement):
    """Rank i has chunk i of each of `split` blocks. Blocks and chunks are those of `torch.chunk`."""

    text: ClassVar[str] = "Strided({dim}, {split})"
    dim: int
    split: int = attrs.field(validator=attrs.validators.ge(1))

    def ranges(self, size: int, count: int, index: int) -> Ranges:
        ranges = []
        for block in range(self.split):
            start, extent = chunk(size, self.split, block)
            offset, length = chunk(extent, count, index)
            ranges.append((start + offset, start + offset + length))
        return joined(ranges)

    def runs(self, size: int, count: int) -> tuple[Run, ...]:
        """Return the runs of ranks with shards of equal length: the sum of the runs in each block.

        Blocks of equal length have equal chunks, so the runs of one block are multiplied by the number of such blocks.
        """
        block_runs = chunk_runs(size, self.split)
        return summed_runs(((blocks, chunk_runs(extent, count)) for _, blocks, extent in block_runs), count)

    def stretches(self, size: int, count: int) -> int:
        return min(size, self.split * count)

    def scaled(self, inner: int) -> Strided:
        return self

    def unscaled(self, inner: int) -> Strided:
        return self

    def inside(self, outer: int) -> Placement | None:
        """Return the placement within each of `outer` equal parts; None if a block would span two parts."""
        if self.split % outer:
            return None
        return Shard(self.dim) if self.split == outer else Strided(self.dim, self.split // outer)
