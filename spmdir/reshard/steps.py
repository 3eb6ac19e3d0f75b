"""The steps that a reshard is made of, and which of them are legal.

Most steps take mesh axes out of one place and put them into another; MOVES is that table. The innermost axes of a
dimension can leave it, and axes join a dimension innermost, so a step works within the block that the outer axes
leave and uneven pieces need no more than padding or uneven splits. WHOLE_MOVES name no axes: their target says it all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from spmdir.core.errors import ParseError, ShardingError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import PartialPlacement, Placement, ShardPlacement, parse_placement
from spmdir.core.placement.standard import REDUCTIONS, Partial, Shard
from spmdir.core.sharding import Sharding
from spmdir.reshard.conditions import check_joint, check_own_steps, check_split, refinement
from spmdir.reshard.multi_axis_steps import WHOLE_MOVES

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
        check_split(kind, mesh, refinement(mesh, source, target), shape, source, target)
        return target
    _check_axes(kind, axes, mesh)
    fine = refinement(mesh, source, axes, *([target] if target else []))
    if fine is not mesh:
        parts = tuple(part for axis in axes for part in fine.parts(axis))
        wanted = target and target.refined(fine)
        result = transition(
            kind, source.refined(fine), fine, shape, axes=parts, dim=dim, to_dim=to_dim, op=op, target=wanted
        )
        check_split(kind, mesh, fine, shape, source, result)
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
    check_joint(kind, axes, (source, result))
    check_own_steps(kind, axes, source, result)
    return result


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


KINDS = (*MOVES, *WHOLE_MOVES)
"""The steps that there are."""
