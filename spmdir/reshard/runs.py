"""Runs of ranks alike: of ranks that hold shards of the same lengths, one stands for all."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import enumerated, runs_of, shard_length
from spmdir.core.placement.sharding import Sharding


def mark_runs(size: int, cuts: Iterable[tuple[str, tuple[Any, int]]], starts: Mapping[str, set[int]]) -> None:
    """Add to `starts` of each axis the indices where a run of equal lengths begins.

    Args:
        size: of the dimension.
        cuts: (axis, (shard placement, ranks)), major first.
    """
    extents = {size}
    for axis, (placement, count) in cuts:
        runs = [run for extent in extents for run in runs_of(placement, extent, count)]
        starts[axis].update(first for first, _, _ in runs)
        extents = {own for _, _, own in runs}


def cut_length(size: int, cuts: Iterable[tuple[str, tuple[Any, int]]], at: Mapping[str, int]) -> int:
    """Return how much of `size` elements the rank at `at` holds; axes that it does not name are at 0."""
    for axis, (placement, count) in cuts:
        size = shard_length(placement, size, count, at.get(axis, 0))
    return size


def representatives(axes: Sequence[str], mesh: Mesh, shape: Sequence[int], *shardings: Sharding) -> list[int]:
    """Return ranks whose groups along `axes` stand for all groups, with the first index along each of the axes.

    Groups are alike where ranks hold shards of the same lengths. Placements other than S may tell ranks apart that hold
    as much, so all indices along their axes are taken.
    """
    starts: dict[str, set[int]] = {axis: {0} for axis in mesh.axis_names}
    for sharding in shardings:
        for dim, size in enumerate(shape):
            axes_here = sharding.dim_axes(dim)
            mark_runs(size, zip(axes_here, sharding.dim_placements(dim, mesh), strict=True), starts)
        for axis, placement in sharding.entries:
            if not placement.splits and axis not in axes:
                starts[axis].update(enumerated(placement, mesh.sizes[axis]))
    told = [(0,) if axis in axes else sorted(found) for axis, found in starts.items()]
    return [mesh.rank(dict(zip(starts, point, strict=True))) for point in itertools.product(*told)]
