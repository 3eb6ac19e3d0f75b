"""Runs: neighbouring ranks along an axis whose shards have equal lengths. One rank of a run represents the others."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import enumerated
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.shards import runs_of, shard_length


def mark_runs(size: int, cuts: Iterable[tuple[str, tuple[Any, int]]], starts: Mapping[str, set[int]]) -> None:
    """Add the first index of each run to `starts` of its axis.

    For example, S cuts 6 elements over 4 ranks into 2, 2, 2 and 0: runs start at 0 and 3.

    Args:
        size: the size of the dimension.
        cuts: (axis, (shard placement, number of ranks)) pairs, outermost first.
        starts: axis → the first indices of its runs; changed in place.
    """
    lengths = {size}  # the lengths of the chunks into which the axes so far cut the dimension
    for axis, (placement, count) in cuts:
        runs = [run for length in lengths for run in runs_of(placement, length, count)]
        starts[axis].update(first_rank for first_rank, _, _ in runs)
        lengths = {length for _, _, length in runs}


def cut_length(size: int, cuts: Iterable[tuple[str, tuple[Any, int]]], coordinate: Mapping[str, int]) -> int:
    """Return the length of the shard at `coordinate`, of a dimension of `size`. Axes without a coordinate are at 0.

    For example, `a` of 4 ranks cuts 6 elements into 2, 2, 2 and 0. The length at {"a": 3} is 0.

    Args:
        cuts: as in `mark_runs`.
        coordinate: axis → index.
    """
    for axis, (placement, count) in cuts:
        size = shard_length(placement, size, count, coordinate.get(axis, 0))
    return size


def representatives(axes: Sequence[str], mesh: Mesh, shape: Sequence[int], *shardings: Sharding) -> list[int]:
    """Return the first ranks of groups along `axes` that represent all groups of the mesh.

    One group represents others whose ranks have shards of the same lengths. Under placements that do not split, ranks
    may differ although the lengths are equal, so all indices along their axes are included.
    """
    starts: dict[str, set[int]] = {axis: {0} for axis in mesh.axis_names}
    for sharding in shardings:
        for dim, size in enumerate(shape):
            dim_axes = sharding.dim_axes(dim)
            mark_runs(size, zip(dim_axes, sharding.dim_placements(dim, mesh), strict=True), starts)
        for axis, placement in sharding.entries:
            if not placement.splits and axis not in axes:
                starts[axis].update(enumerated(placement, mesh.sizes[axis]))
    indices = [(0,) if axis in axes else sorted(run_starts) for axis, run_starts in starts.items()]
    return [mesh.rank(dict(zip(starts, point, strict=True))) for point in itertools.product(*indices)]
