"""The cost model against closed formulas, and the price that propagation uses."""

from __future__ import annotations

import itertools
import math
import random

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Placement
from spmdir.core.placement.sharding import Sharding, parse_sharding
from spmdir.core.placement.standard import OPEN, Partial, R, Shard
from spmdir.reshard.axis_price import axis_price
from spmdir.reshard.collectives import collective
from spmdir.reshard.cost import least_cost, step_cost, step_terms
from spmdir.reshard.multi_axis_steps import find_obstacle
from spmdir.reshard.plan import plan_reshard
from spmdir.reshard.steps import Step, make_step
from spmdir.reshard.topology import A100X8, CPU_GLOO, FLAT, H100X8, TOPOLOGIES
from tests.lowering.collective_programs import shardings

GIB = 2**30
ONE_NODE = Mesh({"g": 8}, intra_node=("g",))
TWO_NODES = Mesh({"n": 2, "g": 8}, intra_node=("g",))
ACROSS = Mesh({"n": 8}, intra_node=())


def cost_of(kind: str, source: str, mesh: Mesh, shape: tuple[int, ...], topology=H100X8, **given):
    return step_cost(make_step(kind, parse_sharding(source), mesh, shape, **given), shape, 1, mesh, topology)


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_wire_bytes_follow_the_ring_formulas(count: int) -> None:
    mesh, shape, total = Mesh({"a": count}), (24, 24), 576
    part = (count - 1) / count
    assert cost_of("all_reduce", "a: P", mesh, shape, axes=("a",)).wire_bytes == pytest.approx(2 * part * total)
    assert cost_of("all_gather", "a: S(0)", mesh, shape, axes=("a",), dim=0).wire_bytes == pytest.approx(part * total)
    assert cost_of("reduce_scatter", "a: P", mesh, shape, axes=("a",), dim=0).wire_bytes == pytest.approx(part * total)
    exchange = cost_of("all_to_all", "a: S(0)", mesh, shape, axes=("a",), dim=0, to_dim=1)
    assert exchange.wire_bytes == pytest.approx(part * total / count)
    assert cost_of("slice", "", mesh, shape, axes=("a",), dim=0).wire_bytes == 0
    assert cost_of("partition", "", mesh, shape, axes=("a",), reduction="sum").wire_bytes == 0


def test_a_permute_sends_all_that_a_rank_holds() -> None:
    mesh, target = Mesh({"a": 2, "b": 4}), parse_sharding("b: S(0), a: S(0)")
    assert cost_of("permute", "a: S(0), b: S(0)", mesh, (64,), target=target).wire_bytes == 8


@pytest.mark.parametrize("count", [2, 3, 8])
def test_a_two_round_exchange_of_a_sum_scatters_and_gathers_it_to_each_peer(count: int) -> None:
    mesh, shape, target = Mesh({"a": count}), (24, 24), Sharding([])
    once, twice = (
        cost_of(kind, "a: P", mesh, shape, CPU_GLOO, target=target) for kind in ("exchange", "two_round_exchange")
    )
    assert once.wire_bytes == pytest.approx((count - 1) * 576)
    assert twice.wire_bytes == pytest.approx(2 * (count - 1) / count * 576)
    latency = CPU_GLOO.base_latency + (count - 1) * CPU_GLOO.intra_latency
    assert once.seconds - latency < latency < twice.seconds - latency


@pytest.mark.parametrize("count", [2, 4, 8])
@pytest.mark.parametrize("size", [1, 16, 1024])
def test_a_sum_is_an_all_reduce_for_an_exchange_packs_and_adds_in_kernels_of_its_own(count: int, size: int) -> None:
    mesh, shape = Mesh({"a": count}), (size, size)
    reduced = cost_of("all_reduce", "a: P", mesh, shape, axes=("a",))
    for kind in ("exchange", "two_round_exchange"):
        assert cost_of(kind, "a: P", mesh, shape, target=Sharding([])).seconds > reduced.seconds


def test_uneven_shards_count_as_the_largest() -> None:
    mesh = Mesh({"a": 4})
    assert cost_of("all_gather", "a: S(0)", mesh, (5,), axes=("a",), dim=0).wire_bytes == 3 * 2
    assert cost_of("reduce_scatter", "a: P", mesh, (5,), axes=("a",), dim=0).wire_bytes == 3 * 2
    exchange = cost_of("all_to_all", "a: S(0)", mesh, (5, 9), axes=("a",), dim=0, to_dim=1)
    assert exchange.wire_bytes == 3 * 2 * 3
    assert cost_of("all_to_all", "a: S(0)", Mesh({"a": 8}), (9, 9), axes=("a",), dim=0, to_dim=1).wire_bytes == 18


@pytest.mark.parametrize(
    ("kind", "mesh", "axes", "latency", "share", "bandwidth"),
    [
        ("all_gather", ONE_NODE, ("g",), 8.4 + 7 * 3.4, 7 / 8, 360),
        ("all_reduce", ONE_NODE, ("g",), 8.4 + 14 * 3.4, 14 / 8, 360),
        ("all_to_all", ONE_NODE, ("g",), 8.4 + 7 * 3.4, 7 / 8, 360),
        ("all_gather", TWO_NODES, ("n", "g"), 8.4 + 14 * 3.4 + 14, 15 / 16, 360),
        ("all_to_all", TWO_NODES, ("n", "g"), 8.4 + 14 * 3.4 + 14, 8 / 16, 48),
        ("reduce_scatter", ACROSS, ("n",), 8.4 + 7 * 14, 7 / 8, 48),
    ],
)
def test_large_messages_have_the_latency_of_their_hops_and_the_bandwidth_of_the_slower_links(
    kind, mesh, axes, latency, share, bandwidth
) -> None:
    # `share` is of B = 1 GiB, which counts as nccl-tests count: the whole buffer; for all_to_all what one rank holds.
    total = GIB * mesh.group_size(axes) if kind == "all_to_all" else GIB
    start = {"all_reduce": "P", "reduce_scatter": "P"}.get(kind, "S(0)")
    details = {"all_reduce": {}, "all_to_all": {"dim": 0, "to_dim": 1}}.get(kind, {"dim": 0})
    source = ", ".join(f"{axis}: {start}" for axis in axes)
    shape = (1024, total // 1024)
    step = make_step(kind, parse_sharding(source), mesh, shape, axes=axes, **details)
    found = step_terms(step, shape, 1, mesh)
    assert found.latency == pytest.approx(latency * 1e-6)
    assert max(found.intra, found.inter) == pytest.approx(share * GIB / (bandwidth * 1e9))


def test_an_all_reduce_over_many_nodes_takes_a_tree_if_it_is_small() -> None:
    mesh, shape = Mesh({"n": 64}, intra_node=()), (2**18,)
    step = make_step("all_reduce", parse_sharding("n: P"), mesh, shape, axes=("n",))
    by_tree = step_terms(step, shape, 4, mesh)
    ring = step_terms(step, shape, 4, mesh, attrs.evolve(H100X8, tree_efficiency=0.0))
    assert by_tree.latency == pytest.approx(14e-6 + 12 * 8.5e-6)  # up and down six levels by LL128
    assert by_tree.inter == pytest.approx(2 * 2**20 / (0.78 * 0.92 * 48e9))
    assert ring.latency == pytest.approx(6.6e-6 + 126 * 5e-6) and by_tree.wire_bytes == ring.wire_bytes


def test_gathering_a_dimension_other_than_the_first_costs_a_local_copy() -> None:
    first = cost_of("all_gather", "g: S(0)", ONE_NODE, (1024, 1024), axes=("g",), dim=0)
    second = cost_of("all_gather", "g: S(1)", ONE_NODE, (1024, 1024), axes=("g",), dim=1)
    assert first.wire_bytes == second.wire_bytes
    assert second.seconds - first.seconds == pytest.approx(2 * 2**17 / H100X8.memory_bandwidth + H100X8.launch_latency)


def test_a_group_of_one_rank_costs_nothing() -> None:
    cost = cost_of("all_gather", "a: S(1)", Mesh({"a": 1}), (4, 4), axes=("a",), dim=1)
    assert (cost.wire_bytes, cost.seconds) == (0, 0)


@pytest.mark.parametrize("target", ["", "a: S(0)"])
def test_moving_an_empty_tensor_costs_nothing_however_many_ranks_there_are(target: str) -> None:
    for source in ("a: S(1)", "a: P(sum)"):
        plan = plan_reshard((0, 2**20), "f32", source, target, Mesh({"a": 2**20}))
        assert (plan.wire_bytes, plan.seconds) == (0.0, 0.0)


def test_every_topology_is_found_by_its_name_and_slower_machines_are_slower() -> None:
    times = [
        cost_of("all_gather", "n: S(0), g: S(0)", TWO_NODES, (GIB,), TOPOLOGIES[name], axes=("n", "g"), dim=0).seconds
        for name in ("h100x8", "a100x8", "cpu-gloo")
    ]
    assert times == sorted(times)
    assert list(TOPOLOGIES.values()) == [FLAT, H100X8, A100X8, CPU_GLOO]


PLACEMENTS = [R, Shard(0), Shard(1), Partial("sum"), Partial("avg")]


@given(st.sampled_from(PLACEMENTS), st.sampled_from(PLACEMENTS), st.integers(1, 8), st.integers(1, 4))
def test_the_price_of_one_axis_is_what_the_plan_sends(source, target, count, scale) -> None:
    shape = (count * scale, count * 3)
    plan = plan_reshard(shape, "f32", Sharding([("a", source)]), Sharding([("a", target)]), Mesh({"a": count}), FLAT)
    price = axis_price(source, target, 4 * math.prod(shape), count, topology=FLAT)
    assert price.wire_bytes == pytest.approx(plan.wire_bytes)
    assert price.seconds == pytest.approx(plan.seconds)


def test_the_price_formulas_are_the_known_ones() -> None:
    def price(source: Placement, target: Placement) -> float:
        return axis_price(source, target, 1000.0, 4).wire_bytes

    assert price(R, Shard(0)) == price(R, Partial()) == price(R, R) == 0
    assert price(Shard(1), Partial()) == 0
    assert price(Shard(1), R) == price(Shard(1), Partial("avg")) == pytest.approx(750)
    assert price(Shard(1), Shard(0)) == pytest.approx(1000 * 3 / 16)
    assert price(Shard(1), Shard(1)) == price(Partial(), Partial()) == 0
    assert price(Partial(), R) == pytest.approx(1500)
    assert price(Partial(), Partial("avg")) == price(Partial("avg"), Partial()) == 0
    assert price(Partial(), Shard(0)) == pytest.approx(750)


@pytest.mark.parametrize(
    ("source", "target"),
    [(OPEN, R), (R, OPEN), (Shard(0), OPEN), (Partial("max"), OPEN)],
)
def test_an_illegal_move_has_an_infinite_price(source, target) -> None:
    assert axis_price(source, target, 100.0, 2).seconds == math.inf


@pytest.mark.parametrize("kind", ["exchange", "two_round_exchange"])
def test_an_exchange_never_costs_less_than_the_search_takes_it_to(kind: str) -> None:
    mesh = Mesh({"a": 2, "b": 3, "c": 2}, intra_node=("b", "c"))
    pairs = list(itertools.permutations(shardings(mesh, 2), 2))
    find_axes, tried = collective(kind).axes, 0
    assert find_axes is not None
    for source, target in random.Random(0).sample(pairs, 150):
        axes = find_axes(source, target, mesh)
        if not axes or find_obstacle(collective(kind), source, target):
            continue
        step = Step(kind, axes, source, target)
        for shape, topology in itertools.product(((12, 12), (7, 5), (2, 1)), (FLAT, H100X8, CPU_GLOO)):
            least, found = (price(step, shape, 4, mesh, topology) for price in (least_cost, step_cost))
            assert least.wire_bytes <= found.wire_bytes, (str(step), source, target, shape)
            assert least.seconds <= found.seconds, (str(step), source, target, shape)
            tried += found.wire_bytes > 0
    assert tried > 1000
