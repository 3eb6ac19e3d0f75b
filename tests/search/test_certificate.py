"""Certificates: a lower bound is never above the best decision, and tight where programs are simple."""

from __future__ import annotations

import itertools

import attrs
import pytest
from hypothesis import Phase, given, settings

from spmdir.core.errors import UnsupportedError
from spmdir.core.mesh import Mesh
from spmdir.reshard.measured_times import parse_costs
from spmdir.search.certificate.certificate import Certificate, certify
from spmdir.search.problem import Problem
from spmdir.search.solve import solve
from tests.search.exhaustive import optimum
from tests.search.random_programs import Program, programs
from tests.search.test_search import problem_of, stack

MESHES = [Mesh({"a": 4}), Mesh({"a": 2, "b": 2}), Mesh({"b": 4, "a": 2})]


def best_of(problem: Problem, limit: int = 20_000) -> float | None:
    found = optimum(problem, solve(problem).cost * 1.001, limit)
    return None if found is None else found.cost


@settings(max_examples=8, phases=[Phase.generate])
@given(programs(MESHES, ops=4, lengths=(4, 8, 64, 1024)))
def test_no_decision_on_all_axes_together_costs_less_than_the_bound(program: Program) -> None:
    problem = problem_of(program.text)
    best = best_of(problem, 3000)
    if best is None:
        return
    found = certify(problem, 1.1 * best).lower_bound
    assert 0.4 * best <= found <= best * (1 + 1e-9)


@settings(max_examples=4, phases=[Phase.generate])
@given(programs([Mesh({"a": 2, "b": 2, "c": 2})], ops=1, lengths=(3, 8)))
def test_no_decision_on_three_axes_costs_less_than_the_bound(program: Program) -> None:
    problem = problem_of(program.text)
    best = best_of(problem, 1000)
    if best is not None:
        assert certify(problem, 1.1 * best).lower_bound <= best * (1 + 1e-9)


def test_the_bound_of_merged_layers_holds_for_layers_that_are_decided_one_by_one() -> None:
    problem = stack(7)
    best = best_of(problem)
    assert best is not None
    assert certify(problem, best).lower_bound == pytest.approx(best, rel=1e-6, abs=0)


SHARED = """spmd.mesh @mesh <a = 4>
func.func @main(%x: tensor<1024x1024xf64> {{spmd.sharding = #spmd.sharding<@mesh, a: P(sum)>}}) -> ({results}) {{
  return {values} : {types}
}}
"""


@pytest.mark.parametrize("wanted", [*itertools.combinations(("R", "S(0)", "S(1)"), 2), ("R", "S(0)", "S(1)")])
def test_a_copy_that_serves_several_users_is_bounded_once(wanted: tuple[str, ...]) -> None:
    kind = "tensor<1024x1024xf64>"
    results = ", ".join(f"{kind} {{spmd.sharding = #spmd.sharding<@mesh, a: {one}>}}" for one in wanted)
    values, types = ", ".join(["%x"] * len(wanted)), ", ".join([kind] * len(wanted))
    problem = problem_of(SHARED.format(results=results, values=values, types=types))
    best = best_of(problem)
    assert best is not None
    plain = certify(problem, 2 * best)
    assert 0.45 * best <= plain.lower_bound <= best * (1 + 1e-9)
    # Everything is given, so that no decision changes if a part of the time of reshards counts.
    counted = plain.floor + 0.25 * (best - plain.floor)
    part = certify(problem, 2 * counted, [0.25] * len(problem.values), "messages").lower_bound
    assert 0.45 * counted <= part <= counted * (1 + 1e-9)


def test_a_gap_is_relative_to_all_of_the_cost_and_to_what_is_above_the_least_compute() -> None:
    certificate = Certificate(objective=10e-3, lower_bound=9.9e-3, floor=9e-3)
    assert certificate.gap == pytest.approx(0.01)
    assert certificate.gap_above_floor == pytest.approx(0.1)
    assert str(certificate) == (
        "objective 10 ms; no decision costs less than 9.9 ms: gap 1.00%, or 10.0% of what is above the least compute "
        "of 9 ms"
    )


def test_too_many_axes_to_look_at_together_are_an_error() -> None:
    text = "spmd.mesh @mesh <a = 2, b = 2, c = 2, d = 2, e = 2, f = 2>\n" + (
        "func.func @main(%x: tensor<128x128x128x128xf64>) -> tensor<128x128x128x128xf64> {\n"
        "  return %x : tensor<128x128x128x128xf64>\n}\n"
    )
    with pytest.raises(UnsupportedError, match="certify enumerates the strategies on all mesh axes together"):
        certify(problem_of(text), 1.0)


def test_measured_times_of_collectives_are_an_error() -> None:
    problem = problem_of(SHARED.format(results="tensor<1024x1024xf64>", values="%x", types="tensor<1024x1024xf64>"))
    costs = parse_costs("all_reduce 4 ranks 1048576 bytes = 1e-6\n", "costs.txt")
    measured = attrs.evolve(problem, topology=attrs.evolve(problem.topology, costs=costs))
    with pytest.raises(UnsupportedError, match="certify found a table of measured costs"):
        certify(measured, 1.0)


def test_a_bound_on_a_program_with_an_empty_value_is_not_above_what_the_search_finds() -> None:
    problem = problem_of("""spmd.mesh @mesh <tp = 4>
func.func @main(%x: tensor<0x4xf32>, %y: tensor<4x4xf32>) -> tensor<0x4xf32> {
  %0 = aten.mm(%x, %y) : tensor<0x4xf32>
  return %0 : tensor<0x4xf32>
}
""")
    found = solve(problem).cost
    assert 0 <= certify(problem, found).lower_bound <= found * (1 + 1e-9)
