"""What the communication report adds up."""

from __future__ import annotations

from pathlib import Path

import pytest

from spmdir.core.errors import UnsupportedError
from spmdir.dialects import ir
from spmdir.pipeline.pipeline import Pipeline, run_passes
from spmdir.report.communication import comm_report
from spmdir.report.op_sums import Share
from spmdir.reshard.plan import plan_reshard

PROGRAM = """spmd.mesh @mesh <dp = 2, tp = 4>

func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: P(sum), tp: S(0)>})
    -> (tensor<16x8xf32>, tensor<16x8xf32>) {
  %a = spmd.all_gather %x on [tp] dim 0 : tensor<16x8xf32> <dp: P(sum)>
  %b = spmd.all_reduce %a on [dp] op sum : tensor<16x8xf32> <>
  %c = spmd.slice %b on [dp] dim 0 : tensor<16x8xf32> <dp: S(0)>
  %d = aten.relu(%c) : tensor<16x8xf32> <dp: S(0)>
  %e = spmd.all_to_all %d on [dp] from 0 to 1 : tensor<16x8xf32> <dp: S(1)>
  return %b, %e : tensor<16x8xf32>, tensor<16x8xf32>
}
"""
S = 16 * 8 * 4


def test_collectives_add_up_by_kind_and_by_axis_and_local_ops_are_free() -> None:
    report = comm_report(ir.parse(PROGRAM))
    gathered, reduced, exchanged = 3 / 4 * S, 2 * 1 / 2 * S, 1 / 2 * S / 2
    assert report.count == 3
    assert report.wire_bytes == gathered + reduced + exchanged
    assert {kind: share.wire_bytes for kind, share in report.by_kind.items()} == {
        "all_gather": gathered, "all_reduce": reduced, "all_to_all": exchanged,
    }  # fmt: skip
    assert {axes: share.count for axes, share in report.by_axis.items()} == {("dp",): 2, ("tp",): 1}
    assert sum(report.by_kind.values(), Share()).seconds == pytest.approx(report.seconds)


def test_the_bound_counts_each_resharded_value_once_with_what_it_needs_most() -> None:
    bounds = [
        plan_reshard((16, 8), "f32", "dp: P(sum), tp: S(0)", "", ir.mesh(ir.parse(PROGRAM))).lower_bound,
        plan_reshard((16, 8), "f32", "dp: S(0)", "dp: S(1)", ir.mesh(ir.parse(PROGRAM))).lower_bound,
    ]
    assert comm_report(ir.parse(PROGRAM)).lower_bound == sum(bound for bound in bounds if bound is not None)


def test_the_report_is_the_same_after_localize() -> None:
    before, after = comm_report(ir.parse(PROGRAM)), comm_report(run_passes(ir.parse(PROGRAM), "localize"))
    assert before == after


def test_uneven_shards_count_as_the_largest_and_the_report_is_the_same_after_localize() -> None:
    text = """spmd.mesh @mesh <dp = 3>
func.func @main(%x: tensor<10xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> tensor<10xf32> {
  %a = spmd.all_gather %x on [dp] dim 0 : tensor<10xf32> <>
  return %a : tensor<10xf32>
}
"""
    assert comm_report(ir.parse(text)).wire_bytes == 2 * 4 * 4
    assert comm_report(run_passes(ir.parse(text), "localize")) == comm_report(ir.parse(text))


def test_the_text_is_a_table() -> None:
    assert str(comm_report(ir.parse(PROGRAM), "cpu-gloo")).splitlines() == [
        "collective  axes  count      sent      ms  time from",
        "all_gather            1     384 B   1.601  cpu-gloo",
        "all_reduce            1     512 B   1.101  cpu-gloo",
        "all_to_all            1     128 B  0.6102  cpu-gloo",
        "            dp        2     640 B   1.711  cpu-gloo",
        "            tp        1     384 B   1.601  cpu-gloo",
        "total                 3  1.024 kB   3.312  cpu-gloo",
        "lower bound for these reshards 640 B, 1.60x",
        "compute    count        ms  share  time from",
        "aten.relu      1    0.0101   0.3%  cpu-gloo",
        "inputs         1  2.56e-05   0.0%  cpu-gloo",
        "total          2   0.01013   0.3%  cpu-gloo",
        "objective 3.322 ms",
    ]


def test_a_topology_by_name_changes_seconds_only() -> None:
    fast, slow = comm_report(ir.parse(PROGRAM), "h100x8"), comm_report(ir.parse(PROGRAM), "cpu-gloo")
    assert fast.seconds < slow.seconds
    assert fast.wire_bytes == slow.wire_bytes
    with pytest.raises(UnsupportedError, match=r"unknown topology 'h100'; expected one of .*did you mean 'h100x8'"):
        comm_report(ir.parse(PROGRAM), "h100")


@pytest.mark.parametrize("topology", ["h100x8", "cpu-gloo", "flat"])
@pytest.mark.parametrize("product", ["", " <tp: P(sum)>"])
def test_compute_and_communication_are_what_propagate_minimised_at_every_stage(topology: str, product: str) -> None:
    module = ir.parse(f"""spmd.mesh @mesh <tp = 4>
func.func @f(%a: tensor<512x512xbf16> {{spmd.sharding = #spmd.sharding<@mesh>}},
             %b: tensor<512x512xbf16> {{spmd.sharding = #spmd.sharding<@mesh>}})
    -> (tensor<512x512xbf16> {{spmd.sharding = #spmd.sharding<@mesh>}}) {{
  %0 = aten.mm(%a, %b) : tensor<512x512xbf16>{product}
  %1 = aten.mul.Tensor(%0, %0) : tensor<512x512xbf16>
  %2 = aten.exp(%1) : tensor<512x512xbf16>
  return %2 : tensor<512x512xbf16>
}}""")
    decided = comm_report(run_passes(module, f"propagate{{topology={topology} effort=1}}"))
    lowered = comm_report(run_passes(module, "expand,insert-reshard,lower-reshard"))
    for report in (decided, lowered):
        computed = sum(share.seconds for share in report.compute.values())
        assert report.objective == pytest.approx(computed + report.seconds)
    assert decided == lowered and decided.compute == lowered.compute
    says = str(decided).endswith("counted after expand, insert-reshard, lower-reshard on a copy of the program")
    assert (says, lowered.lowered) == (lowered.count > 0, ())


UNEVEN = """spmd.mesh @mesh <a = 2, b = 4>
func.func @f(%x: tensor<10x2048x2048xf32> {spmd.sharding = #spmd.sharding<@mesh, a: S(0), b: S(0)>},
             %y: tensor<10x2048x2048xf32> {spmd.sharding = #spmd.sharding<@mesh, a: S(0), b: S(0)>})
    -> (tensor<10x2048x2048xf32> {spmd.sharding = #spmd.sharding<@mesh, a: S(0), b: S(0)>}) {
  %0 = aten.bmm(%x, %y) : tensor<10x2048x2048xf32>
  return %0 : tensor<10x2048x2048xf32>
}"""
RETURNED_INSIDE_A_CHAIN = """spmd.mesh @mesh <tp = 4>
func.func @f(%x: tensor<f32> {spmd.sharding = #spmd.sharding<@mesh>},
             %w: tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh>})
    -> (tensor<f32>, tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh>}) {
  %0 = aten.exp(%x) : tensor<f32>
  %1 = aten.mul.Tensor(%w, %0) : tensor<64x64xf32>
  return %0, %1 : tensor<f32>, tensor<64x64xf32>
}"""
ABSENT_RESULTS = """spmd.mesh @mesh <a = 2>
func.func @f(%dy: tensor<4x6xf32>, %x: tensor<4x6xf32>, %mean: tensor<4x1xf32>, %rstd: tensor<4x1xf32>,
             %w: tensor<6xf32>, %b: tensor<6xf32>) -> tensor<4x6xf32> {
  %dx, %dw, %db = aten.native_layer_norm_backward(%dy, %x, %mean, %rstd, %w, %b) \
{normalized_shape = [6], output_mask = [true, false, false]} : tensor<4x6xf32>, none, none
  return %dx : tensor<4x6xf32>
}"""


@pytest.mark.parametrize("text", [UNEVEN, RETURNED_INSIDE_A_CHAIN, ABSENT_RESULTS])
def test_both_tables_add_up_to_the_objective(text: str) -> None:
    report = comm_report(run_passes(ir.parse(text), "propagate,insert-reshard,lower-reshard"))
    assert report.seconds + sum(share.seconds for share in report.compute.values()) == pytest.approx(report.objective)
    assert report.compute


def test_the_functions_of_a_module_add_up() -> None:
    head, function = UNEVEN.split("\n", 1)
    one, two = (
        comm_report(run_passes(ir.parse(text), "propagate"))
        for text in (UNEVEN, "\n".join((head, function, function.replace("@f", "@main"))))
    )
    assert {kind: 2 * share.seconds for kind, share in one.compute.items()} == pytest.approx(
        {kind: share.seconds for kind, share in two.compute.items()}
    )
    assert one.objective and two.objective == pytest.approx(2 * one.objective)


def test_a_measured_op_is_priced_by_its_line(tmp_path: Path) -> None:
    (tmp_path / "own.costs").write_text("\naten.mm f32[4,8] f32[8,8] = 0.5\n")
    module = ir.parse("""spmd.mesh @mesh <tp = 4>
func.func @f(%a: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>},
             %b: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<16x8xf32> {
  %0 = aten.mm(%a, %b) : tensor<16x8xf32> <tp: S(0)>
  return %0 : tensor<16x8xf32>
}""")
    report = comm_report(module, pipeline=Pipeline(costs=tmp_path / "own.costs"))
    assert list(report.compute) == ["aten.mm", "inputs"]
    assert (report.compute["aten.mm"].seconds, report.compute["aten.mm"].prices) == (0.5, (f"{tmp_path}/own.costs:2",))
    assert report.compute["inputs"].prices == ("h100x8",)


def test_what_is_not_decided_is_said() -> None:
    text = """spmd.mesh @mesh <tp = 4>
func.func @f(%a: tensor<16x8xf32>) -> tensor<16x8xf32> {
  return %a : tensor<16x8xf32>
}"""
    assert str(comm_report(ir.parse(text))).endswith("not counted: some values have no sharding; run propagate")
