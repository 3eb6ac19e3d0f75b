"""The quick bound of a reshard's time: never above what a plan takes, and near enough to find plans on four axes."""

from __future__ import annotations

import itertools

import attrs
import pytest

from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding, parse_sharding
from spmdir.reshard import collectives
from spmdir.reshard.collectives import PLANNED
from spmdir.reshard.plan import least_seconds, plan_reshard
from spmdir.reshard.plan_search import PlanSearch, Reshard
from spmdir.reshard.time_bound import QuickBound
from spmdir.reshard.topology import TOPOLOGIES
from spmdir.reshard.traffic import Traffic, anywhere

FOUR_AXES = Mesh({"a": 8, "b": 8, "c": 8, "d": 4})


@pytest.mark.parametrize("topology", ["flat", "h100x8"])
@pytest.mark.parametrize("intra_node", [None, ("b",)])
@pytest.mark.parametrize("shape", [(64, 64), (6, 10), (3, 0)])
def test_no_plan_takes_less(shape: tuple[int, ...], intra_node: tuple[str, ...] | None, topology: str):
    mesh = Mesh({"a": 2, "b": 4}, intra_node=intra_node)
    placements = ("R", "S(0)", "S(1)", "P(sum)")
    sides = [parse_sharding(f"a: {a}, b: {b}") for a, b in itertools.product(placements, repeat=2)]
    sides += [parse_sharding("b: S(0), a: S(0)"), parse_sharding("b: S(1), a: S(1)")]
    for source, target in itertools.permutations(sides, 2):
        seconds, wire = QuickBound(shape, 4, target, mesh, TOPOLOGIES[topology]).of(source)
        plan = plan_reshard(shape, "f32", source, target, mesh, topology)
        assert seconds <= plan.seconds * (1 + 1e-9), f"<{source}> -> <{target}>: {plan}"
        assert wire <= plan.wire_bytes, f"<{source}> -> <{target}>: {plan}"
        least = least_seconds(shape, 4, source, target, mesh, TOPOLOGIES[topology])
        assert seconds * (1 - 1e-9) <= least <= plan.seconds * (1 + 1e-9), f"<{source}> -> <{target}>: {plan}"


def test_no_plan_over_sub_axes_takes_less():
    mesh, sides = Mesh({"a": 8, "b": 4}), ("a(1)2: S(0)", "a(2)4: S(0), b: S(1)", "a(1)4: S(1)", "b: S(0), a(4)2: P")
    for before, after in itertools.permutations(sides, 2):
        source, target = parse_sharding(before), parse_sharding(after)
        plan = plan_reshard((64, 64), "f32", source, target, mesh, "h100x8")
        least = least_seconds((64, 64), 4, source, target, mesh, TOPOLOGIES["h100x8"])
        assert 0 < least <= plan.seconds * (1 + 1e-9), f"<{source}> -> <{target}>: {plan}"


def test_latency_is_of_the_cheapest_groups_that_reach_all_ranks():
    machine = TOPOLOGIES["h100x8"]
    least = machine.protocols[-1]
    source, target = parse_sharding("a: S(0), d: S(1)"), Sharding()
    seconds, wire = QuickBound((8, 8), 4, target, FOUR_AXES, machine).of(source)
    assert wire == 4 * (64 - 2)
    one_group = least.base_latency + 31 * least.intra_latency
    two_groups = 2 * least.base_latency + (7 + 3) * least.intra_latency
    assert two_groups < one_group
    assert seconds == pytest.approx(two_groups + wire / least.intra_limit)


def test_one_collective_sends_all_bytes_and_others_reach_the_ranks():
    machine, wire = TOPOLOGIES["h100x8"], 7 * 2**27
    source, target, least = parse_sharding("a: S(0)"), Sharding(), machine.protocols[-1]
    bound = QuickBound((2**28,), 4, target, Mesh({"a": 8}), machine)
    to_one_peer = machine.base_latency + machine.intra_latency + wire / machine.intra_bandwidth
    assert bound.of(source) == (pytest.approx(to_one_peer + least.base_latency + 7 * least.intra_latency), wire)


def test_a_gather_over_one_of_four_axes_is_found_at_once():
    source, target = parse_sharding("a: S(0)"), Sharding()
    search = PlanSearch(Reshard((8, 128, 256), 4, source, target, FOUR_AXES, TOPOLOGIES["h100x8"], PLANNED))
    assert [step.kind for step in search.run()] == ["all_gather"]
    assert search.steps_seen < 300


def test_gathers_along_three_dimensions_go_one_axis_at_a_time():
    plan = plan_reshard((8, 128, 256), "f32", "a: S(0), b: S(2), c: S(1), d: S(1)", "", FOUR_AXES, "h100x8")
    assert [step.axes for step in plan.steps] == [("d",), ("c",), ("b",), ("a",)]


def test_collectives_of_plug_ins_may_take_less_than_any_of_ours(monkeypatch: pytest.MonkeyPatch):
    ours = next(spec for spec in PLANNED if spec.name == "all_reduce")
    traffic = Traffic(wire=lambda sizes: sizes.source / 8, crossing=anywhere)
    in_network = attrs.evolve(ours, name="switch_reduce", traffic=traffic)
    monkeypatch.setitem(collectives._SPECS, in_network.name, (in_network, "mine"))  # pyright: ignore[reportPrivateUsage]
    mesh, shape = Mesh({"tp": 8}), (4096, 64)
    source, target, machine = parse_sharding("tp: P"), Sharding(), TOPOLOGIES["h100x8"]
    known = (*PLANNED, in_network)
    plan = plan_reshard(shape, "f32", source, target, mesh, machine, collectives=known)
    assert [step.kind for step in plan.steps] == ["switch_reduce"]
    assert least_seconds(shape, 4, source, target, mesh, machine) > plan.seconds
    assert least_seconds(shape, 4, source, target, mesh, machine, known) <= plan.seconds
