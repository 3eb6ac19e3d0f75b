"""The steps that name no axes, since their target says it all: permute, exchanges, rearrange and convert."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import TypeVar

from spmdir.core.errors import ShardingError
from spmdir.core.intervals import Ranges, have_same_chunks, length
from spmdir.core.limits import ENUMERATED, EXCHANGED
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import PartialPlacement, edge_between, shard_lengths
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.standard import Partial, R
from spmdir.reshard.collective_spec import CollectiveSpec
from spmdir.reshard.conditions import check_joint, check_own_steps, has_own_step, refinement
from spmdir.reshard.exchange import exchange_loads
from spmdir.reshard.moved_axes import converted_axes, exchanged_axes, permuted_axes
from spmdir.reshard.runs import cut_length, mark_runs, representatives

Shape = tuple[int, ...]
_T = TypeVar("_T")


def unmovable(spec: CollectiveSpec, source: Sharding, target: Sharding) -> str | None:
    """Return what an exchange from `source` to `target` would have to do and cannot; None if it can do it.

    Reductions are done, and partial values made, chunk by chunk, so none can be made that has no identity, such as
    averages. What it does not touch may be anything; in two rounds it touches all partial values.
    """
    touches_all = spec.traffic.rounds > 1
    if len(source.kinds | target.kinds) > 1:
        return "turn one kind of partial value into another"
    axes = dict.fromkeys(axis for axis, _ in (*source.entries, *target.entries))
    reduced: list[PartialPlacement] = []
    made: list[PartialPlacement] = []
    for before, after in ((source[axis], target[axis]) for axis in axes):
        if before != after and has_own_step(before, after):
            return f"take {before} to {after}, which declare a step for that"
        for placement, found in ((before, reduced), (after, made)) if before != after or touches_all else ():
            if isinstance(placement, PartialPlacement) and not placement.has_own_type:
                found.append(placement)
            elif placement.trait not in ("replicated", "shard"):
                return f"move {placement}, of which it knows the steps that the placement has alone"
        if before != after and isinstance(after, PartialPlacement) and after.identity is None:
            return f"make {after}, which has no identity"
    return _uncombined(reduced, made)


def _uncombined(reduced: Sequence[PartialPlacement], made: Sequence[PartialPlacement]) -> str | None:
    """Return which partial values an exchange would have to combine and cannot; None if there are none.

    Values of plug-ins are combined between their `before` and their `after`, those of all axes at once. Where partial
    values remain, `after` makes them of sums of some values only, which `splits` says is right.
    """
    plugins = [p for p in dict.fromkeys((*reduced, *made)) if not isinstance(p, Partial)]
    if not plugins or not (reduced or len(made) > 1):
        return None
    if own := next((p for p in reduced if not isinstance(p, Partial) and edge_between(p, R) is not None), None):
        return f"reduce {own}, which declares a step for that"
    if made and len({*reduced, *made}) > 1:
        return f"make {made[0]} where {' and '.join(map(str, dict.fromkeys(reduced or made)))} is reduced or made"
    if (made or len(reduced) > 1) and not all(p.splits for p in plugins):
        return f"reduce {plugins[0]} over several axes at once"
    return f"make {made[0]}, which has no identity" if reduced and made and made[0].identity is None else None


def check_exchange(spec: CollectiveSpec, source: Sharding, target: Sharding, mesh: Mesh, shape: Shape) -> None:
    """Raise ShardingError unless an exchange makes `target` of `source`, shardings of a tensor of `shape`."""
    target.check_shape(mesh, shape)
    check_own_steps(spec, (), source, target)
    if what := unmovable(spec, source, target):
        raise ShardingError(f"{spec.name} cannot {what}, found <{target}> from <{source}>")


def check_convert(spec: CollectiveSpec, source: Sharding, target: Sharding, mesh: Mesh, shape: tuple[int, ...]) -> None:
    """Raise ShardingError unless a declared edge, along some axes, makes `target` of `source`."""
    target.check_shape(mesh, shape)
    fine = refinement(mesh, source, target)
    before, after = source.refined(fine), target.refined(fine)
    axes = converted_axes(before, after, fine)
    ends = {(before[axis], after[axis]) for axis in axes}
    if len(ends) != 1:
        found = ", ".join(f"{a} to {b}" for a, b in sorted(ends, key=str)) or "none"
        raise ShardingError(f"{spec.name} takes its axes from one placement to another one, found {found}")
    ((leaving, joining),) = ends
    if edge_between(leaving, joining) is None:
        raise ShardingError(f"{leaving} declares no edge to {joining}, nor {joining} from {leaving}")
    check_joint(spec, axes, (before, after))
    check_own_steps(spec, axes, before, after)
    for side, placement in ((before, leaving), (after, joining)):
        if placement.dim is not None and set(side.dim_axes(placement.dim)[-len(axes) :]) != set(axes):
            raise ShardingError(
                f"{spec.name} needs {list(axes)} innermost on dimension {placement.dim}, found <{side}>"
            )
    kept = [tuple(entry for entry in side.entries if entry[0] not in axes) for side in (before, after)]
    if kept[0] != kept[1]:
        raise ShardingError(f"{spec.name} moves {list(axes)} alone, found <{target}> from <{source}>")


def check_permute(spec: CollectiveSpec, source: Sharding, target: Sharding, mesh: Mesh, shape: tuple[int, ...]) -> None:
    """Raise ShardingError unless some permutation of whole blocks makes `target` of `source`."""
    target.check(mesh, len(shape))
    check_own_steps(spec, (), source, target)
    if source.partial != target.partial:
        raise ShardingError(f"{spec.name} keeps partial values, found <{source}> and <{target}>")
    fine = refinement(mesh, source, target)
    before, after = source.refined(fine), target.refined(fine)
    if 0 not in shape and all(placement.splits for side in (before, after) for _, placement in side.entries):
        if not all(_permutes_chunks(before, after, fine, *of) for of in enumerate(shape)):
            raise ShardingError(f"{spec.name} " + _NO_PERMUTATION.format(source, target, "", list(shape)))
        return
    for rank in representatives(permuted_axes(before, after, fine), fine, shape, before, after):
        try:
            senders(source, target, mesh, shape, rank)
        except ShardingError as error:
            raise ShardingError(f"{spec.name} {error.message}") from None


_NO_PERMUTATION = (
    "needs every rank's block to be as large before as after and to be held once for each rank that wants it; "
    "from <{}> to <{}> this fails{} at {}"
)


def _permutes_chunks(source: Sharding, target: Sharding, mesh: Mesh, dim: int, size: int) -> bool:
    """Return whether both sides cut a dimension by S into the same chunks, and every rank keeps its length."""
    sides = [tuple(zip(side.dim_axes(dim), side.dim_placements(dim, mesh), strict=True)) for side in (source, target)]
    outer, middle = _without_shared(*sides)
    _, middle = _without_shared(*(cuts[::-1] for cuts in middle))
    counts = [tuple(count for _, (_, count) in reversed(cuts)) for cuts in middle]
    if math.prod(counts[0]) != math.prod(counts[1]):
        return False
    if size % math.prod(count for _, (_, count) in sides[0]) == 0:
        return True
    starts: dict[str, set[int]] = {axis: {0} for cuts in sides for axis, _ in cuts}
    for cuts in sides:
        mark_runs(size, cuts, starts)
    points = (dict(zip(starts, point, strict=True)) for point in itertools.product(*starts.values()))
    return all(cut_length(size, sides[0], at) == cut_length(size, sides[1], at) for at in points) and all(
        have_same_chunks(own, *counts) for own in shard_lengths(tuple(cut for _, cut in outer), size)
    )


def _without_shared(
    before: Sequence[_T], after: Sequence[_T]
) -> tuple[Sequence[_T], tuple[Sequence[_T], Sequence[_T]]]:
    """Return what both start with, and the rest of both."""
    pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False))
    shared = len(list(pairs))
    return before[:shared], (before[shared:], after[shared:])


@functools.lru_cache(maxsize=65536)
def senders(source: Sharding, target: Sharding, mesh: Mesh, shape: tuple[int, ...], rank: int) -> dict[int, int]:
    """Return, for each rank of the group of `rank`, whose block a permute gives it; its own where that will do.

    Raises:
        ShardingError: no permutation of whole blocks makes `target` of `source`, or the group is too large.
    """
    fine = refinement(mesh, source, target)
    if fine is not mesh:
        return senders(source.refined(fine), target.refined(fine), fine, shape, rank)
    axes = permuted_axes(source, target, mesh)
    if mesh.group_size(axes) > ENUMERATED.most:
        raise ShardingError(
            f"from <{source}> to <{target}> of {list(shape)} moves blocks among {mesh.group_size(axes)} ranks, "
            f"one by one; expected at most {ENUMERATED.most}, or reshard by collectives"
        )
    return _senders(source, target, mesh, shape, mesh.group(rank, axes)[0])


@functools.lru_cache(maxsize=4096)
def _senders(source: Sharding, target: Sharding, mesh: Mesh, shape: tuple[int, ...], first: int) -> dict[int, int]:
    """`senders` of the group whose first rank is `first`."""
    group = sorted(mesh.group(first, permuted_axes(source, target, mesh)))
    held, wanted = ({rank: _block(side, shape, mesh, rank) for rank in group} for side in (source, target))
    result = {rank: rank for rank in group}
    moving = [rank for rank in group if held[rank] != wanted[rank]]
    spare: dict[object, list[int]] = {}
    for rank in reversed(moving):
        spare.setdefault(held[rank], []).append(rank)
    for rank in moving:
        found = spare.get(wanted[rank])
        if not found or any(length(a) != length(b) for a, b in zip(held[rank], wanted[rank], strict=True)):
            raise ShardingError(_NO_PERMUTATION.format(source, target, f" for rank {rank}", list(shape)))
        result[rank] = found.pop()
    return result


def _block(sharding: Sharding, shape: tuple[int, ...], mesh: Mesh, rank: int) -> tuple[Ranges, ...]:
    """What `rank` holds of each dimension; empty blocks of one shape are the same."""
    coordinate = mesh.coordinate(rank)
    held = tuple(sharding.local_ranges(dim, size, mesh, coordinate) for dim, size in enumerate(shape))
    return held if all(held) else tuple(((0, length(ranges)),) for ranges in held)


def check_rearrange(spec: CollectiveSpec, source: Sharding, target: Sharding, mesh: Mesh, shape: Shape) -> None:
    """Raise ShardingError unless an exchange from `source` to `target` is legal and sends nothing."""
    check_exchange(spec, source, target, mesh, shape)
    ranks = mesh.group_size(exchanged_axes(source, target, mesh))
    if ranks > EXCHANGED.most:
        raise ShardingError(f"{spec.name} is among {ranks} ranks; expected at most {EXCHANGED.most}")
    if any(exchange_loads(source, target, mesh, shape)):
        raise ShardingError(f"{spec.name} sends nothing, but for <{target}> from <{source}> ranks lack elements")
