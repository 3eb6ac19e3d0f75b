"""What steps of a reshard have in common: the sub-axes that sides share, and when several axes go together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from spmdir.core.axes import axis_order
from spmdir.core.errors import ShardingError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Placement, edge_between
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.standard import R
from spmdir.reshard.collective_spec import CollectiveSpec


def refinement(mesh: Mesh, *of: Sharding | Sequence[str]) -> Mesh:
    """`mesh` with the axes split that some of these shardings and lists of axes split.

    Raises:
        ShardingError: they have no common refinement.
    """
    names = [axis for one in of for axis in (dict(one.entries) if isinstance(one, Sharding) else one)]
    return mesh.refine(names)


def splits_evenly(sharding: Sharding, fine: Mesh, shape: Sequence[int]) -> bool:
    """Whether a tensor of `shape` is cut by `sharding` as it is by its sub-axes in `fine`, one after the other.

    Only even cuts are: of 6 elements `tp` of 4 ranks makes 2, 2, 2, 0 and `tp(1)2`, then `tp(2)2` make 2, 1, 2, 1.
    """
    refined, merged = sharding.refined(fine), sharding.merged(fine)
    return refined == merged or not any(
        size % fine.group_size(refined.dim_axes(dim))
        for dim, size in enumerate(shape)
        if refined.dim_axes(dim) != merged.dim_axes(dim)
    )


def moves_jointly(spec: CollectiveSpec, axes: Sequence[str], sides: Iterable[Sharding]) -> bool:
    """Whether one step may move `axes`: what it does not know as whole or chunks must be the same on their product.

    A declared step knows nothing of several axes.
    """
    known = ("replicated", "shard") if spec.moves != "edge" else ()
    return len(axes) == 1 or all(p.splits or p.trait in known for p in (side[axis] for side in sides for axis in axes))


def blocking_axes(spec: CollectiveSpec, axes: Sequence[str], source: Sharding, target: Sharding) -> set[str]:
    """The axes whose placement alone knows what ranks hold, where a step on `axes` would have to know it.

    Of a step that names no axes, these are all. One that names some works on what ranks hold where that is the tensor
    along the dimensions that it shards or gathers. A declared step that cuts nothing works on what the axes that come
    before its own leave, whatever that is; axes that together have one such placement go together.
    """
    own = {axis: p for side in (source, target) for axis, p in side.entries if p.has_own_type and axis not in axes}
    if not own:
        return set()
    if not axes:
        return set(own)
    dims = {side[axis].dim for side in (source, target) for axis in axes}
    if spec.moves == "edge":
        first = min(map(axis_order, axes))
        moved = {side[axis] for side in (source, target) for axis in axes}
        return {
            axis
            for axis, placement in own.items()
            if dims != {None} or axis_order(axis) > first or (placement.splits and placement in moved)
        }
    is_partial = any(side[axis].trait == "partial" for side in (source, target) for axis in axes)
    touched = dims if is_partial or dims == {None} else dims - {None}
    return {axis for axis, placement in own.items() if not all(placement.keeps(dim) for dim in touched)}


def check_own_steps(spec: CollectiveSpec, axes: Sequence[str], source: Sharding, target: Sharding) -> None:
    """Raise ShardingError where a placement has a step of its own, or knows alone what shape ranks hold."""
    for axis in axes if spec.moves != "edge" else ():
        if has_own_step(source[axis], target[axis]):
            raise ShardingError(
                f"{spec.name} takes {source[axis]} to {target[axis]}, which declare a step for that; convert"
                + (" to R, and slice" if edge_between(source[axis], target[axis]) is None else "")
            )
    for axis in sorted(blocking_axes(spec, axes, source, target)):
        held = source[axis]
        raise ShardingError(
            f"{spec.name} moves [{', '.join(axes)}] where {held} on '{axis}' says what ranks hold; move it first"
        )


def has_own_step(before: Placement, after: Placement) -> bool:
    """Return whether what the traits give between two placements is replaced by a declared step.

    One that says how its partial values become the value is reduced by that alone, also where a shard is wanted.
    """
    if edge_between(before, after) is not None:
        return True
    return before.trait == "partial" and after.trait == "shard" and edge_between(before, R) is not None


def check_joint(spec: CollectiveSpec, axes: Sequence[str], sides: Sequence[Sharding]) -> None:
    if not moves_jointly(spec, axes, sides):
        found = " to ".join(str(side[axes[0]]) for side in sides)
        raise ShardingError(f"{spec.name} on [{', '.join(axes)}] takes {found}, which goes by one axis after the other")


def check_split(spec: CollectiveSpec, mesh: Mesh, fine: Mesh, shape: Sequence[int], *shardings: Sharding) -> None:
    for sharding in shardings:
        if not splits_evenly(sharding, fine, shape):
            raise ShardingError(
                f"{spec.name} takes <{sharding.merged(mesh)}> apart, which cuts {list(shape)} unevenly; move whole axes"
            )
