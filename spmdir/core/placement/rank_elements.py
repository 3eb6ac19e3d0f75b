"""Compute the elements of a tensor that a rank has, from the placements of its sharding."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from spmdir.core.errors import UnsupportedError
from spmdir.core.intervals import Ranges, length, select
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Placement
from spmdir.core.placement.sharding import Sharding


@attrs.frozen
class RankElements:
    """The elements of a tensor that one rank has.

    Attributes:
        ranges: the positions in each dimension, in local order, without padding.
        other_placements: (axes, placement) pairs that do not select elements. With a partial placement, for example,
            the rank has a summand of each element.
    """

    ranges: tuple[Ranges, ...]
    other_placements: tuple[tuple[tuple[str, ...], Placement], ...] = ()


def rank_elements(sharding: Sharding, shape: Sequence[int], mesh: Mesh, rank: int) -> RankElements:
    """Return the elements that `rank` has of a tensor of global `shape`.

    Raises:
        UnsupportedError: padding precedes elements on the rank.
    """
    mesh = mesh.refine([axis for axis, _ in sharding.entries])
    ranges: list[Ranges] = [((0, size),) for size in shape]
    local_shape = list(shape)
    other_placements: list[tuple[tuple[str, ...], Placement]] = []
    for axes, placement in sharding.layers:
        count, index = mesh.group_size(axes), mesh.index(rank, axes)
        # Inside a placement that does not select elements, positions are not those of the tensor.
        selected = None if other_placements else placement.held_ranges(tuple(local_shape), count, index)
        if selected is None:
            other_placements.append((axes, placement))
            continue
        for dim, positions in selected.items():
            ranges[dim] = select(ranges[dim], _before_padding(positions, length(ranges[dim])))
        # The element type does not affect the shape, and is not known here.
        local_shape = [*placement.local_type(tuple(local_shape), None, count, index)[0]]  # type: ignore[arg-type]
    return RankElements(tuple(ranges), tuple(other_placements))


def _before_padding(positions: Ranges, end: int) -> Ranges:
    """Return the `positions` before `end`; positions from `end` on are padding: ((4, 8),) before 6 is ((4, 6),).

    Raises:
        UnsupportedError: padding precedes elements on the rank.
    """
    inside = tuple((start, min(stop, end)) for start, stop in positions if start < end)
    # All ranges but the last one with elements must be without padding.
    if any(start >= end or stop > end for start, stop in positions[: len(inside) - 1]):
        raise UnsupportedError(
            "padding precedes elements on a rank; expected padding after all elements: shard the padded "
            "dimension in another order of axes"
        )
    return inside
