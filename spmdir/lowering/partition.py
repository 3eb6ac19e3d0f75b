"""The partition of one dimension among the ranks of a group, and the graph nodes that split and join tensors.

Chunks are numbered in nesting order, but the ranks of a process group are in mesh order. For example, with the axes
`b: S(0), a: S(0)` on the mesh (a = 2, b = 2), chunk 1 is on rank 2, which has the coordinates a = 1, b = 0.

Any chunk of a nested uneven partition may be short, so padding may occur in the middle of the block. If chunks are not
contiguous, the block is first permuted to *chunk order*, chunk after chunk. After a gather, this is undone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

import attrs
from torch.fx import Node

from spmdir.core.intervals import Ranges, joined, length, positions
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding, shard_ranges
from spmdir.lowering.ranges import Emit, aten, narrow, take

Shape = tuple[int, ...]


@attrs.define(frozen=True, slots=False)
class DimPartition:
    """The chunks of a block of `extent` elements of dimension `dim`.

    Attributes:
        dim: the dimension.
        extent: the number of elements of the block along it.
        counts: the number of chunks along each axis, in nesting order.
        order: for each axis in mesh order, its position in nesting order.
        ranges: the positions of each chunk in the block, in nesting order.
    """

    dim: int
    extent: int
    counts: Shape
    order: Shape
    ranges: tuple[Ranges, ...]

    @property
    def count(self) -> int:
        """Return the number of chunks."""
        return len(self.ranges)

    @cached_property
    def chunks(self) -> tuple[tuple[int, int], ...]:
        """Return (offset, length) of each chunk, in nesting order, for a block in chunk order."""
        lengths = list(map(length, self.ranges))
        return tuple(zip(itertools.accumulate(lengths, initial=0), lengths, strict=False))

    @cached_property
    def chunk_order(self) -> Ranges:
        """Return the positions of all elements of the block, chunk after chunk: the permutation to chunk order."""
        return joined(itertools.chain.from_iterable(self.ranges))

    @cached_property
    def step(self) -> int:
        """Return the length of the longest chunk."""
        return max(length for _, length in self.chunks)

    @cached_property
    def is_even(self) -> bool:
        """Return whether all chunks have the same length."""
        return self.extent == self.step * self.count

    @cached_property
    def is_in_mesh_order(self) -> bool:
        """Return whether nesting order is mesh order."""
        return self.order == tuple(range(len(self.order)))

    @cached_property
    def by_rank(self) -> Shape:
        """Return the number of the chunk of each rank of the group, in mesh order of the ranks.

        In the example of this file, it is (0, 2, 1, 3): rank 2, with a = 1 and b = 0, has chunk 1.
        """
        chunk_numbers = []
        for coordinates in itertools.product(*(range(self.counts[axis_position]) for axis_position in self.order)):
            coordinate_of_axis = dict(zip(self.order, coordinates, strict=True))
            chunk_number = 0
            for axis_position, count in enumerate(self.counts):
                chunk_number = chunk_number * count + coordinate_of_axis[axis_position]
            chunk_numbers.append(chunk_number)
        return tuple(chunk_numbers)

    @cached_property
    def runs(self) -> tuple[tuple[int, int, int], ...]:
        """Return (first chunk, offset, length) of each run of chunks that padding to `step` does not separate.

        All chunks of a run but the last have `step` elements, so no padding occurs inside of the run. For example,
        chunks of 2, 1, 2 and 0 elements are padded to 2. They have the runs (0, 0, 3) and (2, 3, 2).
        """
        runs: list[tuple[int, int, int]] = []
        for chunk_number, (offset, size) in enumerate(self.chunks):
            # The last run ends where this chunk starts after padding, so the run goes on.
            if runs and runs[-1][0] * self.step + runs[-1][2] == chunk_number * self.step:
                runs[-1] = (*runs[-1][:2], runs[-1][2] + size)
            elif size or not runs:
                runs.append((chunk_number, offset, size))
        return tuple(runs)


def partition_of(sharding: Sharding, dim: int, axes: Sequence[str], size: int, mesh: Mesh, rank: int) -> DimPartition:
    """Return the partition of a block among the ranks along `axes`.

    The block is the part of dimension `dim` that `rank` has according to the other, outer axes of the dimension.

    Args:
        axes: the innermost axes that shard the dimension, in nesting order.
        size: the global length of the dimension.
    """
    outer_entries = [(axis, placement) for axis, placement in sharding.entries if axis not in axes]
    outer_sharding = Sharding(outer_entries, sharding.mesh)
    extent = length(outer_sharding.local_ranges(dim, size, mesh, mesh.coordinate(rank)))
    counts = tuple(mesh.sizes[axis] for axis in axes)
    order = tuple(axes.index(axis) for axis in mesh.axis_names if axis in axes)
    placements = tuple((sharding[axis], mesh.sizes[axis]) for axis in axes)
    return DimPartition(dim, extent, counts, order, _chunk_ranges(placements, extent))


@lru_cache(maxsize=4096)
def _chunk_ranges(placements: tuple[tuple[Any, int], ...], extent: int) -> tuple[Ranges, ...]:
    """Return the positions of each chunk of `extent` elements, sharded by (placement, count) pairs, outermost first."""
    points = itertools.product(*(range(count) for _, count in placements))
    return tuple(shard_ranges(placements, extent, point) for point in points)


def to_chunk_order(emit: Emit, x: Node, partition: DimPartition) -> Node:
    """Return the block `x` in chunk order.

    Args:
        emit: `site.emit`.
        x: the block.
        partition: how ranks partition it, as `site.partition` returns it.

    Raises:
        SpmdirError: an op cannot be emitted.

    Example:
        >>> x = spmdir.placement.to_chunk_order(site.emit, x, site.partition(site.target, site.dim))
    """
    return take(emit, x, partition.dim, partition.chunk_order, partition.extent)


def from_chunk_order(emit: Emit, x: Node, partition: DimPartition) -> Node:
    """Invert `to_chunk_order`.

    Args:
        emit: `site.emit`.
        x: the block in chunk order.
        partition: as for `to_chunk_order`.

    Raises:
        SpmdirError: an op cannot be emitted.

    Example:
        >>> x = spmdir.placement.from_chunk_order(site.emit, x, site.partition(site.source, site.dim))
    """
    block = joined([(0, partition.extent)])
    return take(emit, x, partition.dim, positions(block, partition.chunk_order), partition.extent)


def pad_end(emit: Emit, x: Node, dim: int, ndim: int, amount: int) -> Node:
    """Return `x`, which has `ndim` dimensions, with `amount` zeros appended along dimension `dim`."""
    if not amount:
        return x
    return emit(aten.constant_pad_nd.default, x, [0, 0] * (ndim - 1 - dim) + [0, amount])


def pad_chunks(emit: Emit, x: Node, partition: DimPartition, ndim: int) -> Node:
    """Pad each chunk of `x`, which is in chunk order and has `ndim` dimensions, to `partition.step` elements.

    Only the last chunk of a run is short, so each run is padded once, at its end, up to the start of the next run.
    """
    if partition.is_even:
        return x
    first_chunks = [first_chunk for first_chunk, _, _ in partition.runs]
    next_first_chunks = [*first_chunks[1:], partition.count]
    parts = []
    for (first_chunk, offset, size), next_first_chunk in zip(partition.runs, next_first_chunks, strict=True):
        part = narrow(emit, x, partition.dim, offset, size, partition.extent)
        padded_size = (next_first_chunk - first_chunk) * partition.step
        parts.append(pad_end(emit, part, partition.dim, ndim, padded_size - size))
    return parts[0] if len(parts) == 1 else emit(aten.cat.default, parts, partition.dim)


def drop_padding(emit: Emit, x: Node, partition: DimPartition) -> Node:
    """Invert `pad_chunks`: drop the padding after each chunk."""
    padded_extent = partition.count * partition.step
    parts = [
        narrow(emit, x, partition.dim, first_chunk * partition.step, size, padded_extent)
        for first_chunk, _, size in partition.runs
    ]
    return parts[0] if len(parts) == 1 else emit(aten.cat.default, parts, partition.dim)


def split_even(emit: Emit, x: Node, partition: DimPartition, block: Shape) -> Node:
    """Return the equal chunks of `x`, each of shape `block`, joined along dimension 0 in rank order.

    For example, chunks of columns of `x` of shape [4, 6] over 3 ranks have `block` = [4, 2], and the result [12, 2].
    """
    ndim, axis_count = len(block), len(partition.counts)
    joined = [partition.count * block[0], *block[1:]]
    # With sizes of 1 before the dimension, the chunks are one after the other in memory, in rank order.
    if partition.is_in_mesh_order and all(size == 1 for size in block[: partition.dim]):
        return x if partition.dim == 0 else emit(aten.reshape.default, x, joined)
    shape = [*block[: partition.dim], *partition.counts, *block[partition.dim :]]
    chunk_dims = [partition.dim + position for position in partition.order]
    other_dims = [dim for dim in range(ndim + axis_count) if dim not in chunk_dims]
    x = emit(aten.permute.default, emit(aten.reshape.default, x, shape), [*chunk_dims, *other_dims])
    return emit(aten.reshape.default, x, joined)


def join_even(emit: Emit, x: Node, partition: DimPartition, block: Shape) -> Node:
    """Invert `split_even`. `x` may have any shape, such as [ranks, *block], that has the chunks in rank order."""
    ndim, axis_count = len(block), len(partition.counts)
    shape = [*block[: partition.dim], partition.count * block[partition.dim], *block[partition.dim + 1 :]]
    if partition.is_in_mesh_order and all(size == 1 for size in block[: partition.dim]):
        return emit(aten.reshape.default, x, shape)
    x = emit(aten.reshape.default, x, [*(partition.counts[position] for position in partition.order), *block])
    chunk_dims = [partition.order.index(position) for position in range(axis_count)]
    dims = [
        *range(axis_count, axis_count + partition.dim),
        *chunk_dims,
        *range(axis_count + partition.dim, axis_count + ndim),
    ]
    return emit(aten.reshape.default, emit(aten.permute.default, x, dims), shape)


def flat_chunks(emit: Emit, x: Node, partition: DimPartition, block: Shape) -> Node:
    """Return the chunks of `x` in rank order, flattened and joined, as `all_to_all_single` sends them.

    Args:
        emit: `site.emit`.
        x: a block in chunk order.
        partition: how ranks partition it.
        block: a shape with the sizes of the chunks in the other dimensions. Its size in the partitioned dimension is
            ignored.

    Raises:
        SpmdirError: an op cannot be emitted.

    Example:
        >>> flat = spmdir.placement.flat_chunks(site.emit, x, partition, site.local(site.source))
    """
    if partition.is_even:
        joined = split_even(emit, x, partition, _with_size(block, partition.dim, partition.step))
        return emit(aten.reshape.default, joined, [-1])
    if partition.is_in_mesh_order and all(size == 1 for size in block[: partition.dim]):
        return emit(aten.reshape.default, x, [-1])
    chunks = [partition.chunks[number] for number in partition.by_rank]
    parts = [narrow(emit, x, partition.dim, offset, size, partition.extent) for offset, size in chunks]
    return emit(aten.cat.default, [emit(aten.reshape.default, part, [-1]) for part in parts])


def from_flat_chunks(emit: Emit, x: Node, partition: DimPartition, block: Shape) -> Node:
    """Invert `flat_chunks`.

    Args:
        emit: `site.emit`.
        x: the flattened chunks in rank order.
        partition: how ranks partition the block.
        block: as for `flat_chunks`.

    Raises:
        SpmdirError: an op cannot be emitted.

    Example:
        >>> x = spmdir.placement.from_flat_chunks(site.emit, flat, partition, site.local(site.target))
    """
    if partition.is_even:
        return join_even(emit, x, partition, _with_size(block, partition.dim, partition.step))
    shapes = [_with_size(block, partition.dim, partition.chunks[number][1]) for number in partition.by_rank]
    ends = list(itertools.accumulate(map(math.prod, shapes)))
    parts: dict[int, Node] = {}
    for number, shape, end in zip(partition.by_rank, shapes, ends, strict=True):
        part = narrow(emit, x, 0, end - math.prod(shape), math.prod(shape), ends[-1])
        parts[number] = emit(aten.reshape.default, part, list(shape))
    return emit(aten.cat.default, [parts[number] for number in range(partition.count)], partition.dim)


def _with_size(shape: Shape, dim: int, size: int) -> Shape:
    """Return `shape` with `size` in dimension `dim`."""
    return (*shape[:dim], size, *shape[dim + 1 :])
