"""Nodes are told apart by their sources, by which result of which node they use, and by who uses theirs."""

from __future__ import annotations

import attrs
import pytest

from spmdir.search.colour_refinement import Colours, colours
from spmdir.search.restricted_node import Restricted
from tests.search.test_search import problem_of

TWO_RESULTS = """spmd.mesh @mesh <a = 2>
func.func @main(%x: tensor<8x8xf32>) -> (tensor<8x1xf32>, tensor<8x1xf32>) {
  %0:2 = aten.var_mean.correction(%x) {dim = [1], correction = 0, keepdim = true} : tensor<8x1xf32>, tensor<8x1xf32>
  %1 = aten.neg(%0#0) : tensor<8x1xf32>
  %2 = aten.neg(%0#1) : tensor<8x1xf32>
  return %1, %2 : tensor<8x1xf32>, tensor<8x1xf32>
}
"""

CHAIN = """spmd.mesh @mesh <a = 2>
func.func @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = aten.t(%x) : tensor<8x8xf32>
  %1 = aten.t(%0) : tensor<8x8xf32>
  %2 = aten.t(%1) : tensor<8x8xf32>
  %3 = aten.t(%2) : tensor<8x8xf32>
  %4 = aten.t(%3) : tensor<8x8xf32>
  return %4 : tensor<8x8xf32>
}
"""


def test_users_of_different_results_of_one_node_have_different_colours() -> None:
    _, fine = colours(problem_of(TWO_RESULTS), 1)
    assert fine == [0, 1, 2, 3, 4, 4]


@pytest.mark.parametrize(
    ("depth", "coarse", "fine"),
    [
        (0, [0, 1, 1, 1, 1, 1, 2], [0, 1, 1, 1, 1, 1, 2]),
        (1, [0, 1, 1, 1, 1, 1, 2], [0, 1, 2, 2, 2, 3, 4]),
        (2, [0, 1, 2, 2, 2, 3, 4], [0, 1, 2, 3, 4, 5, 6]),
        (9, [0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 3, 4, 5, 6]),
    ],
)
def test_every_step_looks_one_node_further(depth: int, coarse: list[int], fine: list[int]) -> None:
    assert colours(problem_of(CHAIN), depth) == (coarse, fine)


@pytest.mark.parametrize("depth", [1, 2, 3, 9])
@pytest.mark.parametrize("text", [TWO_RESULTS, CHAIN])
def test_nodes_near_another_source_are_told_apart_as_if_it_had_been_there_from_the_start(text: str, depth: int) -> None:
    problem = problem_of(text)
    first = Colours(problem, depth)
    for index, node in enumerate(problem.nodes):
        for source in (Restricted(node.source, "a", frozenset()), problem.nodes[-1].source):
            changed = attrs.evolve(node, source=source)
            other = attrs.evolve(problem, nodes=(*problem.nodes[:index], changed, *problem.nodes[index + 1 :]))
            assert first.of(other) == Colours(other, depth).rounds[-1]
