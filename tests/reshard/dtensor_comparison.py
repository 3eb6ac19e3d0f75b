"""Our plans and DTensor's for the same reshards, priced by one cost model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import attrs

from spmdir.core.errors import ShardingError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.reshard.cost import step_cost
from spmdir.reshard.plan import ReshardPlan, plan_reshard
from spmdir.reshard.steps import Step, make_step
from spmdir.reshard.topology import Topology
from spmdir.tools.dtensor_plans import dtensor_planner

Pair = tuple[Sharding, Sharding]

ITEMSIZE = 4
ROUNDING = 1e-11
"""Seconds; our search adds times as whole ticks of 1e-12."""


@attrs.frozen
class Compared:
    """One reshard on one machine.

    Attributes:
        ours: our plan.
        theirs: name of a planner of DTensor's → modelled seconds of its plan; planners that have no plan are left out.
    """

    shape: tuple[int, ...]
    source: Sharding
    target: Sharding
    mesh: Mesh
    topology: Topology
    ours: ReshardPlan
    theirs: dict[str, float]

    @property
    def slower(self) -> bool:
        """Whether a plan of DTensor's takes less time than ours."""
        return any(self.ours.seconds > seconds * (1 + 1e-9) + ROUNDING for seconds in self.theirs.values())

    def __str__(self) -> str:
        theirs = ", ".join(f"{name} {seconds:.4g} s" for name, seconds in self.theirs.items())
        inside = "" if self.mesh.intra_node is None else f" intra [{', '.join(self.mesh.intra_node)}]"
        return (
            f"<{self.source}> -> <{self.target}> of {self.shape} on {self.mesh}{inside}, {self.topology.name}: "
            f"{self.ours} {self.ours.seconds:.4g} s; {theirs}"
        )


def compare(
    sizes: Mapping[str, int], pairs: Sequence[Pair], shapes: Sequence[tuple[int, ...]], topologies: Sequence[Topology]
) -> Iterator[Compared]:
    """Every pair of shardings of f32 tensors of every shape, on every topology and with every part of the mesh's minor
    axes inside a node."""
    whole = Mesh(sizes)
    with dtensor_planner(whole) as plans:
        for shape in shapes:
            for source, target in pairs:
                theirs = {name: s for name, s in plans(shape, source, target).items() if not isinstance(s, str)}
                ways = {name: (steps, flattened(steps, whole, shape)) for name, steps in theirs.items()}
                for topology in topologies:
                    for mesh in placed(whole, topology):
                        yield Compared(
                            shape, source, target, mesh, topology,
                            plan_reshard(shape, "f32", source, target, mesh, topology),
                            {n: min(_seconds(w, shape, mesh, topology) for w in way) for n, way in ways.items()},
                        )  # fmt: skip


def placed(mesh: Mesh, topology: Topology) -> Iterator[Mesh]:
    """The mesh in one node and, if that makes a difference, with some or all of its axes between nodes."""
    yield mesh
    within = topology.intra_bandwidth, topology.intra_latency
    if within != (topology.inter_bandwidth, topology.inter_latency):
        for start in range(1, len(mesh.axes) + 1):
            yield Mesh(mesh.axes, mesh.name, mesh.axis_names[start:])


def flattened(steps: Sequence[Step], mesh: Mesh, shape: tuple[int, ...]) -> list[Step]:
    """The steps, neighbours of one kind merged: what DTensor runs if the user has made the flattened meshes."""
    merged: list[Step] = []
    for step in steps:
        last = merged[-1] if merged else None
        if (
            last
            and (last.kind, last.dim, last.reduction) == (step.kind, step.dim, step.reduction)
            and step.to_dim is None
        ):
            inner = step.kind == "all_gather"
            axes = (*step.axes, *last.axes) if inner else (*last.axes, *step.axes)
            try:
                merged[-1] = make_step(
                    step.kind, last.source, mesh, shape, axes=axes, dim=step.dim, reduction=step.reduction
                )
                continue
            except ShardingError:
                pass
        merged.append(step)
    return merged


def _seconds(steps: Sequence[Step], shape: tuple[int, ...], mesh: Mesh, topology: Topology) -> float:
    return math.fsum(step_cost(step, shape, ITEMSIZE, mesh, topology).seconds for step in steps)
