"""The conditions of steps that name no axes: permute, exchanges, rearrange and convert. Their target defines them."""

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
from spmdir.core.placement.base import PartialPlacement, Placement, edge_between
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.shards import shard_lengths
from spmdir.core.placement.standard import Partial, R
from spmdir.reshard.collective_spec import CollectiveSpec
from spmdir.reshard.conditions import check_declared_steps, check_joint, has_declared_step, refinement
from spmdir.reshard.equal_shard_runs import cut_length, mark_runs, representatives
from spmdir.reshard.exchange import exchange_loads
from spmdir.reshard.moved_axes import converted_axes, exchanged_axes, permuted_axes

Shape = tuple[int, ...]
_T = TypeVar("_T")


def find_obstacle(spec: CollectiveSpec, source: Sharding, target: Sharding) -> str | None:
    """Return the reason why no exchange leads from `source` to `target`, as the end of "cannot …"; None if one does.

    An exchange reduces and creates partial values chunk by chunk. It cannot create partial values without an identity,
    such as averages. Placements that do not change are not checked, except partial ones in two rounds.
    """
    has_two_rounds = spec.traffic.rounds > 1
    if len(source.kinds | target.kinds) > 1:
        return (
            "turn one kind of partial value into another; expected partial values of one kind: reduce them "
            "first, as by all_reduce"
        )
    axes = dict.fromkeys(axis for axis, _ in (*source.entries, *target.entries))
    reduced: list[PartialPlacement] = []
    created: list[PartialPlacement] = []
    for axis in axes:
        before, after = source[axis], target[axis]
        if before != after and has_declared_step(before, after):
            return (
                f"take {before} to {after}, which declare their own step; expected that step: use convert along "
                f"this axis, then {spec.name} along the others"
            )
        if before == after and not has_two_rounds:
            continue
        for placement, partial_placements in ((before, reduced), (after, created)):
            if isinstance(placement, PartialPlacement) and not placement.has_own_type:
                partial_placements.append(placement)
            elif placement.trait not in ("replicated", "shard"):
                return (
                    f"move {placement} along '{axis}'; expected S, R or a partial placement there: reshard "
                    f"'{axis}' first with the steps of {placement}"
                )
        if before != after and isinstance(after, PartialPlacement) and after.identity is None:
            return _no_identity(after)
    return _find_uncombinable(reduced, created)


def _find_uncombinable(reduced: Sequence[PartialPlacement], created: Sequence[PartialPlacement]) -> str | None:
    """Return the reason why an exchange cannot combine the partial values; None if it can.

    Partial values of a plug-in are combined between its `before` and its `after`, over all axes at once. If partial
    values remain, `after` is applied to the combination of a part of them. This is correct if the placement `splits`.

    Args:
        reduced, created: the partial placements of the source, and of the target, on axes that the exchange moves.
    """
    placements = dict.fromkeys((*reduced, *created))
    plugins = [placement for placement in placements if not isinstance(placement, Partial)]
    is_combined = bool(reduced) or len(created) > 1  # otherwise no two partial values meet
    if not plugins or not is_combined:
        return None
    with_own_step = [p for p in reduced if not isinstance(p, Partial) and edge_between(p, R) is not None]
    if with_own_step:
        return (
            f"reduce {with_own_step[0]}, which declares its own step; expected that step: use convert along its axes "
            "first"
        )
    if created and len(placements) > 1:
        other_texts = [str(placement) for placement in placements if placement != created[0]]
        return (
            f"create {created[0]} together with {' and '.join(other_texts)}; expected one partial placement: "
            "use one collective for each"
        )
    if (created or len(reduced) > 1) and not all(placement.splits for placement in plugins):
        return (
            f"reduce {plugins[0]} over several axes at once; expected one axis, since it does not declare "
            "`splits`: use one collective for each axis"
        )
    if reduced and created and created[0].identity is None:
        return _no_identity(created[0])
    return None


def _no_identity(placement: Placement) -> str:
    """Return the end of the error of an exchange that would create a partial placement without an identity."""
    return (
        f"create {placement}, which has no identity; expected a placement with an identity, such as P(sum): use it, or "
        "leave the axis unchanged"
    )


def check_exchange(spec: CollectiveSpec, source: Sharding, target: Sharding, mesh: Mesh, shape: Shape) -> None:
    """Raise ShardingError unless an exchange leads from `source` to `target` on a tensor of `shape`."""
    target.check_shape(mesh, shape)
    check_declared_steps(spec, (), source, target)
    if obstacle := find_obstacle(spec, source, target):
        raise ShardingError(f"{spec.name} from <{source}> to <{target}> cannot {obstacle}")


def check_convert(spec: CollectiveSpec, source: Sharding, target: Sharding, mesh: Mesh, shape: tuple[int, ...]) -> None:
    """Raise ShardingError unless one declared edge, along some axes, leads from `source` to `target`.

    All axes that change must have the same placement before and the same one after, and be innermost on a dimension
    that they leave or join. For example, `Mx` on tp may become `R` on tp, but not while dp changes from `S(0)` to `R`.
    """
    target.check_shape(mesh, shape)
    fine = refinement(mesh, source, target)
    before, after = source.refined(fine), target.refined(fine)
    axes = converted_axes(before, after, fine)
    ends = {(before[axis], after[axis]) for axis in axes}
    if len(ends) != 1:
        moves = ", ".join(f"{a} to {b}" for a, b in sorted(ends, key=str)) or "none"
        raise ShardingError(
            f"{spec.name} found {moves}; expected one placement before and one after on all axes that "
            f"change: use one {spec.name} for each pair"
        )
    ((leaving, joining),) = ends
    if edge_between(leaving, joining) is None:
        raise ShardingError(
            f"neither {leaving} nor {joining} declares an edge from {leaving} to {joining}; expected an edge in "
            "`edges` of one of these placements: declare it, or use another collective"
        )
    check_joint(spec, axes, (before, after))
    check_declared_steps(spec, axes, before, after)
    for side, placement in ((before, leaving), (after, joining)):
        if placement.dim is not None and set(side.dim_axes(placement.dim)[-len(axes) :]) != set(axes):
            raise ShardingError(
                f"{spec.name} requires {list(axes)} to be innermost on dimension {placement.dim}, found "
                f"<{side}>; expected these axes last: move the inner axes first"
            )
    unmoved = [tuple(entry for entry in side.entries if entry[0] not in axes) for side in (before, after)]
    if unmoved[0] != unmoved[1]:
        raise ShardingError(
            f"{spec.name} moves only {list(axes)}; expected other axes unchanged from <{source}> to "
            f"<{target}>: move them by another collective"
        )


def check_permute(spec: CollectiveSpec, source: Sharding, target: Sharding, mesh: Mesh, shape: tuple[int, ...]) -> None:
    """Raise ShardingError unless a permutation of whole blocks leads from `source` to `target`.

    If all placements split, the cuts of each dimension are compared. Otherwise a permutation is searched in groups that
    represent all groups.
    """
    target.check(mesh, len(shape))
    check_declared_steps(spec, (), source, target)
    if source.partial != target.partial:
        raise ShardingError(
            f"{spec.name} cannot change partial placements, found <{source}> to <{target}>; "
            "expected equal ones: reduce them first, such as by all_reduce"
        )
    fine = refinement(mesh, source, target)
    before, after = source.refined(fine), target.refined(fine)
    if 0 not in shape and all(placement.splits for side in (before, after) for _, placement in side.entries):
        if not all(_permutes_chunks(before, after, fine, dim, size) for dim, size in enumerate(shape)):
            raise ShardingError(f"{spec.name} " + _NO_PERMUTATION.format(source, target, "", list(shape)))
        return
    for rank in representatives(permuted_axes(before, after, fine), fine, shape, before, after):
        try:
            permute_senders(source, target, mesh, shape, rank)
        except ShardingError as error:
            raise ShardingError(f"{spec.name} {error.message}") from None


_NO_PERMUTATION = (
    "from <{}> to <{}> finds no permutation of whole blocks{} for shape {}; expected blocks of equal size "
    "before and after, each on as many ranks before as after: use exchange"
)


def _permutes_chunks(source: Sharding, target: Sharding, mesh: Mesh, dim: int, size: int) -> bool:
    """Return whether both sides cut a dimension by S into the same chunks, and no rank's chunk changes its length.

    The axes that both sides have in common, outermost and innermost, do not move. For example, the moved axes from
    `a, b, c` to `a, c, b` are `b, c` and `c, b`. If b and c have 2 and 3 ranks, both cut into 6 chunks. Even chunks are
    then equal. Uneven ones are compared, with one rank for each run of ranks whose chunks have equal lengths.
    """
    # (axis, (placement, number of ranks)) for each axis of the dimension, outermost first
    source_cuts, target_cuts = (
        tuple(zip(side.dim_axes(dim), side.dim_placements(dim, mesh), strict=True)) for side in (source, target)
    )
    outer_cuts, source_moved, target_moved = _split_common_prefix(source_cuts, target_cuts)
    _, source_moved, target_moved = _split_common_prefix(source_moved[::-1], target_moved[::-1])
    source_counts, target_counts = (
        tuple(count for _, (_, count) in reversed(moved)) for moved in (source_moved, target_moved)
    )
    if math.prod(source_counts) != math.prod(target_counts):
        return False
    if size % math.prod(count for _, (_, count) in source_cuts) == 0:
        return True  # all chunks are even
    starts: dict[str, set[int]] = {axis: {0} for axis, _ in (*source_cuts, *target_cuts)}
    for cuts in (source_cuts, target_cuts):
        mark_runs(size, cuts, starts)
    for point in itertools.product(*starts.values()):
        coordinate = dict(zip(starts, point, strict=True))
        if cut_length(size, source_cuts, coordinate) != cut_length(size, target_cuts, coordinate):
            return False
    outer_lengths = shard_lengths(tuple(cut for _, cut in outer_cuts), size)
    return all(have_same_chunks(outer_length, source_counts, target_counts) for outer_length in outer_lengths)


def _split_common_prefix(before: Sequence[_T], after: Sequence[_T]) -> tuple[Sequence[_T], Sequence[_T], Sequence[_T]]:
    """Return the common prefix of both sequences, and the remaining elements of each."""
    pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False))
    common_count = len(list(pairs))
    return before[:common_count], before[common_count:], after[common_count:]


@functools.lru_cache(maxsize=65536)
def permute_senders(
    source: Sharding, target: Sharding, mesh: Mesh, shape: tuple[int, ...], rank: int
) -> dict[int, int]:
    """Return receiver → sender for the permute in the group of `rank`. A rank that keeps its block is its own sender.

    Raises:
        ShardingError: no permutation of whole blocks leads from `source` to `target`, or the group is too large.
    """
    fine = refinement(mesh, source, target)
    if fine is not mesh:
        return permute_senders(source.refined(fine), target.refined(fine), fine, shape, rank)
    axes = permuted_axes(source, target, mesh)
    if mesh.group_size(axes) > ENUMERATED.most:
        raise ShardingError(
            f"from <{source}> to <{target}> of shape {list(shape)} moves blocks among "
            f"{mesh.group_size(axes)} ranks; expected at most {ENUMERATED.most}: use all_gather and slice"
        )
    return _senders(source, target, mesh, shape, mesh.group(rank, axes)[0])


@functools.lru_cache(maxsize=4096)
def _senders(source: Sharding, target: Sharding, mesh: Mesh, shape: tuple[int, ...], first_rank: int) -> dict[int, int]:
    """Return `permute_senders` of the group whose first rank is `first_rank`.

    For example, from `a: S(0), b: S(0)` to `b: S(0), a: S(0)` on the mesh (a = 2, b = 2), ranks 1 and 2 swap their
    blocks: {0: 0, 1: 2, 2: 1, 3: 3}.
    """
    group = sorted(mesh.group(first_rank, permuted_axes(source, target, mesh)))
    source_blocks, target_blocks = (
        {rank: _block(side, shape, mesh, rank) for rank in group} for side in (source, target)
    )
    senders = {rank: rank for rank in group}
    moving = [rank for rank in group if source_blocks[rank] != target_blocks[rank]]
    senders_of_block: dict[object, list[int]] = {}
    # `pop` takes the last sender, so senders are listed in reverse: the lowest rank sends first.
    for rank in reversed(moving):
        senders_of_block.setdefault(source_blocks[rank], []).append(rank)
    for rank in moving:
        candidates = senders_of_block.get(target_blocks[rank])
        if not candidates or [*map(length, source_blocks[rank])] != [*map(length, target_blocks[rank])]:
            raise ShardingError(_NO_PERMUTATION.format(source, target, f" for rank {rank}", list(shape)))
        senders[rank] = candidates.pop()
    return senders


def _block(sharding: Sharding, shape: tuple[int, ...], mesh: Mesh, rank: int) -> tuple[Ranges, ...]:
    """Return the ranges of each dimension in the block of `rank`.

    Empty blocks of one shape are equal, wherever they are: a rank may take its empty block from any of them.
    """
    coordinate = mesh.coordinate(rank)
    ranges_by_dim = tuple(sharding.local_ranges(dim, size, mesh, coordinate) for dim, size in enumerate(shape))
    return ranges_by_dim if all(ranges_by_dim) else tuple(((0, length(ranges)),) for ranges in ranges_by_dim)


def check_rearrange(spec: CollectiveSpec, source: Sharding, target: Sharding, mesh: Mesh, shape: Shape) -> None:
    """Raise ShardingError unless an exchange from `source` to `target` is legal and sends nothing."""
    check_exchange(spec, source, target, mesh, shape)
    ranks = mesh.group_size(exchanged_axes(source, target, mesh))
    if ranks > EXCHANGED.most:
        raise ShardingError(
            f"{spec.name} has a group of {ranks} ranks; expected at most {EXCHANGED.most}: reshard over fewer mesh "
            "axes at a time"
        )
    if any(exchange_loads(source, target, mesh, shape)):
        raise ShardingError(
            f"ranks lack elements of <{target}> in <{source}>, but {spec.name} sends nothing; expected "
            "ranks that have all elements of their new shards: use exchange"
        )
