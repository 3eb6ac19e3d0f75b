"""The steps that a reshard is made of, and which of them are legal.

Most steps take mesh axes out of one place and put them into another; MOVES is that table. The innermost axes of a
dimension can leave it, and axes join a dimension innermost, so a step works within the block that the outer axes
leave and uneven pieces need no more than padding or uneven splits. WHOLE_MOVES name no axes: their target says it all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs

from spmdir.errors import ParseError, ShardingError
from spmdir.mesh import Mesh
from spmdir.pieces import Ranges, length
from spmdir.placement import REDUCTIONS, Partial, Shard
from spmdir.placement_type import PartialPlacement, Placement, ShardPlacement, edge_between, parse_placement
from spmdir.sharding import Sharding

MOVES: dict[str, tuple[str, str]] = {
    "slice": ("replicated", "shard"),
    "partition": ("replicated", "partial"),
    "all_gather": ("shard", "replicated"),
    "all_to_all": ("shard", "shard"),
    "all_reduce": ("partial", "replicated"),
    "reduce_scatter": ("partial", "shard"),
}
"""Kind of step → the trait that its axes have before and after."""


@attrs.frozen
class Step:
    """One collective or local op that takes `source` to `target`.

    Attributes:
        kind: one of KINDS.
        axes: the mesh axes of the group, the first one major; ranks differ along these alone.
        source: the sharding before.
        target: the sharding after.
        dim: the dimension that is cut (slice, reduce_scatter) or put together (all_gather, all_to_all).
        to_dim: the dimension that all_to_all cuts.
        op: the reduction that is done (all_reduce, reduce_scatter) or left pending (partition).
    """

    kind: str
    axes: tuple[str, ...]
    source: Sharding
    target: Sharding
    dim: int | None = None
    to_dim: int | None = None
    op: str | None = None

    def ends(self, mesh: Mesh) -> tuple[Placement, Placement]:
        """The placement of its first axis before and after."""
        before, after = (side.along(self.axes[0], mesh) for side in (self.source, self.target))
        assert before is not None and after is not None  # its axes are held alike
        return before, after

    def __str__(self) -> str:
        details = (("on", f"[{', '.join(self.axes)}]"), ("dim", self.dim), ("to", self.to_dim), ("op", self.op))
        return " ".join([self.kind, *(f"{name} {value}" for name, value in details if value is not None)])


def make_step(kind: str, source: Sharding, mesh: Mesh, shape: Sequence[int], **given: Any) -> Step:
    """The step of `kind` from `source`; `given` are the keyword arguments of `transition`, which says what is legal."""
    target = transition(kind, source, mesh, shape, **given)
    if kind in WHOLE_MOVES:
        return Step(kind, WHOLE_MOVES[kind].axes(source, target, mesh), source, target)
    axes, op = tuple(given["axes"]), given.get("op")
    if MOVES[kind][0] == "partial":
        fine = refinement(mesh, source, axes)
        op = pending_op(source.refined(fine), [part for axis in axes for part in fine.parts(axis)])
    return Step(kind, axes, source, target, given.get("dim"), given.get("to_dim"), op)


def refinement(mesh: Mesh, *of: Sharding | Sequence[str]) -> Mesh:
    """`mesh` with the axes split that some of these shardings and lists of axes split.

    Raises:
        ShardingError: they have no common refinement.
    """
    names = [axis for one in of for axis in (_axes(one) if isinstance(one, Sharding) else one)]
    return mesh.refine(names)


def _axes(sharding: Sharding) -> list[str]:
    return [axis for axis, _ in sharding.entries]


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


def transition(
    kind: str,
    source: Sharding,
    mesh: Mesh,
    shape: Sequence[int],
    *,
    axes: Sequence[str] = (),
    dim: int | None = None,
    to_dim: int | None = None,
    op: str | None = None,
    target: Sharding | None = None,
) -> Sharding:
    """The sharding that a step of `kind` makes of `source`, a sharding of a tensor of global `shape`.

    Arguments are as in Step; `target` is the wanted sharding. Of steps that name axes it says how these divide the
    dimension that they join, which is by S if it is not given.

    Raises:
        ShardingError: the step is not legal from `source`.
    """
    if kind not in KINDS:
        raise ShardingError(f"unknown step '{kind}'; expected one of {', '.join(KINDS)}")
    if kind in WHOLE_MOVES:
        if target is None:
            raise ShardingError(f"{kind} says nothing about its result; give the target sharding")
        WHOLE_MOVES[kind].check(source, target, mesh, tuple(shape))
        _check_split(kind, mesh, refinement(mesh, source, target), shape, source, target)
        return target
    _check_axes(kind, axes, mesh)
    fine = refinement(mesh, source, axes, *([target] if target else []))
    if fine is not mesh:
        parts = tuple(part for axis in axes for part in fine.parts(axis))
        wanted = target and target.refined(fine)
        result = transition(
            kind, source.refined(fine), fine, shape, axes=parts, dim=dim, to_dim=to_dim, op=op, target=wanted
        )
        _check_split(kind, mesh, fine, shape, source, result)
        return result.merged(mesh)
    before, after = MOVES[kind]
    leaving = dim if before == "shard" else None
    joining = (to_dim if before == "shard" else dim) if after == "shard" else None
    for found, trait in ((leaving, before), (joining, after)):
        if trait == "shard" and (found is None or not 0 <= found < len(shape)):
            raise ShardingError(f"{kind} needs a dimension of a tensor of rank {len(shape)}, found {found}")
    _LEAVE[before](kind, source, tuple(axes), leaving, op)
    rest = [(axis, placement) for axis, placement in source.entries if axis not in axes]
    if after == "shard":
        assert joining is not None
        if joining == leaving:
            raise ShardingError(f"{kind} from dimension {leaving} to itself moves nothing; expected two dimensions")
        rest += [(axis, _dividing(joining, target and target[axis])) for axis in axes]
    if after == "partial":
        if op is None:
            raise ShardingError(f"{kind} needs the reduction that it leaves pending, such as sum")
        placement = pending_placement(op)
        if not placement.holds_whole:
            raise ShardingError(
                f"{kind} cannot leave {placement} pending, which has no identity; declare one, or an edge"
            )
        rest += [(axis, placement) for axis in axes]
    result = Sharding(rest, source.mesh)
    result.check(mesh, len(shape))
    _check_joint(kind, axes, (source, result))
    _check_own_steps(kind, axes, source, result)
    return result


def moves_jointly(axes: Sequence[str], sides: Iterable[Sharding]) -> bool:
    """Whether one step may move `axes`: what is neither whole nor a piece has to be the same on their product."""
    held = (side[axis] for side in sides for axis in axes)
    return len(axes) == 1 or all(p.splits or p.trait in ("replicated", "shard") for p in held)


def reshaped_axes(*sides: Sharding) -> set[str]:
    """The axes whose placement says for itself what shape ranks hold, so that no step on other axes knows it."""
    entries = (entry for side in sides for entry in side.entries)
    return {axis for axis, p in entries if p.trait == "other" and type(p).local_shape is not Placement.local_shape}


def _check_own_steps(kind: str, axes: Sequence[str], source: Sharding, target: Sharding) -> None:
    """Raise ShardingError where a placement has a step of its own, or knows alone what shape ranks hold."""
    for axis in axes if kind != "convert" else ():
        if edge_between(source[axis], target[axis]) is not None:
            raise ShardingError(
                f"{kind} takes {source[axis]} to {target[axis]}, which declare a step for that; convert"
            )
    for axis in reshaped_axes(source, target) - set(axes):
        held = source[axis]
        raise ShardingError(
            f"{kind} moves [{', '.join(axes)}] where {held} on '{axis}' says what ranks hold; move it first"
        )


def _check_joint(kind: str, axes: Sequence[str], sides: Sequence[Sharding]) -> None:
    if not moves_jointly(axes, sides):
        found = " to ".join(str(side[axes[0]]) for side in sides)
        raise ShardingError(f"{kind} on [{', '.join(axes)}] takes {found}, which goes by one axis after the other")


def _dividing(dim: int, wanted: Placement | None) -> Placement:
    return wanted if isinstance(wanted, ShardPlacement) and wanted.dim == dim else Shard(dim)


def pending_placement(op: str) -> PartialPlacement:
    """The placement of the pending reduction `op`, as Sharding.partial names it.

    Raises:
        ShardingError: there is no such reduction.
    """
    try:
        placement = Partial(op) if op in REDUCTIONS else parse_placement(op)
    except ParseError:
        placement = None
    return placement if isinstance(placement, PartialPlacement) else Partial(op)


def _check_split(kind: str, mesh: Mesh, fine: Mesh, shape: Sequence[int], *shardings: Sharding) -> None:
    for sharding in shardings:
        if not splits_evenly(sharding, fine, shape):
            raise ShardingError(
                f"{kind} takes <{sharding.merged(mesh)}> apart, which cuts {list(shape)} unevenly; move whole axes"
            )


def _check_axes(kind: str, axes: Sequence[str], mesh: Mesh) -> None:
    if not axes or len(set(axes)) != len(axes):
        raise ShardingError(f"{kind} needs one or more different mesh axes, found [{', '.join(axes)}]")
    for axis in axes:
        mesh.require(axis)


def _leave_replicated(kind: str, source: Sharding, axes: tuple[str, ...], dim: int | None, op: str | None) -> None:
    for axis in axes:
        if source[axis].trait != "replicated":
            raise ShardingError(f"{kind} on '{axis}' needs it replicated, found {source[axis]} in <{source}>")


def _leave_shard(kind: str, source: Sharding, axes: tuple[str, ...], dim: int | None, op: str | None) -> None:
    assert dim is not None
    found = source.dim_axes(dim)
    if found[-len(axes) :] != axes:
        raise ShardingError(
            f"{kind} on [{', '.join(axes)}] needs these to be the innermost axes of dimension {dim} in nesting order, "
            f"found [{', '.join(found)}] in <{source}>; move the inner axes first"
        )


def _leave_partial(kind: str, source: Sharding, axes: tuple[str, ...], dim: int | None, op: str | None) -> None:
    for axis in axes:
        if source[axis].trait != "partial":
            raise ShardingError(f"{kind} on '{axis}' needs a pending reduction, found {source[axis]} in <{source}>")
    pending = pending_op(source, axes)
    if op is not None and op != pending:
        raise ShardingError(f"{kind} by {op} does a reduction that is not pending; <{source}> expects {pending}")


_LEAVE = {"replicated": _leave_replicated, "shard": _leave_shard, "partial": _leave_partial}


def pending_op(source: Sharding, axes: Sequence[str]) -> str:
    """The reduction that is pending over `axes`, all of which are partial; their kind where several are mixed.

    Raises:
        ShardingError: reductions of different kinds are pending.
    """
    pending = [p for axis in axes if isinstance(p := source[axis], PartialPlacement)]
    found, kinds = sorted({p.op for p in pending}), {p.kind for p in pending}
    if len(found) == 1:
        return found[0]
    if len(kinds) == 1:
        return kinds.pop()
    raise ShardingError(f"the reductions pending over [{', '.join(axes)}] are {found}; expected one kind")


def permuted_axes(source: Sharding, target: Sharding, mesh: Mesh) -> tuple[str, ...]:
    """The axes among whose ranks a permute from `source` to `target` moves blocks, in mesh order.

    On each dimension the outer axes that both have in common, and the inner ones, keep their ranks apart.
    """
    fine = refinement(mesh, source, target)
    if fine is not mesh:
        return mesh.merge(permuted_axes(source.refined(fine), target.refined(fine), fine))
    moved: set[str] = set()
    for dim in {placement.dim for _, placement in (*source.entries, *target.entries) if placement.dim is not None}:
        before, after = _cuts(source, dim), _cuts(target, dim)
        for step in (1, -1):
            before, after = before[::step], after[::step]
            while before and after and before[0] == after[0]:
                before, after = before[1:], after[1:]
        moved.update(axis for axis, _ in (*before, *after))
    return tuple(axis for axis in mesh.axis_names if axis in moved)


def _cuts(sharding: Sharding, dim: int) -> tuple[tuple[str, Placement], ...]:
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
        before, after = _cuts(source, dim), _cuts(target, dim)
        while before and after and before[0] == after[0]:
            before, after = before[1:], after[1:]
        moved.update(axis for axis, _ in (*before, *after))
    return tuple(axis for axis in mesh.axis_names if axis in moved)


def relayed_axes(source: Sharding, target: Sharding, mesh: Mesh) -> tuple[str, ...]:
    """The axes among whose ranks a relay from `source` to `target` moves data, in mesh order.

    Beside those of an exchange all that do not divide the source: ranks that hold the same share the work, and addends
    may be put together.
    """
    fine = refinement(mesh, source, target)
    if fine is not mesh:
        return mesh.merge(relayed_axes(source.refined(fine), target.refined(fine), fine))
    moved = exchanged_axes(source, target, mesh)
    return tuple(axis for axis in mesh.axis_names if axis in moved or source[axis].trait != "shard")


def unmovable(kind: str, source: Sharding, target: Sharding) -> str | None:
    """What an exchange or relay from `source` to `target` would have to do and cannot; None if it can do it.

    Reductions are done and left pending piece by piece, so those that have no identity, such as averages, cannot be
    left, and of the placements of plug-ins only those stay as they are that an exchange does not touch.
    """
    if len(source.kinds | target.kinds) > 1:
        return "turn one kind of pending reduction into another"
    axes = dict.fromkeys(axis for axis, _ in (*source.entries, *target.entries))
    for before, after in ((source[axis], target[axis]) for axis in axes):
        touched = before != after or kind == "relay"
        for placement in (before, after) if touched else ():
            if placement.trait not in ("replicated", "shard") and not isinstance(placement, Partial):
                return f"move {placement}, of which it knows the steps that the placement has alone"
        if before != after and isinstance(after, Partial) and after.identity is None:
            return f"leave {after} pending"
    return None


def _check_whole(kind: str, source: Sharding, target: Sharding, mesh: Mesh, shape: tuple[int, ...]) -> None:
    """Raise ShardingError unless an exchange or relay makes `target` of `source`, shardings of a tensor of `shape`."""
    target.check_shape(mesh, shape)
    _check_own_steps(kind, tuple(axis for axis, _ in source.entries if source[axis] != target[axis]), source, target)
    if what := unmovable(kind, source, target):
        raise ShardingError(f"{kind} cannot {what}, found <{target}> from <{source}>")


def converted_axes(source: Sharding, target: Sharding, mesh: Mesh) -> tuple[str, ...]:
    """The axes that a declared edge from `source` to `target` moves, in mesh order."""
    fine = refinement(mesh, source, target)
    if fine is not mesh:
        return mesh.merge(converted_axes(source.refined(fine), target.refined(fine), fine))
    return tuple(axis for axis in mesh.axis_names if source[axis] != target[axis])


def check_convert(source: Sharding, target: Sharding, mesh: Mesh, shape: tuple[int, ...]) -> None:
    """Raise ShardingError unless a declared edge, along some axes, makes `target` of `source`."""
    target.check_shape(mesh, shape)
    fine = refinement(mesh, source, target)
    before, after = source.refined(fine), target.refined(fine)
    axes = converted_axes(before, after, fine)
    ends = {(before[axis], after[axis]) for axis in axes}
    if len(ends) != 1:
        found = ", ".join(f"{a} to {b}" for a, b in sorted(ends, key=str)) or "none"
        raise ShardingError(f"convert takes its axes from one placement to another one, found {found}")
    ((leaving, joining),) = ends
    if edge_between(leaving, joining) is None:
        raise ShardingError(f"{leaving} declares no edge to {joining}, nor {joining} from {leaving}")
    _check_joint("convert", axes, (before, after))
    _check_own_steps("convert", axes, before, after)
    for side, placement in ((before, leaving), (after, joining)):
        if placement.dim is not None and set(side.dim_axes(placement.dim)[-len(axes) :]) != set(axes):
            raise ShardingError(f"convert needs {list(axes)} innermost on dimension {placement.dim}, found <{side}>")
    kept = [tuple(entry for entry in side.entries if entry[0] not in axes) for side in (before, after)]
    if kept[0] != kept[1]:
        raise ShardingError(f"convert moves {list(axes)} alone, found <{target}> from <{source}>")


@functools.cache
def senders(source: Sharding, target: Sharding, mesh: Mesh, shape: tuple[int, ...]) -> tuple[int, ...]:
    """For each rank, the rank whose block a permute from `source` to `target` gives it; its own where that will do.

    Raises:
        ShardingError: no permutation of whole blocks makes `target` of `source`.
    """
    target.check(mesh, len(shape))
    if source.partial != target.partial:
        raise ShardingError(f"permute keeps pending reductions, found <{source}> and <{target}>")
    held, wanted = _blocks(source, shape, mesh), _blocks(target, shape, mesh)
    fine = refinement(mesh, source, target)
    moved = permuted_axes(source.refined(fine), target.refined(fine), fine)
    fixed = [axis for axis in fine.axis_names if axis not in moved]
    result = list(range(mesh.world_size))
    moving = [rank for rank in result if held[rank] != wanted[rank]]
    spare: dict[object, list[int]] = {}
    for rank in reversed(moving):
        spare.setdefault((fine.index(rank, fixed), held[rank]), []).append(rank)
    for rank in moving:
        found = spare.get((fine.index(rank, fixed), wanted[rank]))
        if not found or any(length(a) != length(b) for a, b in zip(held[rank], wanted[rank], strict=True)):
            raise ShardingError(
                f"permute needs every rank's block to be as large before as after and to be held once for each rank "
                f"that wants it; from <{source}> to <{target}> this fails for rank {rank} at {list(shape)}"
            )
        result[rank] = found.pop()
    return tuple(result)


@functools.cache
def _blocks(sharding: Sharding, shape: tuple[int, ...], mesh: Mesh) -> list[tuple[Ranges, ...]]:
    """Per rank, what it holds of each dimension; empty blocks of one shape are the same."""
    blocks = []
    for rank in range(mesh.world_size):
        coordinate = mesh.coordinate(rank)
        held = tuple(sharding.local_ranges(dim, size, mesh, coordinate) for dim, size in enumerate(shape))
        blocks.append(held if all(held) else tuple(((0, length(ranges)),) for ranges in held))
    return blocks


@attrs.frozen
class WholeMove:
    """A step that names no axes, since its target says it all.

    Attributes:
        check: raises ShardingError unless the step is legal.
        axes: (source, target, mesh) → the axes of its group.
    """

    check: Callable[[Sharding, Sharding, Mesh, tuple[int, ...]], object]
    axes: Callable[[Sharding, Sharding, Mesh], tuple[str, ...]]


WHOLE_MOVES: dict[str, WholeMove] = {
    "permute": WholeMove(senders, permuted_axes),
    "exchange": WholeMove(functools.partial(_check_whole, "exchange"), exchanged_axes),
    "relay": WholeMove(functools.partial(_check_whole, "relay"), relayed_axes),
    "convert": WholeMove(check_convert, converted_axes),
}

KINDS = (*MOVES, *WHOLE_MOVES)
"""The steps that there are."""
