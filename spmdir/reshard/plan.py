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
from spmdir.reshard.bound import lower_bound
from spmdir.reshard.collective_spec import CollectiveSpec
from spmdir.reshard.collectives import PLANNED
from spmdir.reshard.conditions import refinement, splits_evenly
from spmdir.reshard.cost import step_cost
from spmdir.reshard.plan_search import PlanSearch, Reshard
from spmdir.reshard.quick_bound import QuickBound
from spmdir.reshard.steps import Step
from spmdir.reshard.topology import Topology, find_topology

_COLLECTIVES = Kind(
    lambda value: isinstance(value, tuple) and all(isinstance(spec, CollectiveSpec) for spec in value),
    "a tuple of CollectiveSpecs, as of Pipeline.collectives",
)


@attrs.frozen
class ReshardPlan(ShownAsText):
    """How one tensor goes from one sharding to another.

    Attributes:
        steps: in order; empty when the shardings are the same.
        wire_bytes: bytes that the busiest rank sends, ring model.
        lower_bound: bytes that the busiest rank must send or receive whatever the algorithm; None if no bound is known.
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
    """Return the plan of least modelled time; among equals that of fewest wire bytes, then of fewest steps.

    Args:
        shape: the global shape.
        dtype: the element type, by its MLIR name or as a value with an `itemsize` in bytes.
        src, dst: the sharding before and after.
        mesh: a Mesh, or a torch DeviceMesh with named dimensions.
        topology: what the mesh runs on, as a value, the name of a preset or a TOML file; `h100x8` if None. On
            `flat` the plan of fewest bytes is found.
        collectives: those that the plan may use; `Pipeline.collectives` has those of its plug-ins too.

    Raises:
        ShardingError: a sharding does not fit the mesh or the shape, or leaves an axis open.

    Example:
        >>> plan = spmdir.plan_reshard((16, 1024), "f32", "tp: P", "tp: S(0)", spmdir.Mesh({"tp": 4}))
        >>> plan.wire_bytes
        49152.0
    """
    mesh = as_mesh(mesh)
    if not isinstance(shape, Sequence) or not all(isinstance(size, int) and size >= 0 for size in shape):
        raise ShardingError(f"shape is {shown(shape)}; expected sizes from 0 on, as in (16, 1024)")
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
    """Return what no plan from `source` to `target` takes less than; 0 where nothing is known.

    Raises:
        ShardingError: as `plan_reshard` does.
    """
    _check(shape, source, target, mesh)
    fine = _common_mesh(shape, source, target, mesh)
    if source == target or fine is None or topology.costs is not None:
        return 0.0
    before, after = (side if fine is mesh else side.refined(fine) for side in (source, target))
    bound = QuickBound(shape, itemsize, after, fine, topology, collectives)
    wire = lower_bound(shape, itemsize, before, after, fine)
    return bound.seconds(before, wire) if wire else bound.of(before)[0]


@functools.lru_cache(maxsize=65536)
def plan_of(reshard: Reshard) -> ReshardPlan:
    """Return the plan of least modelled time, as `plan_reshard` does; one that is quick to find where that is asked."""
    shape, itemsize, mesh = reshard.shape, reshard.itemsize, reshard.mesh
    _check(shape, reshard.source, reshard.target, mesh)
    steps = _steps(reshard)
    costs = [step_cost(step, shape, itemsize, mesh, reshard.topology) for step in steps]
    return ReshardPlan(
        steps,
        math.fsum(cost.wire_bytes for cost in costs),
        lower_bound(shape, itemsize, reshard.source, reshard.target, mesh),
        math.fsum(cost.seconds for cost in costs),
    )


def _check(shape: tuple[int, ...], source: Sharding, target: Sharding, mesh: Mesh) -> None:
    for sharding in (source, target):
        sharding.check_shape(mesh, shape)
        if sharding.mesh != mesh.name:
            raise ShardingError(f"<{sharding}> is on mesh @{sharding.mesh}; expected mesh @{mesh.name}")
        for axis, placement in sharding.entries:
            if placement.trait == "open":
                raise ShardingError(f"a reshard cannot have {placement} on axis '{axis}'; expected R, S(dim) or P(op)")


def _steps(reshard: Reshard) -> tuple[Step, ...]:
    """Return the steps, found over the common sub-axes of both sides; without these, by replicating the split axes."""
    source, target, mesh = reshard.source, reshard.target, reshard.mesh
    fine = _common_mesh(reshard.shape, source, target, mesh)
    if fine is mesh:
        return _searched(reshard)
    if fine is not None:
        refined = attrs.evolve(reshard, source=source.refined(fine), target=target.refined(fine), mesh=fine)
        return tuple(_merged(step, mesh) for step in _searched(refined))
    split = {mesh.root_axis(axis) for side in (source, target) for axis, _ in side.entries if is_part(axis)}
    kept = [(axis, p) for axis, p in source.entries if mesh.root_axis(axis) not in split]
    between = Sharding(kept, source.mesh)
    return (*_steps(attrs.evolve(reshard, target=between)), *_steps(attrs.evolve(reshard, source=between)))


def _searched(reshard: Reshard) -> tuple[Step, ...]:
    """Return the steps of the best plan that keeps values in the lossy placements which both sides have.

    If there is none, as where such a placement does not let other axes move, these values are converted again.
    """
    try:
        return PlanSearch(reshard).run()
    except ShardingError:
        if not any(p.error and reshard.target[axis] == p for axis, p in reshard.source.entries):
            raise
        return PlanSearch(reshard, converts_again=True).run()


def _common_mesh(shape: tuple[int, ...], source: Sharding, target: Sharding, mesh: Mesh) -> Mesh | None:
    """Return the mesh of the common sub-axes of both sides; None if there is none, or if it shards differently."""
    try:
        fine = refinement(mesh, source, target)
        even = fine is mesh or all(splits_evenly(sharding, fine, shape) for sharding in (source, target))
    except ShardingError:
        return None
    return fine if even else None


def _merged(step: Step, mesh: Mesh) -> Step:
    """Return a step over sub-axes as one over the axes of `mesh`, with canonical names."""
    source, target = step.source.merged(mesh), step.target.merged(mesh)
    return attrs.evolve(step, axes=mesh.merge(step.axes), source=source, target=target)
