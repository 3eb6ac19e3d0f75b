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

    The result is None if several ranks have the same elements, if the exchange creates partial values, or if a
    placement does not cut its dimension into consecutive chunks.

    Args:
        step: an exchange.
        node_axes: the mesh axes between nodes.
    """
    source, target, axes = step.source, step.target, step.axes
    reduced = reduced_axes(source, target)
    owning = {*(axis for axis, placement in source.entries if type(placement) is Shard), *reduced}
    entries = (*source.entries, *target.entries)
    is_plain = all(type(placement) is Shard or placement.trait == "partial" for _, placement in entries)
    names = {*mesh.axis_names}
    if not is_plain or not names >= {*axes, *(axis for axis, _ in entries)} or not owning.issuperset(axes):
        return None
    if partial_axes(source, target) or math.prod(shape) * mesh.group_size(reduced) > _MOST_ELEMENTS:
        return None
    total = inter_node = 0
    for first_rank in representatives(axes, mesh, shape, source, target):
        ranks = mesh.group(first_rank, axes)
        coordinates = [mesh.coordinate(rank) for rank in ranks]
        moved = np.ones((len(coordinates), len(coordinates)), dtype=np.int64)
        for dim, size in enumerate(shape):
            needed = _chunks(target, dim, size, mesh, coordinates)[:, :, np.newaxis]
            owned = _chunks(source, dim, size, mesh, coordinates)[:, np.newaxis, :]
            moved *= np.maximum(np.minimum(needed[1], owned[1]) - np.maximum(needed[0], owned[0]), 0)
        np.fill_diagonal(moved, 0)
        total = max(total, _busiest(moved))
        if node_axes:
            nodes = np.array([mesh.index(rank, node_axes) for rank in ranks])
            inter_node = max(inter_node, _busiest(moved * (nodes[:, np.newaxis] != nodes)))
    return total, inter_node


def _chunks(
    sharding: Sharding, dim: int, size: int, mesh: Mesh, coordinates: Sequence[dict[str, int]]
) -> NDArray[np.int64]:
    """Return the start and the end of a dimension of the shards at some coordinates: (2, ranks)."""
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
