"""The blocks of a tensor that a rank has. A block is a product of one range for each dimension.

`torch.chunk` gives each rank one block. Cyclic and other placements give a rank several.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import attrs
import torch
from torch import Tensor

from spmdir.core.intervals import Ranges
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.simulator.distribution import held_ranges

Offsets = tuple[int, ...]


@attrs.frozen
class ShardBlock:
    """A block of a tensor on a rank.

    Attributes:
        offsets: the start of the block in the global tensor.
        sizes: the shape of the block.
        local_offsets: the start of the block in the local shard.
    """

    offsets: Offsets
    sizes: Offsets
    local_offsets: Offsets

    def view_global(self, tensor: Tensor) -> Tensor:
        """Return the view of the block in a tensor of the global shape."""
        return _view(tensor, self.offsets, self.sizes)

    def view_local(self, shard: Tensor) -> Tensor:
        """Return the view of the block in the local shard."""
        return _view(shard, self.local_offsets, self.sizes)


def _view(tensor: Tensor, offsets: Sequence[int], sizes: Sequence[int]) -> Tensor:
    """Return the view of the block of `tensor` that starts at `offsets` and has the shape `sizes`."""
    for dim, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
        tensor = tensor.narrow(dim, offset, size)
    return tensor


def find_shard_blocks(sharding: Sharding, shape: Sequence[int], mesh: Mesh, rank: int) -> tuple[ShardBlock, ...]:
    """Return the blocks of a tensor of global `shape` that `rank` has. They do not overlap.

    A rank that has the rows 2, 3, 6 and 7 of a tensor of shape (8, 5) has two blocks of shape (2, 5).

    A tensor without elements has one empty block, because a checkpoint stores only tensors with blocks. An empty shard
    of a tensor with elements has no block.

    Raises:
        UnsupportedError: shards do not consist of elements of the tensor, such as partial values.
    """
    ranges = held_ranges(sharding, shape, mesh, rank)
    if 0 in shape:
        zeros = (0,) * len(shape)
        return (ShardBlock(zeros, zeros, zeros),)
    blocks = []
    for range_of_each_dim in itertools.product(*map(_place_ranges, ranges)):
        # A 0-d tensor has one block without dimensions.
        offsets, sizes, local_offsets = zip(*range_of_each_dim, strict=True) if range_of_each_dim else ((), (), ())
        blocks.append(ShardBlock(offsets, sizes, local_offsets))
    return tuple(blocks)


def _place_ranges(ranges: Ranges) -> list[tuple[int, int, int]]:
    """Return (start in the dimension, size, start in the local shard) of each non-empty range.

    The ranges (2, 4) and (6, 8) give [(2, 2, 0), (6, 2, 2)].
    """
    placed_ranges, local_start = [], 0
    for start, end in ranges:
        size = end - start
        if size:
            placed_ranges.append((start, size, local_start))
        local_start += size
    return placed_ranges


def copy_blocks(blocks: Sequence[ShardBlock], shard: Tensor, whole: Tensor) -> None:
    """Copy the blocks of a whole tensor into the local shard, in place and outside of autograd."""
    with torch.no_grad():
        for block in blocks:
            block.view_local(shard.detach()).copy_(block.view_global(whole))
