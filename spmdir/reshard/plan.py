"""Plans of reshards: the cheapest sequence of steps from one sharding to another."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import attrs

from spmdir.core.arguments import Kind, accepts
from spmdir.core.axes import is_part
from spmdir.core.dtype import as_dtype
from spmdir.core.errors import ShardingError, shown
from spmdir.core.html_text import ShownAsText
from spmdir.core.mesh import MESH, Mesh, as_mesh
from spmdir.core.placement.sharding import Sharding, ShardingLike, as_sharding
from spmdir.core.placement.standard import R
from spmdir.reshard.byte_bound import lower_bound
from spmdir.reshard.collective_spec import CollectiveSpec
from spmdir.reshard.collectives import PLANNED
from spmdir.reshard.conditions import check_unrouted, refinement, splits_evenly
from spmdir.reshard.cost import step_cost
from spmdir.reshard.plan_search import PlanSearch, Reshard
from spmdir.reshard.steps import Step
from spmdir.reshard.time_bound import QuickBound
from spmdir.reshard.topology import Topology, find_topology

_COLLECTIVES = Kind(
    lambda value: isinstance(value, tuple) and all(isinstance(spec, CollectiveSpec) for spec in value),
    "a tuple of CollectiveSpec, such as Pipeline.collectives",
)


@attrs.frozen
class ReshardPlan(ShownAsText):
    """The plan of one reshard.

    Attributes:
        steps: in order; empty if the shardings are equal.
        wire_bytes: bytes that the busiest rank sends, in the ring model.
        lower_bound: bytes that the busiest rank must send or receive in any algorithm; None if no bound is known.
        seconds: modelled time.
    """

    steps: tuple[Step, ...]
    wire_bytes: float
    lower_bound: float | None
    seconds: float

    def __str__(self) -> str:
        return "; ".join(map(str, self.steps))


@accepts(mesh=MESH)
def plan_reshard(
    shape: Sequence[int],
    dtype: Any,
    src: ShardingLike,
    dst: ShardingLike,
    mesh: Mesh,
    topology: Topology | str | None = None,
    *,
    collectives: tuple[CollectiveSpec, ...] = PLANNED,
) -> ReshardPlan:
    """Return the plan of least modelled time. Ties are broken by fewest wire bytes, then by fewest steps.

    Args:
        shape: the global shape.
        dtype: the element type, by its MLIR name or as a value with an `itemsize` in bytes.
        src, dst: the sharding before and after.
        mesh: a Mesh, or a torch DeviceMesh with named dimensions.
        topology: a Topology, the name of a preset, or the path of a TOML file; `h100x8` if None. On `flat`, the plan
            has the fewest bytes.
        collectives: the collectives that the plan may use. `Pipeline.collectives` includes those of its plug-ins.

    Raises:
        ShardingError: a sharding does not fit the mesh or the shape, or leaves an axis open.

    Example:
        >>> plan = spmdir.plan_reshard((16, 1024), "f32", "tp: P", "tp: S(0)", spmdir.Mesh({"tp": 4}))
        >>> plan.wire_bytes
        49152.0
    """
    mesh = as_mesh(mesh)
    if not isinstance(shape, Sequence) or not all(isinstance(size, int) and size >= 0 for size in shape):
        raise ShardingError(f"invalid shape {shown(shape)}; expected a sequence of sizes from 0 on, such as (16, 1024)")
    if collectives is not PLANNED:
        _COLLECTIVES.check("collectives", collectives)
    itemsize = getattr(dtype, "itemsize", None) or as_dtype(dtype).itemsize
    source, target = (side if isinstance(side, Sharding) else as_sharding(side, mesh) for side in (src, dst))
    return plan_of(Reshard(tuple(shape), itemsize, source, target, mesh, find_topology(topology), collectives))


@functools.lru_cache(maxsize=65536)
def least_seconds(
    shape: tuple[int, ...],
    itemsize: int,
    source: Sharding,
    target: Sharding,
    mesh: Mesh,
    topology: Topology,
    collectives: tuple[CollectiveSpec, ...] = PLANNED,
) -> float:
    """Return a lower bound on the seconds of all plans from `source` to `target`; 0 if no bound is known.

    Raises:
        ShardingError: as for `plan_reshard`.
    """
    _check(shape, source, target, mesh)
    fine = _common_mesh(shape, source, target, mesh)
    if source == target or fine is None or topology.costs is not None:
        return 0.0
    before, after = (side if fine is mesh else side.refined(fine) for side in (source, target))
    bound = QuickBound(shape, itemsize, after, fine, topology, collectives)
    wire = lower_bound(shape, itemsize, before, after, fine)
    return bound.seconds(before, wire) if wire else bound.of(before)[0]  # `of` returns (seconds, bytes)


@functools.lru_cache(maxsize=65536)
def plan_of(reshard: Reshard) -> ReshardPlan:
    """Return the plan of least modelled time, as `plan_reshard` does. If `reshard.is_quick`, return a good plan."""
    shape, itemsize, mesh = reshard.shape, reshard.itemsize, reshard.mesh
    _check(shape, reshard.source, reshard.target, mesh)
    steps = _plan_steps(reshard)
    costs = [step_cost(step, shape, itemsize, mesh, reshard.topology) for step in steps]
    return ReshardPlan(
        steps,
        math.fsum(cost.wire_bytes for cost in costs),
        lower_bound(shape, itemsize, reshard.source, reshard.target, mesh),
        math.fsum(cost.seconds for cost in costs),
    )


def _check(shape: tuple[int, ...], source: Sharding, target: Sharding, mesh: Mesh) -> None:
    """Raise ShardingError unless both sides of a reshard fit the mesh and the shape, and have no open placement.

    Routed placements may only be reduced to R.
    """
    changed_axes = {axis for side in (source, target) for axis, _ in side.entries if source[axis] != target[axis]}
    if any(source[axis].trait != "partial" or target[axis] != R for axis in changed_axes):
        check_unrouted(source, target)
    for sharding in (source, target):
        sharding.check_shape(mesh, shape)
        if sharding.mesh != mesh.name:
            raise ShardingError(
                f"<{sharding}> is on mesh @{sharding.mesh}; expected mesh @{mesh.name}: correct the mesh of the "
                "sharding"
            )
        for axis, placement in sharding.entries:
            if placement.trait == "open":
                raise ShardingError(
                    f"a reshard cannot have the open placement {placement} on axis '{axis}'; "
                    "expected R, S(dim) or P(op)"
                )


def _plan_steps(reshard: Reshard) -> tuple[Step, ...]:
    """Plan over the common sub-axes of both sides. If there are none, replicate the split axes in between.

    For example, 12 ranks of `a` are sub-axes of 3 and 4 ranks on one side, and of 4 and 3 on the other. These have no
    common sub-axes, so the first part of the plan replicates `a`, and the second part shards it again.
    """
    source, target, mesh = reshard.source, reshard.target, reshard.mesh
    fine = _common_mesh(reshard.shape, source, target, mesh)
    if fine is mesh:
        return _search_steps(reshard)
    if fine is not None:
        refined = attrs.evolve(reshard, source=source.refined(fine), target=target.refined(fine), mesh=fine)
        return tuple(_merge_step(step, mesh) for step in _search_steps(refined))
    split_axes = {mesh.root_axis(axis) for side in (source, target) for axis, _ in side.entries if is_part(axis)}
    unsplit_entries = [(axis, p) for axis, p in source.entries if mesh.root_axis(axis) not in split_axes]
    intermediate = Sharding(unsplit_entries, source.mesh)
    return (
        *_plan_steps(attrs.evolve(reshard, target=intermediate)),
        *_plan_steps(attrs.evolve(reshard, source=intermediate)),
    )


def _search_steps(reshard: Reshard) -> tuple[Step, ...]:
    """Return the steps of the best plan that never leaves a lossy placement which both sides have.

    There may be no such plan, because the lossy placement prevents other axes from moving. Then the plan may leave the
    lossy placement and enter it again.
    """
    try:
        return PlanSearch(reshard).run()
    except ShardingError:
        if not any(p.error and reshard.target[axis] == p for axis, p in reshard.source.entries):
            raise
        return PlanSearch(reshard, converts_again=True).run()


def _common_mesh(shape: tuple[int, ...], source: Sharding, target: Sharding, mesh: Mesh) -> Mesh | None:
    """Return the mesh with the common sub-axes of both sides; None if there is none, or if sub-axes shard unevenly."""
    try:
        fine = refinement(mesh, source, target)
        is_even = fine is mesh or all(splits_evenly(sharding, fine, shape) for sharding in (source, target))
    except ShardingError:
        return None
    return fine if is_even else None


def _merge_step(step: Step, mesh: Mesh) -> Step:
    """Return a step over sub-axes as a step over the axes of `mesh`, with canonical names."""
    source, target = step.source.merged(mesh), step.target.merged(mesh)
    return attrs.evolve(step, axes=mesh.merge(step.axes), source=source, target=target)
