"""The steps of a reshard, and the conditions under which they are legal.

A step is one collective with its arguments. For example, `all_gather on [b] dim 1` takes `a: S(0), b: S(1)` to `a:
S(0)`.

Most steps take mesh axes from one trait to another, as their spec declares. The innermost axes of a dimension can leave
it, and axes join a dimension innermost. So a step works within the block of the outer axes, and uneven shards need only
padding or uneven splits. The other steps name no axes, because their target defines them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from spmdir.core.errors import ParseError, ShardingError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import PartialPlacement, Placement, parse_placement
from spmdir.core.placement.reductions import REDUCTIONS
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.shards import ShardPlacement
from spmdir.core.placement.standard import Partial, Shard
from spmdir.reshard.clause import STANDARD_ARGUMENTS
from spmdir.reshard.collective_spec import CollectiveSpec
from spmdir.reshard.collectives import collective
from spmdir.reshard.conditions import check_declared_steps, check_joint, check_split, refinement


@attrs.frozen
class Step:
    """One collective or local op from sharding `source` to sharding `target`.

    Attributes:
        kind: the name of the collective.
        axes: the mesh axes of the group, the first axis major. The ranks of a group differ only along these axes.
        source: the sharding before.
        target: the sharding after.
        dim: the dimension that the step shards (slice, reduce_scatter) or gathers (all_gather, all_to_all).
        to_dim: the dimension that all_to_all shards.
        reduction: the reduction of the partial values before the step (all_reduce, reduce_scatter) or after it
            (partition).
        extra_arguments: (name, value) pairs of the arguments of other clauses, sorted by name.
        spec: the spec of the collective. The spec of a plug-in changes if its file is run again.
    """

    kind: str
    axes: tuple[str, ...]
    source: Sharding
    target: Sharding
    dim: int | None = None
    to_dim: int | None = None
    reduction: str | None = None
    extra_arguments: tuple[tuple[str, Any], ...] = ()
    spec: CollectiveSpec = attrs.field(
        init=False, repr=False, default=attrs.Factory(lambda step: collective(step.kind), takes_self=True)
    )

    def ends(self, mesh: Mesh) -> tuple[Placement, Placement]:
        """Return the placements of the first axis of the step, before and after the step."""
        before, after = (side.along(self.axes[0], mesh) for side in (self.source, self.target))
        assert before is not None and after is not None  # all axes of the step have one placement
        return before, after

    def placement_changes(self, mesh: Mesh) -> tuple[tuple[Placement, Placement], ...]:
        """Return the distinct (placement before, placement after) pairs of axes that the step changes."""
        placed_axes = [axis for side in (self.source, self.target) for axis, _ in side.entries]
        fine = mesh.refine([*self.axes, *placed_axes])
        source, target = self.source.refined(fine), self.target.refined(fine)
        sub_axes = [part for axis in self.axes for part in fine.parts(axis)]
        pairs = dict.fromkeys((source[axis], target[axis]) for axis in sub_axes)
        return tuple((before, after) for before, after in pairs if before != after)

    @property
    def has_lossy(self) -> bool:
        """Return whether `source` or `target` has a lossy placement, on any axis."""
        return self.source.has_lossy or self.target.has_lossy

    def is_lossy(self, mesh: Mesh) -> bool:
        """Return whether the step enters or leaves a lossy placement."""
        if not self.has_lossy:
            return False
        return any(before.error or after.error for before, after in self.placement_changes(mesh))

    def __str__(self) -> str:
        clauses = (
            ("on", f"[{', '.join(self.axes)}]"),
            ("dim", self.dim),
            ("to", self.to_dim),
            ("op", self.reduction),
            *self.extra_arguments,
        )
        return " ".join([self.kind, *(f"{keyword} {value}" for keyword, value in clauses if value is not None)])


def make_step(kind: str, source: Sharding, mesh: Mesh, shape: Sequence[int], **arguments: Any) -> Step:
    """Return the step of `kind` from `source` on a tensor of global `shape`.

    Args:
        arguments: the keyword arguments of `transition`.

    Raises:
        ShardingError: the step is not legal.
    """
    target, spec = transition(kind, source, mesh, shape, **arguments), collective(kind)
    extra_arguments = _extra_arguments(spec, arguments)
    if not spec.names_axes:
        axes = spec.group_axes(source, target, mesh)
        return Step(kind, axes, source, target, extra_arguments=extra_arguments)
    axes, reduction = tuple(arguments["axes"]), arguments.get("reduction")
    if spec.before == "partial":
        fine = refinement(mesh, source, axes)
        sub_axes = [part for axis in axes for part in fine.parts(axis)]
        reduction = partial_op(source.refined(fine), sub_axes)
    dim, to_dim = arguments.get("dim"), arguments.get("to_dim")
    return Step(kind, axes, source, target, dim, to_dim, reduction, extra_arguments)


def _extra_arguments(spec: CollectiveSpec, arguments: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Return (name, value) for the arguments of clauses that have no field in `Step`, such as the root of a scatter."""
    names = sorted(clause.argument for clause in spec.clauses if clause.argument not in STANDARD_ARGUMENTS)
    return tuple((name, arguments[name]) for name in names if name in arguments)


def transition(
    kind: str,
    source: Sharding,
    mesh: Mesh,
    shape: Sequence[int],
    *,
    axes: Sequence[str] = (),
    target: Sharding | None = None,
    **arguments: Any,
) -> Sharding:
    """Return the sharding after a step of `kind` from `source`, on a tensor of global `shape`.

    Args:
        axes, arguments: the arguments of the collective, as in Step.
        target: the sharding after the step; required for steps that name no axes. For other steps, it contains the
            shard placement of the axes that join a dimension: `S` by default.

    Raises:
        ShardingError: the step is not legal from `source`.
    """
    spec = collective(kind)
    if spec.check is not None:
        if target is None:
            raise ShardingError(
                f"the step {kind} has no target; expected the sharding of its result, from which its axes follow: "
                "pass target"
            )
        spec.check(spec, source, target, mesh, tuple(shape))
        check_split(spec, mesh, refinement(mesh, source, target), shape, source, target)
        return target
    _check_axes(kind, axes, mesh)
    fine = refinement(mesh, source, axes, *([target] if target else []))
    if fine is mesh:
        return _move_axes(spec, source, mesh, len(shape), tuple(axes), target, **arguments)
    sub_axes = tuple(part for axis in axes for part in fine.parts(axis))
    refined_target = target and target.refined(fine)
    result = _move_axes(spec, source.refined(fine), fine, len(shape), sub_axes, refined_target, **arguments)
    check_split(spec, mesh, fine, shape, source, result)
    return result.merged(mesh)


def _move_axes(
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
    **extra_arguments: Any,
) -> Sharding:
    """Return `source` with `axes` taken from the trait before `spec` to the trait after it.

    Args:
        rank: the number of dimensions of the tensor.
        target: contains the shard placement of axes that join a dimension; `S` if None.
        dim, to_dim, reduction: as in `Step`.
    """
    gathered_dim, sharded_dim = (dim, to_dim) if spec.before == "shard" else (None, dim)
    for dimension, trait in ((gathered_dim, spec.before), (sharded_dim, spec.after)):
        if trait == "shard" and (dimension is None or not 0 <= dimension < rank):
            raise ShardingError(
                f"{spec.name} has dimension {dimension}; expected a dimension of a tensor of rank {rank}, "
                "counted from 0: write it, as in `dim 0`"
            )
    _check_leaving(spec, source, axes, gathered_dim, reduction)
    unmoved_entries = [(axis, placement) for axis, placement in source.entries if axis not in axes]
    moved_entries = _moved_entries(spec, axes, target, gathered_dim, sharded_dim, reduction)
    result = Sharding([*unmoved_entries, *moved_entries], source.mesh)
    result.check(mesh, rank)
    check_joint(spec, axes, (source, result))
    check_declared_steps(spec, axes, source, result)
    return result


def _moved_entries(
    spec: CollectiveSpec,
    axes: tuple[str, ...],
    target: Sharding | None,
    gathered_dim: int | None,
    sharded_dim: int | None,
    reduction: str | None,
) -> list[tuple[str, Placement]]:
    """Return (axis, placement) for `axes` after the step; empty if they become replicated. Arguments: see `_move_axes`.

    Raises:
        ShardingError: the step shards the dimension that it gathers, or `reduction` cannot create partial values.
    """
    if spec.after == "shard":
        assert sharded_dim is not None  # checked
        if sharded_dim == gathered_dim:
            raise ShardingError(
                f"{spec.name} is from dimension {gathered_dim} to itself; expected two different dimensions"
            )
        return [(axis, _shard_placement(sharded_dim, target and target[axis])) for axis in axes]
    if spec.after == "partial":
        if reduction is None:
            raise ShardingError(f"{spec.name} has no reduction; expected one, such as `op sum`")
        placement = partial_placement(reduction)
        if not placement.from_replicated:
            raise ShardingError(
                f"{spec.name} cannot create {placement}, which has no identity; expected a value that "
                "reductions ignore: declare `identity`, or an edge to this placement"
            )
        return [(axis, placement) for axis in axes]
    return []


def _shard_placement(dim: int, wanted: Placement | None) -> Placement:
    """Return `wanted` if it shards `dim`, else `S(dim)`."""
    return wanted if isinstance(wanted, ShardPlacement) and wanted.dim == dim else Shard(dim)


def partial_placement(reduction: str) -> PartialPlacement:
    """Return the partial placement of a reduction: a key of REDUCTIONS, or the text of a partial placement.

    Raises:
        ShardingError: the reduction is unknown.
    """
    try:
        placement = Partial(reduction) if reduction in REDUCTIONS else parse_placement(reduction)
    except ParseError:
        placement = None
    # `Partial` raises the error, because the reduction is unknown.
    return placement if isinstance(placement, PartialPlacement) else Partial(reduction)


def _check_axes(kind: str, axes: Sequence[str], mesh: Mesh) -> None:
    """Raise ShardingError unless `axes` are one or more different axes of the mesh, or sub-axes."""
    if not axes or len(set(axes)) != len(axes):
        raise ShardingError(
            f"{kind} has the mesh axes [{', '.join(axes)}]; expected at least one axis, and each axis once"
        )
    for axis in axes:
        mesh.require(axis)


def _check_leaving(
    spec: CollectiveSpec, source: Sharding, axes: tuple[str, ...], dim: int | None, reduction: str | None
) -> None:
    """Raise ShardingError unless `axes` have the trait before `spec`, and are innermost on the dimension they leave.

    Args:
        dim: the dimension that they leave; None if they leave none.
        reduction: the reduction of the step, which must be that of `source`; None if it is not specified.
    """
    if dim is not None and (dim_axes := source.dim_axes(dim))[-len(axes) :] != axes:
        raise ShardingError(
            f"{spec.name} on [{', '.join(axes)}] requires the innermost axes of dimension {dim} in nesting "
            f"order, found [{', '.join(dim_axes)}] in <{source}>; expected these axes last: move the inner "
            "axes first"
        )
    for axis in axes if dim is None else ():
        if source[axis].trait != spec.before:
            raise ShardingError(
                f"{spec.name} requires '{axis}' to be {spec.before}; found {source[axis]} in <{source}>: "
                "reshard the axis first, or use another collective"
            )
    source_reduction = partial_op(source, axes) if spec.before == "partial" else reduction
    if reduction not in (None, source_reduction):
        raise ShardingError(
            f"{spec.name} has the reduction {reduction}; expected {source_reduction}, the reduction of <{source}>"
        )


def partial_op(source: Sharding, axes: Sequence[str]) -> str:
    """Return the reduction over partial `axes`. If sums and averages are mixed, it is their common kind.

    Raises:
        ShardingError: the reductions have different kinds.
    """
    partial = [p for axis in axes if isinstance(p := source[axis], PartialPlacement)]
    reductions, kinds = sorted({p.op for p in partial}), {p.kind for p in partial}
    if len(reductions) == 1:
        return reductions[0]
    if len(kinds) == 1:
        return kinds.pop()
    raise ShardingError(
        f"the partial values over [{', '.join(axes)}] have the reductions {reductions}; expected one kind "
        "of reduction: reduce the axes of each kind separately"
    )
