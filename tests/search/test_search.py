"""The sharding search on small random programs: well typed, right, cheap, the same every time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import pytest
import torch
from hypothesis import Phase, given, seed, settings

from spmdir.analysis.propagation.build_problem import build_problem
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Placement
from spmdir.core.placement.standard import Partial, R
from spmdir.dialects import ir
from spmdir.pipeline.pipeline import run_passes
from spmdir.reshard.axis_price import axis_price
from spmdir.reshard.topology import FLAT
from spmdir.rules.strategies.strategy import UNSHARDED, Strategy
from spmdir.search import solve
from spmdir.search.problem import Problem, local_seconds
from spmdir.simulator.simulate import run_single, simulate
from tests.search.merged import merged
from tests.search.random_programs import Program, programs

MESHES = [Mesh({"a": 2}), Mesh({"a": 3}), Mesh({"a": 2, "b": 2}), Mesh({"a": 2, "b": 3}), Mesh({"b": 4, "a": 2})]
ONE_AXIS = Mesh({"a": 4})


@settings(max_examples=80)
@given(programs(MESHES))
def test_any_program_becomes_well_typed_and_computes_what_one_device_computes(program: Program) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.rand(shape, generator=generator, dtype=torch.float64) * 2 - 1 for shape in program.inputs]
    expected = run_single(ir.parse(program.text), inputs)
    module = run_passes(ir.parse(program.text), "propagate,insert-reshard,verify-spmd", verify_each=True)
    for got, wanted in zip(simulate(module, inputs), expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-9)


def problem_of(text: str) -> Problem:
    module = ir.parse(text)
    return build_problem(ir.main_function(module), ir.mesh(module), ir.context().rules, FLAT)[1]


def cost(problem: Problem, strategies: Sequence[Strategy]) -> float:
    """The cost of a decision on a mesh of one axis, as docs/propagation.md states it."""
    ((_, count),) = problem.mesh.axes

    def price(source: Placement, target: Placement, size: float) -> float:
        return axis_price(source, target, size, count, topology=problem.topology).seconds

    nodes = zip(problem.nodes, strategies, strict=True)
    total = sum(local_seconds(node.source.work, problem.topology, [strategy], [count]) for node, strategy in nodes)
    made, requests = {}, {value: {} for value in range(len(problem.values))}
    for node, strategy in zip(problem.nodes, strategies, strict=True):
        for size, _ in strategy.inner_bytes:
            total += price(Partial("sum"), R, size)
        made.update(zip(node.results, strategy.results, strict=True))
        for value, placement in zip(node.operands, strategy.operands, strict=True):
            requests[value][placement] = None
    for value, wanted in requests.items():
        size = problem.values[value].bytes
        one_by_one = sum(price(made[value], placement, size) for placement in wanted)
        total += min(one_by_one, price(made[value], R, size))
    return total


def all_decisions(problem: Problem) -> Iterator[Sequence[Strategy]]:
    ((axis, count),) = problem.mesh.axes
    return itertools.product(*(node.source.strategies(axis, count, UNSHARDED) for node in problem.nodes))


def small_problems(count: int) -> list[Problem]:
    """Problems whose decisions can all be tried; the same ones every time."""
    found: list[Problem] = []

    @seed(0)
    @settings(max_examples=count, phases=[Phase.generate])
    @given(programs([ONE_AXIS], ops=4, lengths=(4, 64, 256, 1024)))
    def collect(program: Program) -> None:
        problem = problem_of(program.text)
        decisions = math.prod(len(node.source.strategies("a", 4, UNSHARDED)) for node in problem.nodes)
        if 20 < decisions < 4000:
            found.append(problem)

    collect()
    return found


def test_small_programs_are_decided_as_well_as_by_trying_everything() -> None:
    optimal = []
    for problem in small_problems(120):
        best = min(cost(problem, strategies) for strategies in all_decisions(problem))
        found = cost(problem, solve.solve(problem).strategies["a"])
        assert found <= 1.5 * best + 1e-14 or len(problem.nodes) > 6
        optimal.append(found <= best + 1e-14)
    assert len(optimal) > 48
    assert sum(optimal) >= 0.95 * len(optimal)


def replicated(problem: Problem) -> list[Strategy]:
    """The decision that replicates whatever may be replicated."""
    ((axis, count),) = problem.mesh.axes
    return [
        max(
            node.source.strategies(axis, count, UNSHARDED),
            key=lambda strategy: [*strategy.operands, *strategy.results].count(R),
        )
        for node in problem.nodes
    ]


@settings(max_examples=60)
@given(programs([ONE_AXIS], ops=12, lengths=(4, 64, 256, 1024)))
def test_nothing_costs_more_than_replicating_everything(program: Program) -> None:
    problem = problem_of(program.text)
    assert cost(problem, solve.solve(problem).strategies["a"]) <= cost(problem, replicated(problem)) + 1e-6


@settings(max_examples=30)
@given(programs(MESHES, ops=12))
def test_the_same_problem_is_decided_alike_every_time(program: Program) -> None:
    assert solve.solve(problem_of(program.text)) == solve.solve(problem_of(program.text))


LAYER = (
    "aten.mm(%x{n}, %up{n}) : tensor<64x1024xf32>",
    'aten.gelu(%a{n}) {{approximate = "none"}} : tensor<64x1024xf32>',
    "aten.mm(%b{n}, %down{n}) : tensor<64x256xf32>",
    "aten.add.Tensor(%x{n}, %c{n}) : tensor<64x256xf32>",
)


def stack(layers: int) -> Problem:
    """Residual layers of two products each; only their parameters are divided."""
    weights = [
        f"%up{n}: tensor<256x1024xf32> {{spmd.sharding = #spmd.sharding<@mesh, a: S(1)>}}, "
        f"%down{n}: tensor<1024x256xf32> {{spmd.sharding = #spmd.sharding<@mesh, a: S(0)>}}"
        for n in range(layers)
    ]
    lines = [
        f"%{result} = {op.format(n=n)}"
        for n in range(layers)
        for result, op in zip((f"a{n}", f"b{n}", f"c{n}", f"x{n + 1}"), LAYER, strict=True)
    ]
    held = "tensor<64x256xf32> {spmd.sharding = #spmd.sharding<@mesh>}"
    end = f"return %x{layers} : tensor<64x256xf32>"
    body = "\n".join([*lines, end])
    head = ", ".join([f"%x0: {held}", *weights])
    return problem_of(f"spmd.mesh @mesh <a = 4>\nfunc.func @main({head}) -> ({held}) {{\n{body}\n}}\n")


@pytest.mark.parametrize("depth", [3, solve.DEPTH])
def test_layers_beyond_those_that_differ_only_weigh_more(depth: int) -> None:
    short, long = merged(stack(9), depth), merged(stack(12), depth)
    assert len(short.nodes) == len(long.nodes) < len(stack(9).nodes)
    assert sum(long.weight) - sum(short.weight) == 3 * (len(LAYER) + 2)


def test_every_further_layer_costs_the_same() -> None:
    costs = [cost(stack(layers), solve.solve(stack(layers)).strategies["a"]) for layers in (5, 6, 7, 8)]
    steps = [after - before for before, after in itertools.pairwise(costs)]
    assert steps == pytest.approx([steps[0]] * 3)


def test_merging_repeats_loses_nothing_on_a_stack_of_layers() -> None:
    problem = stack(6)
    seconds = cost(problem, solve.solve(problem).strategies["a"])
    assert len(merged(problem, 100).nodes) == len(problem.nodes)
    assert seconds == pytest.approx(cost(problem, solve.solve(problem, depth=100).strategies["a"]))


def test_nodes_of_different_surroundings_are_never_merged() -> None:
    text = """spmd.mesh @mesh <a = 2>
    func.func @main(%x: tensor<8x8xf32>, %y: tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32>) {
      %0 = aten.cos(%x) : tensor<8x8xf32>
      %1 = aten.cos(%y) : tensor<8x8xf32>
      %2 = aten.relu(%0) : tensor<8x8xf32>
      %3 = aten.cumsum(%1) {dim = 0} : tensor<8x8xf32>
      return %2, %3 : tensor<8x8xf32>, tensor<8x8xf32>
    }"""
    shared = merged(problem_of(text), 3)
    assert shared.weight == [1] * len(shared.nodes) == [1] * 8
