"""What the search on a block of axes says that decisions cost is what they cost."""

from __future__ import annotations

import itertools

import attrs
import numpy as np
import pytest

from spmdir.analysis.propagation.build_problem import build_problem
from spmdir.core.mesh import Mesh
from spmdir.dialects import ir
from spmdir.reshard.topology import FLAT, H100X8
from spmdir.search.block_search import BlockSearch
from spmdir.search.joint_cost import Placed, _is_avoided, joint_cost, node_seconds
from spmdir.search.problem import Problem
from spmdir.search.reshard_prices import Prices
from tests.search.merged import merged

PERCEPTRON = """
spmd.mesh @mesh <a = 2, b = 4>
func.func @f(%x: tensor<64x512xf32> {spmd.sharding = #spmd.sharding<@mesh, a: S(0)>}, %w: tensor<512x2048xf32>,
             %v: tensor<2048x512xf32>) -> tensor<64x512xf32> {
  %0 = aten.mm(%x, %w) : tensor<64x2048xf32>
  %1 = aten.gelu(%0) {approximate = "none"} : tensor<64x2048xf32>
  %2 = aten._softmax(%1) {dim = 1, half_to_float = false} : tensor<64x2048xf32>
  %3 = aten.mm(%2, %v) : tensor<64x512xf32>
  %4 = aten.add.Tensor(%x, %3) : tensor<64x512xf32>
  return %4 : tensor<64x512xf32>
}
"""

TOPOLOGIES = pytest.mark.parametrize("topology", [FLAT, H100X8], ids=lambda topology: topology.name)


def search_of(topology) -> tuple[Problem, BlockSearch]:
    module = ir.parse(PERCEPTRON)
    problem = build_problem(ir.main_function(module), Mesh({"a": 2, "b": 4}), ir.context().rules, topology)[1]
    return problem, BlockSearch(problem, merged(problem, 4), ("a", "b"), (0, 1), None)


@TOPOLOGIES
def test_states_take_as_long_as_their_strategies_one_by_one(topology) -> None:
    problem, search = search_of(topology)
    for node, states in zip(search.assignment.shared.nodes, search.assignment.states, strict=True):
        one_by_one = [
            node_seconds(node.source.work, states.strategies(state), ("a", "b"), problem.mesh, problem)
            for state in range(len(states.order))
        ]
        assert states.seconds.tolist() == one_by_one


@TOPOLOGIES
def test_the_reshards_of_the_decision_are_priced_as_the_planner_does(topology) -> None:
    problem, search = search_of(topology)
    chosen = dict(zip("ab", zip(*search.run(100), strict=True), strict=True))
    assert search.least_cost == pytest.approx(
        joint_cost(problem.mesh, search.assignment.shared, chosen, search.orders), rel=1e-9
    )


@pytest.mark.parametrize(("gap", "dives"), [(0.0, 1), (1.0, 0)])
def test_no_dives_within_the_gap(gap: float, dives: int, monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[int] = []
    monkeypatch.setattr("spmdir.search.block_search.FEW_NODES", 0)
    monkeypatch.setattr("spmdir.search.block_search.GOOD_ENOUGH", -1.0)
    monkeypatch.setattr(BlockSearch, "_dive", lambda search, max_turns: turns.append(max_turns))
    _, search = search_of(H100X8)
    search.run(100, gap=gap)
    assert search.end.reason == "no progress"
    assert len(turns) == dives or search.least_cost <= search.messages.bound


@TOPOLOGIES
def test_a_start_is_not_made_worse(topology) -> None:
    problem, search = search_of(topology)
    joints = search.run(100)
    again = BlockSearch(problem, merged(problem, 4), ("a", "b"), (0, 1), joints)
    again.run(1)
    assert again.least_cost <= search.least_cost * (1 + 1e-9)


def test_nodes_without_a_start_do_not_discard_that_of_others() -> None:
    problem, search = search_of(H100X8)
    joints = list(search.run(100))
    with_gap = [(None, None), *joints[1:]]
    again = BlockSearch(problem, merged(problem, 4), ("a", "b"), (0, 1), with_gap)
    assert again.start[1:] == search.best[1:]


def test_a_start_has_the_nesting_order_that_it_is_given() -> None:
    problem, search = search_of(H100X8)
    states = search.assignment.states
    part, at = next((part, of.order.index((1, 0))) for part, of in enumerate(states) if (1, 0) in of.order)
    joints, orders = [of.strategies(0) for of in states], [(0, 1)] * len(states)
    joints[part], orders[part] = states[part].strategies(at), (1, 0)
    again = BlockSearch(problem, merged(problem, 4), ("a", "b"), (0, 1), joints, orders)
    assert again.start[part] == at


def test_tables_and_decisions_avoid_the_same_reshards() -> None:
    problem, search = search_of(FLAT)
    shared = attrs.evolve(search.assignment.shared, apart=("a",), unsent=frozenset({0, 1}), unsliced=frozenset({1, 2}))
    placements = search.assignment._prices.placements
    prices, numbers = Prices(problem.mesh, shared, placements), np.arange(min(len(placements.all), 30))

    def placed(number: int) -> Placed:
        return tuple(zip("ab", (placements.catalogue.placements[at] for at in placements.all[number]), strict=True))

    for value in range(4):
        found = prices._is_avoided(numbers, value)
        for before, after in itertools.product(numbers, repeat=2):
            expected = _is_avoided(value, placed(int(before)), [placed(int(after))], shared, problem.mesh)
            assert found[before, after] == expected
        assert found.any() == (value < 3)
