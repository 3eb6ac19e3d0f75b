"""What each op and each line of source costs, what bounds it, and where that is from."""

from __future__ import annotations

import attrs
import pytest
from xdsl.dialects.builtin import ModuleOp

from spmdir.dialects import ir
from spmdir.pipeline.pipeline import run_passes
from spmdir.report.communication import CommReport, comm_report
from spmdir.report.cost_rows import CostRow
from spmdir.report.grouped_costs import cost_table
from spmdir.report.op_costs import OpCost
from spmdir.report.op_sums import Share
from spmdir.reshard.measured_times import parse_costs
from spmdir.reshard.topology import H100X8, Topology

PROGRAM = """spmd.mesh @mesh <tp = 4>
func.func @f(%a: tensor<4096x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh>},
             %b: tensor<4096x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh>})
    -> (tensor<4096x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh>}) {
  %0 = aten.mm(%a, %b) : tensor<4096x4096xbf16> <tp: S(0)>
  %1 = aten.relu(%0) : tensor<4096x4096xbf16> <tp: S(0)>
  %2 = aten.sum(%1) : tensor<bf16>
  %3 = aten.add.Tensor(%1, %2) : tensor<4096x4096xbf16>
  return %3 : tensor<4096x4096xbf16>
}
"""


@pytest.fixture(scope="module")
def report() -> CommReport:
    return report_on(H100X8)


def decided() -> ModuleOp:
    return run_passes(ir.parse(PROGRAM, "in.mlir"), "propagate{effort=1},insert-reshard,lower-reshard")


def report_on(topology: Topology) -> CommReport:
    return comm_report(decided(), topology)


def test_each_op_has_its_time_its_work_on_a_rank_and_what_bounds_it(report: CommReport) -> None:
    found = {(op.kind, op.name): op for op in report.ops}
    product, size = found["aten.mm", "%0"], 2 * 4096 * 4096
    assert product.flops == 2 * 4096**3 / 4
    assert product.traffic == size / 4 + size + size / 4
    assert product.seconds == pytest.approx(2e-6 + product.flops / H100X8.peak("bf16"))
    assert (product.bound, product.line, product.share.prices) == ("compute", "in.mlir:5", ("h100x8",))
    assert found["inputs", "%a"].bound == "memory" and found["inputs", "%a"].traffic == size
    sending = next(op for op in report.ops if op.kind == "all_gather")
    assert (sending.bound, sending.share.wire_bytes, sending.axes) == ("network", 3 / 4 * size, ("tp",))


def test_they_add_up_to_the_objective_and_the_longest_come_first(report: CommReport) -> None:
    seconds = [op.seconds for op in report.ops]
    assert sum(seconds) == pytest.approx(report.objective)
    assert seconds == sorted(seconds, reverse=True)


@pytest.mark.parametrize("by", ["op", "line"])
def test_a_table_has_so_many_rows_and_the_others_in_one(by: str) -> None:
    everything, short = (str(cost_table(decided(), by, rows=rows)).splitlines() for rows in (None, 2))
    assert len(everything) > 5 == len(short)
    assert everything.pop() == short.pop()  # the totals
    assert short[0].split() == everything[0].split() and short[-1].startswith("others")
    assert not any(line.startswith("others") for line in everything)


def test_lines_of_source_add_up_their_ops() -> None:
    table = cost_table(decided(), "line")
    lines = {row.split()[0]: row.split() for row in str(table).splitlines()[1:]}
    here = [op for op in table.ops if op.line == "in.mlir:5"]
    assert (lines["in.mlir:5"][1], float(lines["in.mlir:5"][2])) == (
        str(len(here)),
        pytest.approx(1e3 * sum(op.seconds for op in here), rel=1e-3),
    )


def test_a_measured_time_names_its_line(report: CommReport) -> None:
    costs = parse_costs("aten.mm bf16[1024,4096] bf16[4096,4096] = 9e-5", "costs.txt")
    measured = next(op for op in report_on(attrs.evolve(H100X8, costs=costs)).ops if op.kind == "aten.mm")
    assert (measured.seconds, measured.bound, measured.share.prices) == (9e-5, "measured", ("costs.txt:1",))


def test_rows_of_several_ops_say_what_bounds_most_of_their_time() -> None:
    def op(seconds: float, bound: str) -> OpCost:
        return OpCost("x", "aten.relu", None, Share(1, 0.0, seconds, ("h100x8",)), 0.0, 0.0, bound)

    found = CostRow(("here",), (op(3e-3, "compute"), op(2e-3, "network"), op(2e-3, "network")))
    assert found.bound == "network"
