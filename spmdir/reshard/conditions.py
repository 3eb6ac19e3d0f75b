"""Conditions of legal steps: common sub-axes of two shardings, and the axes that one step may move together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from spmdir.core.axes import axis_order
from spmdir.core.errors import ShardingError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Placement, edge_between
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.standard import R
from spmdir.reshard.collective_spec import CollectiveSpec


def refinement(mesh: Mesh, *shardings: Sharding | Sequence[str]) -> Mesh:
    """Return `mesh` with its axes split into the sub-axes that these shardings and lists of axes name.

    Raises:
        ShardingError: there is no common refinement.
    """
    names = [axis for item in shardings for axis in (dict(item.entries) if isinstance(item, Sharding) else item)]
    return mesh.refine(names)


def splits_evenly(sharding: Sharding, fine: Mesh, shape: Sequence[int]) -> bool:
    """Return whether `sharding` has the same shards on the mesh and on its refinement `fine`.

    It has if the shards are even. Uneven shards differ: `tp` of 4 ranks cuts 6 elements into 2, 2, 2, 0, but `tp(1)2`
    and `tp(2)2` one after the other cut them into 2, 1, 2, 1.
    """
    refined, merged = sharding.refined(fine), sharding.merged(fine)
    return refined == merged or all(
        size % fine.group_size(refined.dim_axes(dim)) == 0
        for dim, size in enumerate(shape)
        if refined.dim_axes(dim) != merged.dim_axes(dim)
    )


def can_move_together(spec: CollectiveSpec, axes: Sequence[str], sides: Iterable[Sharding]) -> bool:
    """Return whether one step of `spec` may move `axes` together.

    Each placement must be replicated, a shard, or one that `splits`: the same on the product of axes as on one axis
    after the other. A declared step may move several axes only if their placements split.
    """
    if len(axes) == 1:
        return True
    divisible_traits = ("replicated", "shard") if spec.moves != "edge" else ()
    placements = [side[axis] for side in sides for axis in axes]
    return all(placement.splits or placement.trait in divisible_traits for placement in placements)


def blocking_axes(spec: CollectiveSpec, axes: Sequence[str], source: Sharding, target: Sharding) -> set[str]:
    """Return the axes that prevent a step on `axes`, because their placements compute the local type themselves.

    The step cannot derive such a local type from the shape. For example, `Padded(0)` on `a` pads dimension 0 of the
    local tensors. So it blocks a gather of dimension 0 over `b`, and does not block one of dimension 1.

    - A step that names no axes is blocked by all such axes.
    - A step that names axes is blocked unless the placement `keeps` the dimensions that the step shards or gathers.
    - A declared step that shards nothing is blocked only by axes after its own in the order of axes, and by other axes
      with the placement that it moves, if that placement `splits`: all of them must move together.
    """
    unmoved_own_types = {
        axis: p for side in (source, target) for axis, p in side.entries if p.has_own_type and axis not in axes
    }
    if not unmoved_own_types:
        return set()
    if not axes:
        return set(unmoved_own_types)
    moved_placements = {side[axis] for side in (source, target) for axis in axes}
    moved_dims = {placement.dim for placement in moved_placements}
    if spec.moves == "edge":
        shards_something = moved_dims != {None}
        if shards_something:
            return set(unmoved_own_types)
        first_axis = min(map(axis_order, axes))
        must_move_too = {placement for placement in moved_placements if placement.splits}
        return {
            axis
            for axis, placement in unmoved_own_types.items()
            if axis_order(axis) > first_axis or placement in must_move_too
        }
    # A reduction changes elements wherever they are, so the placement must keep them too: `keeps(None)`.
    is_partial = any(placement.trait == "partial" for placement in moved_placements)
    dims = moved_dims if is_partial or moved_dims == {None} else moved_dims - {None}
    return {axis for axis, placement in unmoved_own_types.items() if not all(placement.keeps(dim) for dim in dims)}


def check_declared_steps(spec: CollectiveSpec, axes: Sequence[str], source: Sharding, target: Sharding) -> None:
    """Raise ShardingError if a placement prevents a step on `axes`.

    There are three cases: the placement declares its own step instead; the placement is routed, and the step does not
    reduce partial values to R; or the axis of the placement is a blocking axis.
    """
    if spec.traits != ("partial", "replicated"):
        check_unrouted(source, target)
    for axis in axes if spec.moves != "edge" else ():
        if has_declared_step(source[axis], target[axis]):
            raise ShardingError(
                f"{spec.name} cannot take {source[axis]} to {target[axis]}, which declare their own step; "
                "expected that step: use convert"
                + (" to R, then slice" if edge_between(source[axis], target[axis]) is None else "")
            )
    for axis in sorted(blocking_axes(spec, axes, source, target)):
        placement = source[axis]
        raise ShardingError(
            f"{spec.name} moves [{', '.join(axes)}] where {placement} on '{axis}' defines the local "
            f"tensors; expected '{axis}' without this placement: reshard '{axis}' first"
        )


def check_unrouted(source: Sharding, target: Sharding) -> None:
    """Raise ShardingError if a placement is routed, and not partial.

    Steps need the positions and sizes of local shards. With a routed placement, these depend on data.
    """
    for side in (source, target):
        for axis, placement in side.entries:
            if placement.is_routed and placement.trait != "partial":
                raise ShardingError(
                    f"the positions of {placement} on '{axis}' depend on data; expected no reshard of such "
                    "rows, only reductions: move them with experts.regroup or experts.unsort_rows"
                )


def has_declared_step(before: Placement, after: Placement) -> bool:
    """Return whether a declared step replaces the collectives between two placements.

    If a placement declares how to reduce its partial values to R, no reduce-scatter may reduce them either.
    """
    if edge_between(before, after) is not None:
        return True
    return before.trait == "partial" and after.trait == "shard" and edge_between(before, R) is not None


def check_joint(spec: CollectiveSpec, axes: Sequence[str], sides: Sequence[Sharding]) -> None:
    """Raise ShardingError unless one step of `spec` may move `axes` together between the shardings `sides`."""
    if not can_move_together(spec, axes, sides):
        placements = " to ".join(str(side[axes[0]]) for side in sides)
        raise ShardingError(
            f"{spec.name} on [{', '.join(axes)}] changes {placements} on several axes; expected one axis: "
            "use one collective for each axis"
        )


def check_split(spec: CollectiveSpec, mesh: Mesh, fine: Mesh, shape: Sequence[int], *shardings: Sharding) -> None:
    """Raise ShardingError if a sharding has other shards on the refined mesh `fine` than on `mesh`."""
    for sharding in shardings:
        if not splits_evenly(sharding, fine, shape):
            raise ShardingError(
                f"{spec.name} splits <{sharding.merged(mesh)}>, whose shards of {list(shape)} are uneven; "
                "expected even shards: move whole axes instead of sub-axes"
            )
