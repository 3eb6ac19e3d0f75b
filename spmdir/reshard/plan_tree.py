"""Plans of several reshards of one value, which share steps."""

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
"""How many orders of the reshards of one value to try; all of them up to four reshards."""

PRECISE_AXES = 3
"""Up to how many mesh axes tries are compared by the cheapest plans; on more, these take long to find."""

ROUNDING = 1e-9
"""By what fraction a lower bound may be above what it bounds, for rounding errors."""


@attrs.frozen(cache_hash=True)
class Planner:
    """What reshards are planned for, and with which collectives.

    Attributes:
        is_quick: as of `Reshard`.
    """

    mesh: Mesh
    topology: Topology
    collectives: tuple[CollectiveSpec, ...]
    is_quick: bool = False

    def for_tries(self) -> Planner:
        """Return a planner of what is compared many times: a quick one on a mesh of many axes."""
        return attrs.evolve(self, is_quick=len(self.mesh.axes) > PRECISE_AXES)

    def plan(self, meta: TensorMeta, source: Sharding, target: Sharding) -> ReshardPlan:
        """Return the cheapest plan from `source` to `target`, or a good one that is quick to find.

        Raises:
            SpmdirError: there is none.
        """
        machine = self.mesh, self.topology, self.collectives
        return plan_of(Reshard(meta.shape, meta.dtype.itemsize, source, target, *machine, self.is_quick))

    def least_seconds(self, meta: TensorMeta, source: Sharding, target: Sharding) -> float:
        """Return what no plan from `source` to `target` takes less than, which is quicker to find than a plan.

        Raises:
            ShardingError: a sharding does not fit the mesh or the shape.
        """
        itemsize, machine = meta.dtype.itemsize, (self.mesh, self.topology, self.collectives)
        return least_seconds(meta.shape, itemsize, source, target, *machine)


@attrs.frozen
class PlanTree:
    """How one tensor goes from one sharding to several.

    Attributes:
        steps: sharding of the value → the step that gives it, from a sharding before; the value's own is not in.
        seconds: modelled time of all steps.
        wire_bytes: bytes that the busiest rank sends.
    """

    steps: Mapping[Sharding, Step]
    seconds: float
    wire_bytes: float


@lru_cache(maxsize=65536)
def plan_tree(meta: TensorMeta, source: Sharding, targets: tuple[Sharding, ...], planner: Planner) -> PlanTree:
    """Return steps to all `targets`: of least modelled time, then fewest wire bytes, then fewest steps that send.

    The targets are planned one after the other, each from whichever sharding reached so far is cheapest. Several
    orders are tried, since P → R serves P → S on the way and not the other way round.

    Raises:
        SpmdirError: a target cannot be reached.
    """
    best: tuple[tuple[float, float, int], PlanTree] | None = None
    for order in itertools.islice(itertools.permutations(targets), ORDERS):
        steps: dict[Sharding, Step] = {}
        wire, sends, seconds = 0.0, 0, 0.0
        for target in order:
            plan = planner.plan(meta, source, target)
            for start in (reached for reached in steps if not reached.has_lossy):
                if planner.least_seconds(meta, start, target) <= plan.seconds * (1 + ROUNDING):
                    plan = min(plan, planner.plan(meta, start, target), key=_rank)
            steps.update((step.target, step) for step in plan.steps if step.target not in steps)
            wire, seconds = wire + plan.wire_bytes, seconds + plan.seconds
            sends += sum(sends_anything(step, meta.shape, planner.mesh) for step in plan.steps)
        if best is None or (seconds, wire, sends) < best[0]:
            best = (seconds, wire, sends), PlanTree(steps, seconds, wire)
    assert best is not None  # without targets there is one order, of none
    return best[1]


def _rank(plan: ReshardPlan) -> tuple[float, float, int]:
    return plan.seconds, plan.wire_bytes, len(plan.steps)
