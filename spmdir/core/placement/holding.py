"""Which elements of a tensor a rank holds, as its placements say one after the other."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from spmdir.core.errors import UnsupportedError
from spmdir.core.intervals import Ranges, length, select
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Placement
from spmdir.core.placement.sharding import Sharding


@attrs.frozen
class Holding:
    """What one rank holds of a tensor.

    Attributes:
        ranges: the positions of each dimension, in local order; padding follows them.
        mixed: (axes, placement) of those by which the rank holds something else than these elements, as a summand of
            each.
    """

    ranges: tuple[Ranges, ...]
    mixed: tuple[tuple[tuple[str, ...], Placement], ...] = ()


def holding(sharding: Sharding, shape: Sequence[int], mesh: Mesh, rank: int) -> Holding:
    """Return what `rank` holds of a tensor of global `shape`.

    Raises:
        UnsupportedError: padding comes before elements.
    """
    mesh = mesh.refine([axis for axis, _ in sharding.entries])
    ranges: list[Ranges] = [((0, size),) for size in shape]
    local = list(shape)
    mixed: list[tuple[tuple[str, ...], Placement]] = []
    for axes, placement in sharding.layers:
        count, index = mesh.group_size(axes), mesh.index(rank, axes)
        held_ranges = None if mixed else placement.held_ranges(tuple(local), count, index)
        if held_ranges is None:
            mixed.append((axes, placement))
            continue
        for dim, positions in held_ranges.items():
            ranges[dim] = select(ranges[dim], _before_padding(positions, length(ranges[dim])))
        local = [*placement.local_type(tuple(local), None, count, index)[0]]  # type: ignore[arg-type]
    return Holding(tuple(ranges), tuple(mixed))


def _before_padding(positions: Ranges, end: int) -> Ranges:
    """Return the `positions` before `end`.

    Raises:
        UnsupportedError: a later one comes first on the rank.
    """
    inside = tuple((start, min(stop, end)) for start, stop in positions if start < end)
    if any(start >= end or stop > end for start, stop in positions[: len(inside) - 1]):
        raise UnsupportedError("padding comes before elements on a rank; shard the padded dimension in another order")
    return inside
