"""The mesh axes among whose ranks the steps that name none move data."""

from __future__ import annotations

from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Placement
from spmdir.core.placement.sharding import Sharding
from spmdir.reshard.conditions import refinement


def permuted_axes(source: Sharding, target: Sharding, mesh: Mesh) -> tuple[str, ...]:
    """The axes among whose ranks a permute from `source` to `target` moves blocks, in mesh order.

    On each dimension the outer axes that both have in common, and the inner ones, keep their ranks apart.
    """
    fine = refinement(mesh, source, target)
    if fine is not mesh:
        return mesh.merge(permuted_axes(source.refined(fine), target.refined(fine), fine))
    moved: set[str] = set()
    for dim in {placement.dim for _, placement in (*source.entries, *target.entries) if placement.dim is not None}:
        before, after = sharding_axes(source, dim), sharding_axes(target, dim)
        for step in (1, -1):
            before, after = before[::step], after[::step]
            while before and after and before[0] == after[0]:
                before, after = before[1:], after[1:]
        moved.update(axis for axis, _ in (*before, *after))
    return tuple(axis for axis in mesh.axis_names if axis in moved)


def sharding_axes(sharding: Sharding, dim: int) -> tuple[tuple[str, Placement], ...]:
    """The axes that divide `dim`, major first, and how."""
    return tuple(entry for entry in sharding.entries if entry[1].dim == dim)


def exchanged_axes(source: Sharding, target: Sharding, mesh: Mesh) -> tuple[str, ...]:
    """The axes among whose ranks an exchange from `source` to `target` moves data, in mesh order.

    Those that both sides place alike stay out: on each dimension, the outer axes that both have in common.
    """
    fine = refinement(mesh, source, target)
    if fine is not mesh:
        return mesh.merge(exchanged_axes(source.refined(fine), target.refined(fine), fine))
    moved = {axis for axis in mesh.axis_names if source[axis] != target[axis]}
    for dim in {placement.dim for _, placement in source.entries if placement.dim is not None}:
        before, after = sharding_axes(source, dim), sharding_axes(target, dim)
        while before and after and before[0] == after[0]:
            before, after = before[1:], after[1:]
        moved.update(axis for axis, _ in (*before, *after))
    return tuple(axis for axis in mesh.axis_names if axis in moved)


def two_round_axes(source: Sharding, target: Sharding, mesh: Mesh) -> tuple[str, ...]:
    """The axes among whose ranks a two-round exchange from `source` to `target` moves data, in mesh order.

    Beside those of an exchange all that do not divide the source: ranks that hold the same share the work, and partials
    may be put together.
    """
    fine = refinement(mesh, source, target)
    if fine is not mesh:
        return mesh.merge(two_round_axes(source.refined(fine), target.refined(fine), fine))
    moved = exchanged_axes(source, target, mesh)
    return tuple(axis for axis in mesh.axis_names if axis in moved or source[axis].trait != "shard")


def converted_axes(source: Sharding, target: Sharding, mesh: Mesh) -> tuple[str, ...]:
    """The axes that a declared edge from `source` to `target` moves, in mesh order."""
    fine = refinement(mesh, source, target)
    if fine is not mesh:
        return mesh.merge(converted_axes(source.refined(fine), target.refined(fine), fine))
    return tuple(axis for axis in mesh.axis_names if source[axis] != target[axis])
