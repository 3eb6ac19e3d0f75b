"""Costs of messages inside ops: rows of experts that are dispatched, with their prices, memory and reports."""

from __future__ import annotations

import pytest
from xdsl.dialects.builtin import ModuleOp

import spmdir
from spmdir.report import comm_report, memory_report
from spmdir.reshard.topology import H100X8

LAYER = """
spmd.mesh @mesh <dp = 2, ep = 4>

#tokens = #spmd.sharding<@mesh, dp: S(0), ep: S(0)>
#experts = #spmd.sharding<@mesh, ep: S(0)>

func.func @f(%x: tensor<64x2x32xbf16> {{spmd.sharding = #tokens}}, %ids: tensor<64x2xi64> {{spmd.sharding = #tokens}},
             %up: tensor<8x32x48xbf16> {{spmd.sharding = #experts}},
             %down: tensor<8x48x32xbf16> {{spmd.sharding = #experts}})
    -> (tensor<64x2x32xbf16> {{spmd.sharding = #tokens}}) {{
  %order, %counts, %arrivals = experts.route(%ids) {{experts = 8}} : tensor<128xi64>, tensor<8xi64>, tensor<8xi64>
  %sorted = experts.sort_rows(%x, %order) : tensor<128x32xbf16>
  %rows = experts.regroup(%sorted, %counts, %arrivals) : tensor<128x32xbf16>
  %hidden = experts.grouped_mm(%rows, %up, %arrivals) : tensor<128x48xbf16> <{hidden}>
  %out = experts.grouped_mm(%hidden, %down, %arrivals) : tensor<128x32xbf16>
  %home = experts.regroup(%out, %counts, %arrivals) : tensor<128x32xbf16>
  %y = experts.unsort_rows(%home, %order, %ids) : tensor<64x2x32xbf16>
  return %y : tensor<64x2x32xbf16>
}}
"""
"""Tokens are sharded over 8 ranks, so that a rank has 16 rows of 64 bytes. Experts are sharded over 4 ranks."""

ONE_AXIS = "dp: Home(0), ep: Grouped(0)"
TWO_AXES = "dp: Grouped(0), ep: Grouped(0)"
STAGES = ("", ",expand,insert-reshard,lower-reshard", ",expand,insert-reshard,lower-reshard,localize")


def decide(hidden: str, options: str = "", further_passes: str = "") -> ModuleOp:
    module = spmdir.parse(LAYER.format(hidden=hidden))
    return spmdir.run_passes(module, f"propagate{{{options}}}{further_passes}")


@pytest.mark.parametrize("further_passes", STAGES, ids=["decided", "lowered", "local"])
@pytest.mark.parametrize(("hidden", "ranks"), [(ONE_AXIS, 4), (TWO_AXES, 8)])
@pytest.mark.parametrize("imbalance", [1, 1.5])
def test_reports_count_dispatched_rows_at_every_stage(hidden: str, ranks: int, imbalance: float, further_passes: str):
    by_kind = comm_report(decide(hidden, f"imbalance={imbalance}", further_passes)).by_kind
    assert (by_kind["exchange_rows"].count, by_kind["exchange_counts"].count) == (2, 1)
    assert by_kind["exchange_rows"].wire_bytes == 2 * imbalance * 16 * 64 * (ranks - 1) / ranks
    assert by_kind["exchange_counts"].wire_bytes == 8 * 8 * (ranks - 1) / ranks


@pytest.mark.parametrize("hidden", [ONE_AXIS, TWO_AXES])
def test_the_objective_of_the_search_is_the_total_of_the_report(hidden: str):
    report = comm_report(decide(hidden, "certify imbalance=1.5"))
    assert report.certificate is not None
    assert report.objective == pytest.approx(report.certificate.objective)


def test_the_host_copies_the_counts_of_a_route_once():
    by_kind = comm_report(decide(ONE_AXIS)).by_kind
    rows, counts = by_kind["exchange_rows"].seconds / 2, by_kind["exchange_counts"].seconds
    assert counts - rows == pytest.approx(2 * H100X8.host_latency, rel=0.1)
    code = spmdir.lower_to_fx(decide(ONE_AXIS, "", STAGES[2]), 0).code
    assert code.count("host_copy(") == 3  # arrivals, on the host already when rows are exchanged, and counts


def test_work_of_grouped_products_counts_the_imbalance():
    def flops(imbalance: float) -> float:
        ops = comm_report(decide(ONE_AXIS, f"imbalance={imbalance}")).ops
        return sum(op.flops for op in ops if op.kind == "experts.grouped_mm")

    assert flops(1) == 2 * 2 * 128 * 32 * 48 / 8
    assert flops(1.5) == 1.5 * flops(1)
    assert flops(1000) == 4 * flops(1)  # the rank has all rows of its group


def test_the_certificate_states_the_imbalance_and_its_bound_holds_for_balanced_routers():
    balanced, skewed = (
        comm_report(decide(ONE_AXIS, f"certify imbalance={imbalance}")).certificate for imbalance in (1, 1.5)
    )
    assert balanced is not None and skewed is not None
    assert skewed.lower_bound == pytest.approx(balanced.lower_bound)
    assert "assumes that a rank of experts receives at most 1.5 times the rows of a balanced router" in str(skewed)


def test_an_imbalance_below_one_is_an_error():
    with pytest.raises(spmdir.SpmdirError, match=r"cannot be '0\.5'; expected a number from 1 on"):
        decide(ONE_AXIS, "imbalance=0.5")


def test_memory_counts_the_imbalance_and_reports_the_worst_router():
    balanced, skewed = (memory_report(decide(ONE_AXIS, f"imbalance={imbalance}")) for imbalance in (1, 1.5))
    assert skewed.peak_bytes > balanced.peak_bytes
    assert balanced.worst_bytes == skewed.worst_bytes > skewed.peak_bytes
    assert "at most" in str(skewed)
