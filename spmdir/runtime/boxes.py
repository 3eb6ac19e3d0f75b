"""The part of a tensor that a rank has, as boxes: products of ranges of its dimensions."""

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
class Box:
    """A block of a tensor on a rank.

    Attributes:
        offsets: the start of the block in the global tensor.
        sizes: the shape of the block.
        local: the start of the block in the local shard.
    """

    offsets: Offsets
    sizes: Offsets
    local: Offsets

    def of(self, tensor: Tensor) -> Tensor:
        """Return the view of the box in a tensor of the global shape."""
        return _view(tensor, self.offsets, self.sizes)

    def of_local(self, shard: Tensor) -> Tensor:
        """Return the view of the box in the local shard."""
        return _view(shard, self.local, self.sizes)


def _view(tensor: Tensor, offsets: Sequence[int], sizes: Sequence[int]) -> Tensor:
    """Return the view of the block of `tensor` that starts at `offsets` and has the shape `sizes`."""
    for dim, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
        tensor = tensor.narrow(dim, offset, size)
    return tensor


def held_boxes(sharding: Sharding, shape: Sequence[int], mesh: Mesh, rank: int) -> tuple[Box, ...]:
    """Return the boxes of a tensor of global `shape` that `rank` has. They do not overlap.

    A rank that has the rows 2, 3, 6 and 7 of a tensor of shape (8, 5) has two boxes of shape (2, 5).

    A tensor without elements has one empty box, because a checkpoint stores only tensors with boxes. An empty shard of
    another tensor has no box.

    Raises:
        UnsupportedError: shards do not consist of elements of the tensor, such as partial values.
    """
    ranges = held_ranges(sharding, shape, mesh, rank)
    if 0 in shape:
        nothing = (0,) * len(shape)
        return (Box(nothing, nothing, nothing),)
    boxes = []
    for block in itertools.product(*map(_place_ranges, ranges)):
        starts, sizes, local = zip(*block, strict=True) if block else ((), (), ())
        boxes.append(Box(starts, sizes, local))
    return tuple(boxes)


def _place_ranges(ranges: Ranges) -> list[tuple[int, int, int]]:
    """Return (start in the dimension, size, start in the local shard) of each range. Empty ranges are left out.

    The ranges (2, 4) and (6, 8) give [(2, 2, 0), (6, 2, 2)].
    """
    sizes = [end - start for start, end in ranges]
    local = itertools.accumulate(sizes, initial=0)
    return [
        (start, size, local_start) for (start, _), size, local_start in zip(ranges, sizes, local, strict=False) if size
    ]


def copy_boxes(boxes: Sequence[Box], shard: Tensor, whole: Tensor) -> None:
    """Copy the boxes of a whole tensor into the local shard."""
    with torch.no_grad():
        for box in boxes:
            box.of_local(shard.detach()).copy_(box.of(whole))
