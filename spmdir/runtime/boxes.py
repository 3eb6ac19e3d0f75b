"""What part of a tensor a rank holds, as boxes: the products of ranges of its dimensions."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import attrs
import torch
from torch import Tensor

from spmdir.core.errors import UnsupportedError
from spmdir.core.intervals import Ranges, length, select
from spmdir.core.mesh import Mesh
from spmdir.core.sharding import Sharding
from spmdir.reshard.conditions import refinement

Offsets = tuple[int, ...]


@attrs.frozen
class Box:
    """A block of a tensor on a rank.

    Attributes:
        offsets: where it begins in the tensor.
        sizes: its shape.
        local: where it begins in what the rank holds.
    """

    offsets: Offsets
    sizes: Offsets
    local: Offsets

    def of(self, tensor: Tensor) -> Tensor:
        """Return the view of the box in a tensor of the global shape."""
        return _view(tensor, self.offsets, self.sizes)

    def of_local(self, shard: Tensor) -> Tensor:
        """Return the view of the box in what the rank holds."""
        return _view(shard, self.local, self.sizes)


def _view(tensor: Tensor, offsets: Sequence[int], sizes: Sequence[int]) -> Tensor:
    for dim, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
        tensor = tensor.narrow(dim, offset, size)
    return tensor


def held_boxes(sharding: Sharding, shape: Sequence[int], mesh: Mesh, rank: int) -> tuple[Box, ...]:
    """Return the boxes of a tensor of global `shape` that `rank` holds, which do not overlap.

    A tensor without elements has an empty box, so that a checkpoint knows it; an empty shard of another has none.

    Raises:
        UnsupportedError: what ranks hold are not elements of the tensor, as partial values.
    """
    ranges = held_ranges(sharding, shape, mesh, rank)
    if 0 in shape:
        nothing = (0,) * len(shape)
        return (Box(nothing, nothing, nothing),)
    found = []
    for block in itertools.product(*map(_placed, ranges)):
        starts, sizes, local = zip(*block, strict=True) if block else ((), (), ())
        found.append(Box(starts, sizes, local))
    return tuple(found)


def held_ranges(sharding: Sharding, shape: Sequence[int], mesh: Mesh, rank: int) -> tuple[Ranges, ...]:
    """Return the positions of each dimension that `rank` holds, in local order; padding follows them.

    Raises:
        UnsupportedError: what ranks hold are not elements of the tensor, as partial values.
    """
    mesh = refinement(mesh, sharding)
    ranges: list[Ranges] = [((0, size),) for size in shape]
    local = list(shape)
    for axes, placement in sharding.layers:
        count, index = mesh.group_size(axes), mesh.index(rank, axes)
        held = placement.held_ranges(tuple(local), count, index)
        if held is None:
            raise UnsupportedError(
                f"what ranks hold by {placement} on axis '{axes[0]}' are not elements of the tensor, so no rank can "
                "save its part; lay the tensor out by shards, or replicate it"
            )
        for dim, positions in held.items():
            ranges[dim] = select(ranges[dim], _before_padding(positions, length(ranges[dim])))
        local = [*placement.local_type(tuple(local), None, count, index)[0]]  # type: ignore[arg-type]
    return tuple(ranges)


def _before_padding(positions: Ranges, end: int) -> Ranges:
    """Return the `positions` before `end`.

    Raises:
        UnsupportedError: a later one comes first on the rank.
    """
    inside = tuple((start, min(stop, end)) for start, stop in positions if start < end)
    if any(start >= end or stop > end for start, stop in positions[: len(inside) - 1]):
        raise UnsupportedError("padding comes before elements on a rank; shard the padded dimension in another order")
    return inside


def _placed(ranges: Ranges) -> list[tuple[int, int, int]]:
    """Return (start, size, local start) of each range."""
    sizes = [end - start for start, end in ranges]
    local = itertools.accumulate(sizes, initial=0)
    return [(start, size, at) for (start, _), size, at in zip(ranges, sizes, local, strict=False) if size]


def copy_boxes(boxes: Sequence[Box], shard: Tensor, whole: Tensor) -> None:
    """Write the boxes of a tensor into what the rank holds of it."""
    with torch.no_grad():
        for box in boxes:
            box.of_local(shard.detach()).copy_(box.of(whole))
