"""Decisions that count what a schedule hides: each learns from those before it, and none is slower than without."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given, settings
from xdsl.dialects.builtin import ModuleOp

import spmdir
from spmdir.analysis.live_memory import live_memory
from spmdir.analysis.scheduling.rank_program import rank_program
from spmdir.core.dtype import F32
from spmdir.core.mesh import Mesh
from spmdir.core.placement.tensor import TensorMeta
from spmdir.dialects.ir import main_function, mesh
from spmdir.passes.mesh_search import UNSENT, exposed_parts
from spmdir.pipeline.pipeline import PARTITIONING, as_pipeline
from spmdir.reshard.topology import H100X8
from spmdir.schedule.memory import peak_bytes
from spmdir.schedule.simulate import simulate
from spmdir.search.hidden_transfers import LEAST_FRACTION, Scheduled, fastest
from spmdir.search.solve import Solution
from spmdir.search.value_prices import NO_PRICES, ValuePrices
from tests.search.random_programs import Program, programs

HIDDEN = """spmd.mesh @mesh <tp = 4>

func.func @f(%a: tensor<512x16384xbf16> {spmd.sharding = #spmd.sharding<@mesh>},
             %b: tensor<16384x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh>},
             %p: tensor<512x512xbf16> {spmd.sharding = #spmd.sharding<@mesh>},
             %w: tensor<4096x1024xbf16> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>})
    -> (tensor<512x1024xbf16> {spmd.sharding = #spmd.sharding<@mesh>}) {
  %0 = aten.mm(%a, %b) : tensor<512x4096xbf16> <>
  %1 = aten.mm(%p, %0) : tensor<512x4096xbf16> <>
  %2 = aten.mm(%1, %w) : tensor<512x1024xbf16>
  return %2 : tensor<512x1024xbf16>
}
"""
"""A program where a gather that holds more is hidden, and an all-reduce that takes less time would be exposed."""


def scheduled(solution: Solution, seconds: float, *exposed: float) -> Scheduled:
    return Scheduled(solution, seconds, exposed)


def test_reshards_count_by_the_mean_of_what_schedules_exposed_of_them_last() -> None:
    given: list[ValuePrices] = []
    plain = Solution({}, 3.0, prices=ValuePrices(holding=(1.0, 2.0)))
    runs = iter([(3.0, 1.0, 0.0), (1.0, 0.0, 0.0), (2.0, 1.0, 0.0), (math.inf, 1.0, 1.0)])

    def decide(prices: ValuePrices) -> Scheduled:
        given.append(prices)
        return scheduled(Solution({}, 3.0, prices=prices), *next(runs))

    best = fastest(scheduled(plain, 2.5, 0.5, 0.0), decide)
    assert [prices.exposed for prices in given] == [(0.75, 0.5), (0.875, 0.25), (0.4375, 0.125), (0.71875, 0.0625)]
    assert all(prices.holding == plain.prices.holding for prices in given)
    assert best.seconds == 1.0
    assert best.solution.prices == given[1]


def test_what_is_always_hidden_counts_a_little() -> None:
    given: list[ValuePrices] = []

    def decide(prices: ValuePrices) -> Scheduled:
        given.append(prices)
        return scheduled(Solution({}, 1.0), 1.0, 0.0)

    first = scheduled(Solution({}, 1.0), 1.0, 0.0)
    assert fastest(first, decide) is first
    assert tuple(given[-1].exposed) >= (LEAST_FRACTION,)
    assert first.solution.prices == NO_PRICES


ONE_BESIDE_IT = """spmd.mesh @mesh <dp = 4>

func.func @f(%x: tensor<1024x1024xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: P(sum)>},
             %y: tensor<1024x1024xf32> {spmd.sharding = #spmd.sharding<@mesh>},
             %z: tensor<1024x1024xf32> {spmd.sharding = #spmd.sharding<@mesh>})
    -> (tensor<1024x1024xf32>) attributes {spmd.stage = "local"} {
  %h = spmd.all_reduce_start %x on [dp] op sum : !spmd.pending<tensor<1024x1024xf32>> <>
  %0 = aten.neg(%y) : tensor<1024x1024xf32> <>
  %g = spmd.wait %h : tensor<1024x1024xf32> <>
  %1 = aten.add.Tensor(%g, %z) : tensor<1024x1024xf32> <>
  %2 = aten.add.Tensor(%0, %1) : tensor<1024x1024xf32> <>
  return %2 : tensor<1024x1024xf32>
}
"""


def test_a_value_is_exposed_as_it_is_sent_or_as_it_has_no_time_to_be_sent() -> None:
    module = spmdir.parse(ONE_BESIDE_IT)
    function = main_function(module)
    program, units = rank_program(function, mesh(module), as_pipeline(None).rules, H100X8)
    run = simulate(program)
    number = {argument: (argument.index, False) for argument in function.args}
    metas = [TensorMeta((1024, 1024), F32)] * len(number)
    x, y, z = exposed_parts(run, units, lambda value: number.get(value), metas, H100X8.intra_bandwidth)  # type: ignore
    neg = run.end[1] - run.begin[1]
    transfer = program.tasks[0].transfer
    assert transfer is not None
    assert x == pytest.approx(1 - neg / transfer.seconds)
    assert y == 1.0
    assert z == UNSENT


def decided(text: str, options: str) -> ModuleOp:
    return spmdir.run_passes(spmdir.parse(text), f"propagate{{{options}}}")


def step(module: ModuleOp) -> float:
    local = spmdir.run_passes(module, f"{PARTITIONING},schedule")
    program, _ = rank_program(main_function(local), mesh(local), as_pipeline(None).rules, H100X8)
    return simulate(program).seconds


def objective(module: ModuleOp) -> float:
    found = spmdir.report.comm_report(module).objective
    assert found is not None
    return found


def most(module: ModuleOp) -> int:
    local = spmdir.run_passes(module, PARTITIONING)
    return int(peak_bytes(live_memory(main_function(local), mesh(local), as_pipeline(None).rules, {}).program))


def test_the_objective_is_that_of_what_runs_one_after_the_other() -> None:
    plain, hidden = (decided(HIDDEN, f"overlap={by}") for by in ("none", "schedule"))
    assert objective(plain) < objective(hidden)
    assert step(plain) > step(hidden)


@pytest.mark.parametrize("limit", [None, "least"])
def test_a_decision_that_holds_too_much_is_not_taken(limit: str | None) -> None:
    plain, hidden = (most(decided(HIDDEN, f"overlap={by}")) for by in ("none", "schedule"))
    assert plain < hidden
    assert most(decided(HIDDEN, f"overlap=schedule memory={limit or plain}")) <= plain


@settings(max_examples=15)
@given(programs([Mesh({"a": 4}), Mesh({"a": 4, "b": 2})], ops=6))
def test_steps_of_random_programs_are_no_longer_than_without(program: Program) -> None:
    try:
        plain = step(decided(program.text, "memory=none"))
    except spmdir.SpmdirError:
        assume(False)
        raise
    assert step(decided(program.text, "memory=none overlap=schedule")) <= plain


@pytest.mark.parametrize("overlap", ["none", "schedule"])
def test_a_program_that_is_decided_for_the_least_memory_can_be_scheduled(overlap: str) -> None:
    assert step(decided(HIDDEN, f"memory=least overlap={overlap}")) > 0
