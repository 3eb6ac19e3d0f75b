"""Quick plans: for comparing many decisions on four axes."""

from __future__ import annotations

import attrs
import pytest

from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding, parse_sharding
from spmdir.reshard.collectives import PLANNED
from spmdir.reshard.plan import plan_of
from spmdir.reshard.plan_search import QUICK_RATIO, PlanSearch, Reshard
from spmdir.reshard.plan_tree import Planner
from spmdir.reshard.topology import TOPOLOGIES

MESH, MACHINE = Mesh({"a": 8, "b": 8, "c": 8, "d": 4}), TOPOLOGIES["h100x8"]
SHAPE = (64, 2048, 4096)


def quick(source: str, target: str) -> Reshard:
    sides = parse_sharding(source), parse_sharding(target) if target else Sharding()
    return Reshard(SHAPE, 4, *sides, MESH, MACHINE, PLANNED, is_quick=True)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("a: S(2), b: S(2), c: S(2), d: S(2)", "a: S(0), b: S(0), d: S(1)"),
        ("c: S(2), a: P(sum), b: P(sum), d: P(sum)", ""),
        ("a: S(0), c: S(0), b: S(1), d: S(1)", "d: S(0), a: S(0)"),
    ],
)
def test_a_quick_plan_looks_at_few_steps_and_takes_hardly_longer(source: str, target: str):
    reshard = quick(source, target)
    whole = attrs.evolve(reshard, is_quick=False)
    search, cheapest = PlanSearch(reshard), PlanSearch(whole)
    search.run()
    cheapest.run()
    assert search.steps_seen < 0.6 * cheapest.steps_seen
    assert plan_of(whole).seconds <= plan_of(reshard).seconds <= QUICK_RATIO * plan_of(whole).seconds


def test_a_quick_plan_moves_no_axis_that_both_sides_replicate():
    steps = plan_of(quick("a: P(sum), b: P(sum)", "b: S(0), a: S(2)")).steps
    assert {axis for step in steps for axis in step.axes} == {"a", "b"}


def test_tries_are_planned_quickly_on_more_than_three_axes_only():
    few = Planner(Mesh({"a": 8, "b": 8, "c": 8}), MACHINE, PLANNED)
    assert few.for_tries() == few
    assert Planner(MESH, MACHINE, PLANNED).for_tries().is_quick
