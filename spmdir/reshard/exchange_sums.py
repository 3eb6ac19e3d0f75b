"""The elements that the busiest rank of an exchange moves, if no two ranks have the same elements at the start.

Then the only rank that has an element sends it to all ranks that need it, so counts need no list of parts. For each
dimension, a matrix has the lengths of the intersections of source shards, by column, and target shards, by row. The
product over dimensions is what the rank of the column sends to the rank of the row. For example, four ranks reshard a
4 x 8 matrix from `a: S(0)` to `a: S(1)`:

    dimension 0    1 1 1 1      dimension 1    2 2 2 2      product    2 2 2 2      the diagonal stays, so each rank
                   1 1 1 1                     2 2 2 2                 2 2 2 2      sends and receives 6 elements
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.standard import Shard
from spmdir.reshard.equal_shard_runs import representatives
from spmdir.reshard.exchange import partial_axes, reduced_axes
from spmdir.reshard.steps import Step

_MOST_ELEMENTS = 2**62
"""The largest tensor whose elements 64-bit integers count."""


def sums_of_sole_senders(
    step: Step, shape: tuple[int, ...], mesh: Mesh, node_axes: Collection[str]
) -> tuple[int, int] | None:
    """Return the most elements that a rank sends or receives: of all, and of those to or from other nodes.

    Each element is on one rank of a group, so its sender is known. Each rank receives what its target shard and the
    sender's source shard have in common. For example, 8 elements move from `a: S(0), b: S(1)` to other axes on 4 ranks.
    `moved[receiver, sender]` is a 4 × 4 matrix of the common elements. Without its diagonal, the largest sum of a row
    is the most that a rank receives, and that of a column is the most that a rank sends.

    The result is None in three cases: several ranks have the same elements, the exchange creates partial values, or a
    placement does not cut its dimension into consecutive chunks.

    Args:
        step: an exchange.
        node_axes: the mesh axes between nodes.
    """
    source, target, axes = step.source, step.target, step.axes
    reduced = reduced_axes(source, target)
    # Ranks that differ along one of these axes have different elements or partial values.
    owning_axes = {*(axis for axis, placement in source.entries if type(placement) is Shard), *reduced}
    entries = (*source.entries, *target.entries)
    has_standard_placements = all(type(placement) is Shard or placement.trait == "partial" for _, placement in entries)
    has_sub_axes = not {*axes, *(axis for axis, _ in entries)}.issubset(mesh.axis_names)
    if not has_standard_placements or has_sub_axes or not owning_axes.issuperset(axes):
        return None
    if partial_axes(source, target) or math.prod(shape) * mesh.group_size(reduced) > _MOST_ELEMENTS:
        return None
    total = inter_node = 0
    for first_rank in representatives(axes, mesh, shape, source, target):
        ranks = mesh.group(first_rank, axes)
        coordinates = [mesh.coordinate(rank) for rank in ranks]
        moved = np.ones((len(coordinates), len(coordinates)), dtype=np.int64)  # [receiver, sender], elements
        for dim, size in enumerate(shape):
            needed_start, needed_end = _chunks(target, dim, size, mesh, coordinates)[:, :, np.newaxis]
            owned_start, owned_end = _chunks(source, dim, size, mesh, coordinates)[:, np.newaxis, :]
            common_length = np.minimum(needed_end, owned_end) - np.maximum(needed_start, owned_start)
            moved *= np.maximum(common_length, 0)
        np.fill_diagonal(moved, 0)  # elements that stay on their rank
        total = max(total, _busiest(moved))
        if node_axes:
            nodes = np.array([mesh.index(rank, node_axes) for rank in ranks])
            inter_node = max(inter_node, _busiest(moved * (nodes[:, np.newaxis] != nodes)))
    return total, inter_node


def _chunks(
    sharding: Sharding, dim: int, size: int, mesh: Mesh, coordinates: Sequence[dict[str, int]]
) -> NDArray[np.int64]:
    """Return the positions in a dimension that the shard of each rank has, as two rows [rank]: starts and ends.

    Args:
        coordinates: [rank], axis → index.
    """
    axes = sharding.dim_axes(dim)
    chunks: dict[tuple[int, ...], tuple[int, int]] = {}
    indices = [tuple([coordinate[axis] for axis in axes]) for coordinate in coordinates]
    for index, coordinate in zip(indices, coordinates, strict=True):
        if index not in chunks:
            ranges = sharding.local_ranges(dim, size, mesh, coordinate)
            chunks[index] = (ranges[0][0], ranges[-1][1]) if ranges else (0, 0)
    return np.array([chunks[index] for index in indices], dtype=np.int64).T


def _busiest(moved: NDArray[np.int64]) -> int:
    """Return the largest sum of a row or a column."""
    return int(max(moved.sum(axis=0).max(), moved.sum(axis=1).max()))
