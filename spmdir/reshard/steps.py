"""The steps that a reshard is made of, and which of them are legal.

A step is one collective with its arguments. Most take mesh axes out of one place and put them into another, as the
traits of their spec say: the innermost axes of a dimension can leave it, and axes join a dimension innermost, so a step
works within the block that the outer axes leave and uneven shards need no more than padding or uneven splits. The
others name no axes: their target says it all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from spmdir.core.errors import ParseError, ShardingError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import PartialPlacement, Placement, ShardPlacement, parse_placement
from spmdir.core.placement.reductions import REDUCTIONS
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.standard import Partial, Shard
from spmdir.reshard.clause import STANDARD_ARGUMENTS
from spmdir.reshard.collective_spec import CollectiveSpec
from spmdir.reshard.collectives import collective
from spmdir.reshard.conditions import check_joint, check_own_steps, check_split, refinement


@attrs.frozen
class Step:
    """One collective or local op that takes `source` to `target`.

    Attributes:
        kind: the name of the collective.
        axes: the mesh axes of the group, the first one major; ranks differ along these alone.
        source: the sharding before.
        target: the sharding after.
        dim: the dimension that is sharded (slice, reduce_scatter) or gathered (all_gather, all_to_all).
        to_dim: the dimension that all_to_all shards.
        reduction: the reduction that is done (all_reduce, reduce_scatter) or left to be done (partition).
        others: (name, value) of the arguments of other clauses, by name.
        spec: what its collective declares; that of a plug-in changes if its file is run again.
    """

    kind: str
    axes: tuple[str, ...]
    source: Sharding
    target: Sharding
    dim: int | None = None
    to_dim: int | None = None
    reduction: str | None = None
    others: tuple[tuple[str, Any], ...] = ()
    spec: CollectiveSpec = attrs.field(
        init=False, repr=False, default=attrs.Factory(lambda step: collective(step.kind), takes_self=True)
    )

    def ends(self, mesh: Mesh) -> tuple[Placement, Placement]:
        """The placement of its first axis before and after."""
        before, after = (side.along(self.axes[0], mesh) for side in (self.source, self.target))
        assert before is not None and after is not None  # its axes have one placement
        return before, after

    def moved(self, mesh: Mesh) -> tuple[tuple[Placement, Placement], ...]:
        """Return the (placement before, placement after) pairs that differ on axes of the step, each once."""
        named = (*self.axes, *(axis for side in (self.source, self.target) for axis, _ in side.entries))
        fine = mesh.refine(named)
        source, target = self.source.refined(fine), self.target.refined(fine)
        axes = [part for axis in self.axes for part in fine.parts(axis)]
        pairs = dict.fromkeys((source[axis], target[axis]) for axis in axes)
        return tuple((before, after) for before, after in pairs if before != after)

    @property
    def has_lossy(self) -> bool:
        """Return whether the sharding before or after has a lossy placement, be it on an axis that the step leaves."""
        return self.source.has_lossy or self.target.has_lossy

    def is_lossy(self, mesh: Mesh) -> bool:
        """Return whether the step enters or leaves a lossy placement."""
        if not self.has_lossy:
            return False
        return any(before.error or after.error for before, after in self.moved(mesh))

    def __str__(self) -> str:
        details = (
            ("on", f"[{', '.join(self.axes)}]"),
            ("dim", self.dim),
            ("to", self.to_dim),
            ("op", self.reduction),
            *self.others,
        )
        return " ".join([self.kind, *(f"{name} {value}" for name, value in details if value is not None)])


def make_step(kind: str, source: Sharding, mesh: Mesh, shape: Sequence[int], **given: Any) -> Step:
    """Return the step of `kind` from `source`; `given` are the keyword arguments of `transition`.

    Raises:
        ShardingError: the step is not legal.
    """
    target, spec = transition(kind, source, mesh, shape, **given), collective(kind)
    if not spec.names_axes:
        return Step(kind, spec.group_axes(source, target, mesh), source, target, others=_others(spec, given))
    axes, reduction = tuple(given["axes"]), given.get("reduction")
    if spec.before == "partial":
        fine = refinement(mesh, source, axes)
        reduction = partial_op(source.refined(fine), [part for axis in axes for part in fine.parts(axis)])
    return Step(kind, axes, source, target, given.get("dim"), given.get("to_dim"), reduction, _others(spec, given))


def _others(spec: CollectiveSpec, given: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    names = sorted(clause.argument for clause in spec.clauses if clause.argument not in STANDARD_ARGUMENTS)
    return tuple((name, given[name]) for name in names if name in given)


def transition(
    kind: str,
    source: Sharding,
    mesh: Mesh,
    shape: Sequence[int],
    *,
    axes: Sequence[str] = (),
    target: Sharding | None = None,
    **given: Any,
) -> Sharding:
    """Return the sharding that a step of `kind` makes of `source`, a sharding of a tensor of global `shape`.

    Args:
        axes, given: arguments of the collective, as in Step.
        target: the wanted sharding. Of steps that name axes it says how these shard the dimension that they join,
            which is by S if it is not given.

    Raises:
        ShardingError: the step is not legal from `source`.
    """
    spec = collective(kind)
    if spec.check is not None:
        if target is None:
            raise ShardingError(f"{kind} says nothing about its result; give the target sharding")
        spec.check(spec, source, target, mesh, tuple(shape))
        check_split(spec, mesh, refinement(mesh, source, target), shape, source, target)
        return target
    _check_axes(kind, axes, mesh)
    fine = refinement(mesh, source, axes, *([target] if target else []))
    if fine is mesh:
        return _moved(spec, source, mesh, len(shape), tuple(axes), target, **given)
    parts = tuple(part for axis in axes for part in fine.parts(axis))
    result = _moved(spec, source.refined(fine), fine, len(shape), parts, target and target.refined(fine), **given)
    check_split(spec, mesh, fine, shape, source, result)
    return result.merged(mesh)


def _moved(
    spec: CollectiveSpec,
    source: Sharding,
    mesh: Mesh,
    rank: int,
    axes: tuple[str, ...],
    target: Sharding | None,
    *,
    dim: int | None = None,
    to_dim: int | None = None,
    reduction: str | None = None,
    **others: Any,
) -> Sharding:
    """Return `source` with `axes` taken from the trait before `spec` to the one after it."""
    kind = spec.name
    leaving, joining = (dim, to_dim) if spec.before == "shard" else (None, dim)
    for found, trait in ((leaving, spec.before), (joining, spec.after)):
        if trait == "shard" and (found is None or not 0 <= found < rank):
            raise ShardingError(f"{kind} needs a dimension of a tensor of rank {rank}, found {found}")
    _check_leaving(spec, source, axes, leaving, reduction)
    result = Sharding(
        [*(e for e in source.entries if e[0] not in axes), *_joined(spec, axes, target, leaving, joining, reduction)],
        source.mesh,
    )
    result.check(mesh, rank)
    check_joint(spec, axes, (source, result))
    check_own_steps(spec, axes, source, result)
    return result


def _joined(
    spec: CollectiveSpec,
    axes: tuple[str, ...],
    target: Sharding | None,
    leaving: int | None,
    joining: int | None,
    reduction: str | None,
) -> list[tuple[str, Placement]]:
    """Return `axes` with the placements that `spec` gives them."""
    if spec.after == "shard":
        assert joining is not None  # checked
        if joining == leaving:
            raise ShardingError(
                f"{spec.name} from dimension {leaving} to itself moves nothing; expected two dimensions"
            )
        return [(axis, _shard_placement(joining, target and target[axis])) for axis in axes]
    if spec.after == "partial":
        if reduction is None:
            raise ShardingError(f"{spec.name} needs the reduction of its result, such as sum")
        placement = partial_placement(reduction)
        if not placement.from_replicated:
            raise ShardingError(f"{spec.name} cannot make {placement}, which has no identity; declare one, or an edge")
        return [(axis, placement) for axis in axes]
    return []


def _shard_placement(dim: int, wanted: Placement | None) -> Placement:
    return wanted if isinstance(wanted, ShardPlacement) and wanted.dim == dim else Shard(dim)


def partial_placement(reduction: str) -> PartialPlacement:
    """Return the partial placement of the reduction `op`, as Sharding.partial names it.

    Raises:
        ShardingError: there is no such reduction.
    """
    try:
        placement = Partial(reduction) if reduction in REDUCTIONS else parse_placement(reduction)
    except ParseError:
        placement = None
    return placement if isinstance(placement, PartialPlacement) else Partial(reduction)


def _check_axes(kind: str, axes: Sequence[str], mesh: Mesh) -> None:
    if not axes or len(set(axes)) != len(axes):
        raise ShardingError(f"{kind} needs one or more different mesh axes, found [{', '.join(axes)}]")
    for axis in axes:
        mesh.require(axis)


def _check_leaving(
    spec: CollectiveSpec, source: Sharding, axes: tuple[str, ...], dim: int | None, reduction: str | None
) -> None:
    """Raise ShardingError unless `axes` have the trait before `spec`, and are innermost in the dimension they leave."""
    if dim is not None and (found := source.dim_axes(dim))[-len(axes) :] != axes:
        raise ShardingError(
            f"{spec.name} on [{', '.join(axes)}] needs these to be the innermost axes of dimension {dim} in nesting "
            f"order, found [{', '.join(found)}] in <{source}>; move the inner axes first"
        )
    for axis in axes if dim is None else ():
        if source[axis].trait != spec.before:
            raise ShardingError(f"{spec.name} on '{axis}' needs it {spec.before}, found {source[axis]} in <{source}>")
    needed = partial_op(source, axes) if spec.before == "partial" else reduction
    if reduction not in (None, needed):
        raise ShardingError(
            f"{spec.name} by {reduction} does another reduction than <{source}> needs, which is {needed}"
        )


def partial_op(source: Sharding, axes: Sequence[str]) -> str:
    """Return the reduction over `axes`, all of which are partial; their kind where several are mixed.

    Raises:
        ShardingError: reductions of different kinds are mixed.
    """
    partial = [p for axis in axes if isinstance(p := source[axis], PartialPlacement)]
    found, kinds = sorted({p.op for p in partial}), {p.kind for p in partial}
    if len(found) == 1:
        return found[0]
    if len(kinds) == 1:
        return kinds.pop()
    raise ShardingError(f"the partial values over [{', '.join(axes)}] are of {found}; expected one kind")
