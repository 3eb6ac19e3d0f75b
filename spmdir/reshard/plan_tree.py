"""Plans of several reshards of one value, which share steps.

For example, a 1024 × 1024 f32 value is `P` on `tp` of 8 ranks, on the topology `flat`. Its users need `R` and `S(0)`:

    separate plans   all_reduce 19.848 µs, reduce_scatter 9.929 µs           29.777 µs
    S(0) first       reduce_scatter 9.929 µs, all_gather of it 9.929 µs      19.858 µs
    R first          all_reduce 19.848 µs, slice of it 0 µs                  19.848 µs: the plan tree

Finding the cheapest tree is a Steiner tree problem. The targets are added one by one, each by the cheapest path from
the tree so far: the heuristic of Takahashi and Matsuyama, "An approximate solution for the Steiner problem in graphs"
(1980).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import lru_cache

import attrs

from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.tensor import TensorMeta
from spmdir.reshard.collective_spec import CollectiveSpec
from spmdir.reshard.cost import sends_anything
from spmdir.reshard.plan import ReshardPlan, least_seconds, plan_of
from spmdir.reshard.plan_search import Reshard
from spmdir.reshard.steps import Step
from spmdir.reshard.topology import Topology

ORDERS = 24
"""The number of orders of targets to try: all orders of up to four targets."""

PRECISE_AXES = 3
"""The largest number of mesh axes for which trial plans are the cheapest ones. With more axes, quick plans are used."""

ROUNDING = 1e-9
"""The relative rounding error of a lower bound."""


@attrs.frozen(cache_hash=True)
class Planner:
    """The machine and the collectives that reshards are planned for.

    Attributes:
        is_quick: as in `Reshard`.
    """

    mesh: Mesh
    topology: Topology
    collectives: tuple[CollectiveSpec, ...]
    is_quick: bool = False

    def for_tries(self) -> Planner:
        """Return a planner for trial plans. It is quick if the mesh has more than PRECISE_AXES axes."""
        return attrs.evolve(self, is_quick=len(self.mesh.axes) > PRECISE_AXES)

    def plan(self, meta: TensorMeta, source: Sharding, target: Sharding) -> ReshardPlan:
        """Return the cheapest plan from `source` to `target`, or a good plan if the planner is quick.

        Raises:
            SpmdirError: there is no plan.
        """
        machine = self.mesh, self.topology, self.collectives
        return plan_of(Reshard(meta.shape, meta.dtype.itemsize, source, target, *machine, self.is_quick))

    def least_seconds(self, meta: TensorMeta, source: Sharding, target: Sharding) -> float:
        """Return a lower bound on the seconds of all plans from `source` to `target`, without a search.

        Raises:
            ShardingError: a sharding does not fit the mesh or the shape.
        """
        itemsize, machine = meta.dtype.itemsize, (self.mesh, self.topology, self.collectives)
        return least_seconds(meta.shape, itemsize, source, target, *machine)


@attrs.frozen
class PlanTree:
    """The steps of reshards from one sharding to several.

    Attributes:
        steps: sharding → the step that produces it, except for the sharding of the value itself. Insertion order is
            execution order.
        seconds: modelled time of all steps.
        wire_bytes: bytes that the busiest rank sends.
    """

    steps: Mapping[Sharding, Step]
    seconds: float
    wire_bytes: float


@lru_cache(maxsize=65536)
def plan_tree(meta: TensorMeta, source: Sharding, targets: tuple[Sharding, ...], planner: Planner) -> PlanTree:
    """Return the steps to all `targets` with the least modelled time, then fewest wire bytes, then fewest collectives.

    The targets are planned one after the other, each from the cheapest sharding reached so far. The order matters, so
    up to ORDERS orders are tried.

    Raises:
        SpmdirError: a target cannot be reached.
    """
    best: tuple[tuple[float, float, int], PlanTree] | None = None  # (seconds, wire bytes, collectives), and the tree
    for order in itertools.islice(itertools.permutations(targets), ORDERS):
        steps: dict[Sharding, Step] = {}
        wire, collective_count, seconds = 0.0, 0, 0.0
        for target in order:
            plan = planner.plan(meta, source, target)
            for start in steps:
                if start.has_lossy:
                    continue  # the value may be rounded there
                if planner.least_seconds(meta, start, target) <= plan.seconds * (1 + ROUNDING):
                    plan = min(plan, planner.plan(meta, start, target), key=_rank)
            steps.update({step.target: step for step in plan.steps if step.target not in steps})
            wire, seconds = wire + plan.wire_bytes, seconds + plan.seconds
            collective_count += sum(sends_anything(step, meta.shape, planner.mesh) for step in plan.steps)
        if best is None or (seconds, wire, collective_count) < best[0]:
            best = (seconds, wire, collective_count), PlanTree(steps, seconds, wire)
    assert best is not None  # without targets, the empty order was tried
    return best[1]


def _rank(plan: ReshardPlan) -> tuple[float, float, int]:
    """Return the key by which the cheaper of two plans is chosen."""
    return plan.seconds, plan.wire_bytes, len(plan.steps)
