"""The groups of steps without named axes: the mesh axes along which they move data."""

from __future__ import annotations

from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Placement
from spmdir.core.placement.sharding import Sharding
from spmdir.reshard.conditions import refinement


def permuted_axes(source: Sharding, target: Sharding, mesh: Mesh) -> tuple[str, ...]:
    """Return the axes along which a permute from `source` to `target` moves blocks, in mesh order.

    On each dimension, the outermost and innermost axes that both shardings have in common do not move. For example,
    from `a: S(0), b: S(0), c: S(0)` to `a: S(0), c: S(0), b: S(0)`, blocks move along b and c.
    """
    fine = refinement(mesh, source, target)
    if fine is not mesh:
        return mesh.merge(permuted_axes(source.refined(fine), target.refined(fine), fine))
    moved_axes: set[str] = set()
    for dim in {placement.dim for _, placement in (*source.entries, *target.entries) if placement.dim is not None}:
        before, after = _without_common_prefix(sharding_axes(source, dim), sharding_axes(target, dim))
        before, after = _without_common_prefix(before[::-1], after[::-1])
        moved_axes.update(axis for axis, _ in (*before, *after))
    return tuple(axis for axis in mesh.axis_names if axis in moved_axes)


_Entries = tuple[tuple[str, Placement], ...]
"""(axis, placement) pairs."""


def _without_common_prefix(before: _Entries, after: _Entries) -> tuple[_Entries, _Entries]:
    """Return both sequences without the entries that they begin with in common."""
    while before and after and before[0] == after[0]:
        before, after = before[1:], after[1:]
    return before, after


def sharding_axes(sharding: Sharding, dim: int) -> _Entries:
    """Return (axis, placement) for the axes that shard `dim`, outermost first."""
    return tuple(entry for entry in sharding.entries if entry[1].dim == dim)


def exchanged_axes(source: Sharding, target: Sharding, mesh: Mesh) -> tuple[str, ...]:
    """Return the axes along which an exchange from `source` to `target` moves data, in mesh order.

    On each dimension, the outermost axes that both shardings have in common do not move.
    """
    fine = refinement(mesh, source, target)
    if fine is not mesh:
        return mesh.merge(exchanged_axes(source.refined(fine), target.refined(fine), fine))
    moved_axes = {axis for axis in mesh.axis_names if source[axis] != target[axis]}
    for dim in {placement.dim for _, placement in source.entries if placement.dim is not None}:
        before, after = _without_common_prefix(sharding_axes(source, dim), sharding_axes(target, dim))
        moved_axes.update(axis for axis, _ in (*before, *after))
    return tuple(axis for axis in mesh.axis_names if axis in moved_axes)


def two_round_axes(source: Sharding, target: Sharding, mesh: Mesh) -> tuple[str, ...]:
    """Return the axes along which a two-round exchange from `source` to `target` moves data, in mesh order.

    These are the axes of a one-round exchange, and all axes that do not shard the source. Along an axis that replicates
    the source, the ranks share the sending. Along an axis that stays partial, the ranks may combine their values before
    they are sent.
    """
    fine = refinement(mesh, source, target)
    if fine is not mesh:
        return mesh.merge(two_round_axes(source.refined(fine), target.refined(fine), fine))
    moved_axes = exchanged_axes(source, target, mesh)
    return tuple(axis for axis in mesh.axis_names if axis in moved_axes or source[axis].trait != "shard")


def converted_axes(source: Sharding, target: Sharding, mesh: Mesh) -> tuple[str, ...]:
    """Return the axes that a declared edge from `source` to `target` moves, in mesh order."""
    fine = refinement(mesh, source, target)
    if fine is not mesh:
        return mesh.merge(converted_axes(source.refined(fine), target.refined(fine), fine))
    return tuple(axis for axis in mesh.axis_names if source[axis] != target[axis])
