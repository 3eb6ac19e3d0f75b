"""What the search keeps up to date as it moves equals what it would find anew."""

from __future__ import annotations

import random

import pytest

from spmdir.core.mesh import Mesh
from spmdir.dialects import ir
from spmdir.passes.propagation.build_problem import build_problem
from spmdir.reshard.topology import FLAT, H100X8
from spmdir.search.block_search import BlockSearch, Kicks
from spmdir.search.joint_cost import node_seconds
from spmdir.search.problem import Problem
from spmdir.search.repeats import quotient
from spmdir.search.sweeps import sweep

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
    return problem, BlockSearch(problem, quotient(problem, 4), ("a", "b"), (0, 1), None)


@TOPOLOGIES
def test_states_take_as_long_as_their_strategies_one_by_one(topology) -> None:
    problem, search = search_of(topology)
    for node, states in zip(search.shared.nodes, search.now.states, strict=True):
        one_by_one = [
            node_seconds(node.source.work, states.strategies(state), ("a", "b"), problem.mesh, problem)
            for state in range(len(states.joints))
        ]
        assert states.seconds.tolist() == one_by_one


@TOPOLOGIES
def test_the_cost_after_moves_is_that_of_the_whole_program(topology) -> None:
    _, search = search_of(topology)
    now, chance = search.now, random.Random(0)
    now.assume(sweep(now))
    for _ in range(20):
        kicks = Kicks(search)
        moved = {part: now.choice[part] for part in chance.sample(range(len(now.choice)), 3)}
        for part in moved:
            now.choose(part, chance.randrange(len(now.cost_rows[part])))
        assert kicks._total(moved) == pytest.approx(now.total(), rel=1e-12)
