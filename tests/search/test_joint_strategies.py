"""What the search may decide for a node is what is legal, and is among what the certificate bounds."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings

from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Placement
from spmdir.core.placement.standard import Partial, R, Shard, plugins
from spmdir.rules.strategies.strategy import Strategy
from spmdir.search.certificate.certificate import DEPTH
from spmdir.search.certificate.dual_bound import DualBound
from spmdir.search.joint_strategies import idle_strategies, joint_strategies
from spmdir.search.problem import Node, Problem, fractions
from spmdir.search.solve import solve
from tests.search import exhaustive
from tests.search.random_programs import Program, programs
from tests.search.test_search import problem_of

MESHES = [
    Mesh({"a": 4}),
    Mesh({"a": 2, "b": 3}),
    Mesh({"b": 4, "a": 2}),
    Mesh({"a": 2, "b": 2, "c": 2}),
    Mesh({"c": 3, "a": 2, "b": 2}),
]
SETTINGS = settings(max_examples=40)

GROUPED = """spmd.mesh @mesh <b = 4, a = 2>
func.func @main(%x: tensor<2x8xf32>) -> tensor<16xf32> {
  %0 = aten.view(%x) {size = [16]} : tensor<16xf32>
  return %0 : tensor<16xf32>
}
"""

DEALT = """spmd.mesh @mesh <{mesh}>
func.func @main(%x: tensor<24x24xf32> {{spmd.sharding = #spmd.sharding<@mesh, a: {placement}>}}) -> tensor<24x24xf32> {{
  %0 = aten.relu(%x) : tensor<24x24xf32>
  %1 = aten.mm(%x, %0) : tensor<24x24xf32>
  %2 = aten.add.Tensor(%1, %x) : tensor<24x24xf32>
  return %2 : tensor<24x24xf32>
}}
"""


def placed(joint: tuple[Strategy, ...]) -> tuple[tuple[tuple[Placement, ...], ...], ...]:
    """Return the placements of each operand and of each result on all axes."""
    operands, results = zip(*[(strategy.operands, strategy.results) for strategy in joint], strict=True)
    return tuple(zip(*operands, strict=True)), tuple(zip(*results, strict=True))


def free(problem: Problem, node: Node) -> set[tuple[Strategy, ...]]:
    return set(joint_strategies(node.source, problem.mesh.axes, [frozenset()] * len(problem.mesh.axes)).joints())


def assert_bounded(problem: Problem) -> None:
    """Assert that the certificate looks at what the search decides."""
    dual = DualBound(problem, DEPTH)
    bounded: dict[object, set[object]] = {}
    for node, states in zip(dual.shared.nodes, dual.states, strict=True):
        joints = map(states.strategies, range(len(states.order)))
        bounded.setdefault(node.source, set()).update(map(placed, joints))
    decided = zip(*solve(problem).strategies.values(), strict=True)
    for node, joint in zip(problem.nodes, decided, strict=True):
        assert placed(joint) in bounded[node.source]


@SETTINGS
@given(programs(MESHES, ops=3))
def test_strategies_are_legal_together_where_each_is_beside_all_others(program: Program) -> None:
    problem = problem_of(program.text)
    for node in problem.nodes:
        assert free(problem, node) == set(exhaustive.joint_strategies(problem.mesh, node))


@SETTINGS
@given(programs(MESHES, ops=3))
def test_what_is_legal_beside_fixed_strategies_is_legal(program: Program) -> None:
    problem, chance = problem_of(program.text), random.Random(0)
    axes = problem.mesh.axes
    for node in problem.nodes:
        every = free(problem, node)
        for _ in range(4):
            found = [node.source.candidates(axis, count) for axis, count in axes]
            fixed = [chance.choice([None, *strategies]) for strategies in found]
            chosen = joint_strategies(node.source, axes, [frozenset()] * len(axes), fixed).joints()
            assert chosen and {*chosen} <= every


@SETTINGS
@given(programs(MESHES, ops=6))
def test_the_certificate_bounds_what_the_search_decides(program: Program) -> None:
    assert_bounded(problem_of(program.text))


@pytest.mark.parametrize("mesh", ["a = 2", "b = 2, a = 3", "b = 2, a = 2, c = 2"])
@pytest.mark.parametrize("placement", ["Strided(0, 2)", "Strided(1, 2)", "Cyclic(0, 1)"])
def test_the_certificate_bounds_what_the_search_decides_by_placements_of_plugins(mesh: str, placement: str) -> None:
    problem = problem_of(DEALT.format(mesh=mesh, placement=placement))
    assert problem.plugin_placements
    assert_bounded(problem)
    for node in problem.nodes:
        assert free(problem, node) == set(exhaustive.joint_strategies(problem.mesh, node))


def test_a_placement_is_a_candidate_on_the_axes_that_name_it() -> None:
    problem = problem_of(DEALT.format(mesh="b = 2, a = 2", placement="Strided(0, 2)"))
    by_axis = {
        axis: {p for node in problem.nodes for s in node.source.candidates(axis, 2) for p in (*s.operands, *s.results)}
        for axis in "ab"
    }
    assert plugins(by_axis["a"]) and not plugins(by_axis["b"])


def test_a_minor_factor_is_sharded_by_an_axis_before_that_of_its_major_one() -> None:
    problem = problem_of(GROUPED)
    joints = [placed(joint) for joint in free(problem, problem.nodes[1])]
    assert ((((Shard(1), Shard(0)),), ((Shard(0), Shard(0)),))) in joints


def test_fixed_strategies_that_leave_none_are_given_up() -> None:
    problem = problem_of(GROUPED)
    source, axes = problem.nodes[1].source, problem.mesh.axes
    minor = next(s for s in source.candidates("b", 4) if s.operands == (Shard(1),))
    replicated = next(s for s in source.candidates("a", 2) if not s.factors)
    found = joint_strategies(source, axes, [frozenset()] * 2, [minor, replicated]).joints()
    assert {*found} == free(problem, problem.nodes[1])


def test_strategies_that_pass_on_what_no_node_makes_are_idle_unless_there_are_no_others() -> None:
    total = Partial("sum")
    makes, passes = Strategy((Shard(0),), (total,), (0,)), Strategy((total,), (total,))
    replicated = Strategy((R,), (R,))
    nodes = [[Strategy((), (R,))], [replicated, passes], [replicated, makes], [replicated, passes], [passes]]
    makers = [[], [(0, (0, 0))], [(0, (1, 0))], [(0, (2, 0))], [(0, (1, 0))]]
    assert idle_strategies(nodes, makers) == [frozenset(), {passes}, frozenset(), frozenset(), frozenset()]


@pytest.mark.parametrize("size", [3, 5, 6, 7, 24])
@pytest.mark.parametrize("counts", [(2, 3), (3, 2), (2, 2, 2), (4, 2)])
def test_axes_that_shard_one_factor_leave_the_largest_shard_of_all_their_ranks(size: int, counts: tuple[int]) -> None:
    strategy = Strategy((Shard(0),), (Shard(0),), (0,), partition=(Shard(0), size))
    total, ranks = 1.0, 1
    for fraction, count in zip(fractions([strategy] * len(counts), counts), counts, strict=True):
        total, ranks = total * fraction, ranks * count
    assert total == pytest.approx(-(-size // ranks) / size)


def test_axes_that_shard_other_factors_leave_their_own_parts() -> None:
    some = Strategy((Shard(0),), (Shard(0),), (0,), partition=(Shard(0), 3))
    other = Strategy((Shard(1),), (Shard(1),), (1,), partition=(Shard(1), 8))
    assert fractions([some, Strategy((R,), (R,)), other], (2, 2, 4)) == [pytest.approx(2 / 3), 1.0, 0.25]
