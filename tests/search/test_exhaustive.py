"""The oracle of the search: it finds what trying every decision finds, among the decisions that the search has."""

from __future__ import annotations

import itertools

import attrs
import pytest
from hypothesis import Phase, given, settings

from spmdir.core.mesh import Mesh
from spmdir.reshard.topology import H100X8
from spmdir.search.joint_cost import joint_cost
from spmdir.search.solve import solve
from tests.search.compare_exhaustively import compare
from tests.search.exhaustive import joint_states, joint_strategies, optimum, unmerged
from tests.search.random_programs import Program, programs
from tests.search.test_search import problem_of

MESHES = [Mesh({"a": 4}), Mesh({"a": 2, "b": 2}), Mesh({"b": 4, "a": 2})]
LENGTHS = (4, 64, 1024)

PRODUCT = """spmd.mesh @mesh <a = 2, b = 2>
func.func @main(%x: tensor<8x64xf64> {spmd.sharding = #spmd.sharding<@mesh, a: S(0)>},
                %w: tensor<64x64xf64> {spmd.sharding = #spmd.sharding<@mesh, b: S(1)>}) -> tensor<8x64xf64> {
  %0 = aten.mm(%x, %w) : tensor<8x64xf64>
  return %0 : tensor<8x64xf64>
}
"""


def test_the_optimum_is_that_of_all_decisions_tried_one_by_one() -> None:
    problem = problem_of(PRODUCT)
    shared, costs = unmerged(problem), []
    for decision in itertools.product(*(joint_states(problem.mesh, node) for node in problem.nodes)):
        joints, orders = zip(*decision, strict=True)
        chosen = dict(zip("ab", zip(*joints, strict=True), strict=True))
        costs.append(joint_cost(problem.mesh, shared, chosen, orders))
    best = optimum(problem)
    assert best is not None
    assert best.cost == pytest.approx(min(costs))


NESTED_AROUND_ANOTHER_AXIS = """spmd.mesh @mesh <a = 2, b = 2, c = 2>
func.func @main(%x: tensor<8x64xf64>)
    -> (tensor<8x64xf64> {spmd.sharding = #spmd.sharding<@mesh, c: S(1), a: S(1), b: R>}) {
  %0 = aten.relu(%x) : tensor<8x64xf64>
  return %0 : tensor<8x64xf64>
}
"""


def test_an_axis_without_a_shared_dimension_leaves_every_order_of_the_others() -> None:
    problem = problem_of(NESTED_AROUND_ANOTHER_AXIS)
    orders = [{order for _, order in joint_states(problem.mesh, node)} for node in problem.nodes]
    assert all(orders) and (1, 2, 0) in orders[-1]
    best = optimum(problem)
    assert best is not None and best.cost == pytest.approx(solve(problem).cost)


@settings(max_examples=8, phases=[Phase.generate])
@given(programs(MESHES, ops=4, lengths=LENGTHS))
def test_what_the_search_decides_is_among_what_is_tried(program: Program) -> None:
    problem = problem_of(program.text)
    solution = solve(problem)
    found = solution.strategies
    for index, node in enumerate(problem.nodes):
        placed = [(s.operands, s.results) for s in (found[axis][index] for axis in problem.mesh.axis_names)]
        tried = [[(s.operands, s.results) for s in joint] for joint in joint_strategies(problem.mesh, node)]
        assert placed in tried
    best = optimum(problem, solution.cost, 4000)
    assert best is None or best.cost <= solution.cost * (1 + 1e-9)


SLICED_FOR_NOTHING = """spmd.mesh @mesh <b = 4, a = 2>
func.func @main(%x: tensor<4x4xf64>) -> (tensor<4x4xf64>, tensor<4x4xf64>) {
  %0 = aten.add.Tensor(%x, %x) : tensor<4x4xf64>
  %1 = spmd.constraint %0 : tensor<4x4xf64> <b: R, a: R>
  return %x, %1 : tensor<4x4xf64>, tensor<4x4xf64>
}
"""


def test_a_kernel_that_slices_is_not_launched_to_have_smaller_results() -> None:
    problem = attrs.evolve(problem_of(SLICED_FOR_NOTHING), topology=H100X8)
    best = optimum(problem)
    assert best is not None
    assert solve(problem).cost == pytest.approx(best.cost)


def test_layers_are_decided_alike_however_many_there_are() -> None:
    problems = [attrs.evolve(problem_of(_layers(count)), topology=H100X8) for count in (16, 24, 48)]
    costs = [solve(problem).cost for problem in problems]
    assert (costs[2] - costs[1]) / 24 == pytest.approx((costs[1] - costs[0]) / 8)


def _layers(count: int) -> str:
    """Return a program of equal layers, each two products with a weight of its own."""
    weights = "".join(f", %w{i}: tensor<256x512xf64>, %u{i}: tensor<512x256xf64>" for i in range(count))
    lines = "".join(
        f"  %p{i} = aten.mm(%x{i}, %w{i}) : tensor<64x512xf64>\n  %r{i} = aten.relu(%p{i}) : tensor<64x512xf64>\n"
        f"  %q{i} = aten.mm(%r{i}, %u{i}) : tensor<64x256xf64>\n"
        f"  %x{i + 1} = aten.add.Tensor(%x{i}, %q{i}) : tensor<64x256xf64>\n"
        for i in range(count)
    )
    return (
        f"spmd.mesh @mesh <a = 2, b = 4>\nfunc.func @main(%x0: tensor<64x256xf64>{weights}) -> tensor<64x256xf64> {{\n"
        f"{lines}  return %x{count} : tensor<64x256xf64>\n}}\n"
    )


def test_what_fixed_users_hold_is_where_others_are_made_from() -> None:
    problem = problem_of("""spmd.mesh @mesh <a = 2, b = 2>
    func.func @main(%v0: tensor<4x64xf64> {spmd.sharding = #spmd.sharding<@mesh, b: S(0), a: P(sum)>})
        -> (tensor<4x64xf64> {spmd.sharding = #spmd.sharding<@mesh, a: R, b: S(0)>}, tensor<4x128xf64>) {
      %v1 = aten.cat([%v0, %v0]) {dim = 1} : tensor<4x128xf64>
      %v2 = aten.add.Scalar(%v1) {other = 1} : tensor<4x128xf64>
      %v3 = aten._softmax(%v2) {dim = 0, half_to_float = false} : tensor<4x128xf64>
      %v4 = spmd.constraint %v3 : tensor<4x128xf64> <b: S(0), a: S(0)>
      return %v0, %v4 : tensor<4x64xf64>, tensor<4x128xf64>
    }""")
    found = solve(problem)
    best = optimum(problem, found.cost * 1.001)
    assert best is not None
    assert found.cost == pytest.approx(best.cost)


def test_small_random_programs_are_decided_as_trying_everything_does() -> None:
    compared, worse = compare(12, 0, 200, MESHES)
    assert not worse, "\n".join(worse)
    assert compared > 4


ONE_COPY_FOR_BOTH_OPERANDS = """spmd.mesh @mesh <b = 4, a = 2>
func.func @main(%x: tensor<64x64xf64> {spmd.sharding = #spmd.sharding<@mesh, b: R, a: P(sum)>}) -> tensor<64x64xf64> {
  %0 = aten.mm(%x, %x) : tensor<64x64xf64>
  %1 = spmd.constraint %0 : tensor<64x64xf64> <a: S(0), b: ?>
  return %1 : tensor<64x64xf64>
}
"""

PARTIAL_VALUES_THAT_NO_OP_MAKES = """spmd.mesh @mesh <b = 4, a = 2>
func.func @main(%x: tensor<1024x4xf64> {spmd.sharding = #spmd.sharding<@mesh, b: S(1), a: S(0)>})
    -> (tensor<1024x1xf64> {spmd.sharding = #spmd.sharding<@mesh, b: S(0), a: S(0)>}) {
  %0 = aten.mean.dim(%x) {dim = [1], keepdim = true} : tensor<1024x1xf64>
  return %0 : tensor<1024x1xf64>
}
"""

FAR_FROM_THE_BOUND = """spmd.mesh @mesh <b = 4, a = 2>
func.func @main(%x: tensor<4x1024xf64> {spmd.sharding = #spmd.sharding<@mesh, b: ?, a: S(0)>},
                %y: tensor<8x4xf64> {spmd.sharding = #spmd.sharding<@mesh, b: P(sum), a: S(1)>})
    -> (tensor<8x1024xf64>, tensor<8x8xf64> {spmd.sharding = #spmd.sharding<@mesh, a: S(0), b: ?>}) {
  %0 = aten.mm(%y, %x) : tensor<8x1024xf64>
  %1 = aten.cat([%y, %y]) {dim = 1} : tensor<8x8xf64>
  %2 = spmd.constraint %1 : tensor<8x8xf64> <a: R, b: R>
  return %0, %2 : tensor<8x1024xf64>, tensor<8x8xf64>
}
"""


@pytest.mark.parametrize("text", [ONE_COPY_FOR_BOTH_OPERANDS, PARTIAL_VALUES_THAT_NO_OP_MAKES, FAR_FROM_THE_BOUND])
def test_small_programs_are_decided_as_trying_everything_does(text: str) -> None:
    problem = attrs.evolve(problem_of(text), topology=H100X8)
    found = solve(problem)
    best = optimum(problem, found.cost * 1.001)
    assert best is not None
    assert found.cost == pytest.approx(best.cost)
