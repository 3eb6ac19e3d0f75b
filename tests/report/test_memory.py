"""The memory report: what is counted, and that it agrees with what a run of the emitted graph holds."""

from __future__ import annotations

import pytest
import torch

import spmdir
from tests.models import cases
from tests.report.live_bytes import modelled_and_measured, of_text

MESH = "spmd.mesh @mesh <tp = 4>\n"
REPLICATED = "{spmd.sharding = #spmd.sharding<@mesh>}"
ROWS = "{spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}"


def report(body: str) -> spmdir.report.MemoryReport:
    return spmdir.report.memory_report(spmdir.parse(MESH + body))


@pytest.mark.parametrize(
    ("model", "plan"),
    [("llama", "fsdp"), ("gpt2", "tensor_parallel"), ("odd_mixtral", "none"), ("vit", "fsdp_tensor_parallel")],
)
def test_the_peak_of_a_training_step_is_that_of_a_run_of_its_emitted_graph(model: str, plan: str) -> None:
    layout = cases.LAYOUTS["2x4"]
    program = cases.training(model, torch.float32, (4, 8))
    modelled, measured = modelled_and_measured(
        program, layout.mesh, cases.shardings(model, plan, layout) if plan != "none" else {}
    )
    assert modelled == pytest.approx(measured, rel=0.01)


def test_a_view_shares_the_memory_of_its_operand() -> None:
    found = report(f"""
func.func @f(%x: tensor<8x4xf32> {REPLICATED}) -> (tensor<4x8xf32> {REPLICATED}) {{
  %0 = aten.t(%x) : tensor<4x8xf32>
  return %0 : tensor<4x8xf32>
}}""")
    assert found.peak_bytes == 8 * 4 * 4
    assert found.by_class == {"inputs": 128.0}


def test_a_view_that_no_strides_give_is_a_copy() -> None:
    found = report(f"""
func.func @f(%x: tensor<8x4xf32> {REPLICATED}) -> (tensor<32xf32> {REPLICATED}) {{
  %0 = aten.t(%x) : tensor<4x8xf32>
  %1 = aten.view(%0) {{size = [32]}} : tensor<32xf32>
  return %1 : tensor<32xf32>
}}""")
    assert found.by_class == {"inputs": 128.0, "activations": 128.0}


def test_a_value_is_freed_after_its_last_use() -> None:
    found = report(f"""
func.func @f(%x: tensor<8x4xf32> {REPLICATED}) -> (tensor<8x4xf32> {REPLICATED}) {{
  %0 = aten.exp(%x) : tensor<8x4xf32>
  %1 = aten.exp(%0) : tensor<8x4xf32>
  %2 = aten.exp(%1) : tensor<8x4xf32>
  return %2 : tensor<8x4xf32>
}}""")
    assert (found.peak_bytes, found.peak_value) == (3 * 128, "%1")


def test_a_weight_gathered_along_another_dimension_than_the_first_is_received_and_then_unpacked() -> None:
    columns = '{spmd.kind = "parameter", spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}'
    found = report(f"""
func.func @f(%x: tensor<1x8xf32> {REPLICATED}, %w: tensor<8x8xf32> {columns}) -> (tensor<1x8xf32> {REPLICATED}) {{
  %0 = spmd.all_gather %w on [tp] dim 1 : tensor<8x8xf32> <>
  %1 = aten.mm(%x, %0) : tensor<1x8xf32> <>
  return %1 : tensor<1x8xf32>
}}""")
    assert found.by_class == {
        "parameters": 64.0,
        "inputs": 32.0,
        "gathered weights": 256.0,
        "communication buffers": 256.0,
    }
    assert [(one.name, one.bytes) for one in found.top(1)] == [("%0", 256.0)]


@pytest.mark.parametrize(
    ("shape", "before", "step", "after"),
    [
        ("64x32", "", "slice %0 on [tp] dim 0", "tp: S(0)"),
        ("64x32", "", "slice %0 on [tp] dim 1", "tp: S(1)"),
        ("4x32", "", "slice %0 on [tp] dim 1", "tp: S(1)"),
        ("64x32", "tp: P(sum)", "all_reduce %0 on [tp] op sum", ""),
        ("64x32", "tp: S(0)", "all_gather %0 on [tp] dim 1", ""),
        ("64x32", "tp: S(1)", "all_gather %0 on [tp] dim 0", ""),
        ("64x32", "tp: S(1)", "all_to_all %0 on [tp] from 0 to 1", "tp: S(1)"),
    ],
)
def test_a_step_on_a_transposed_value_copies_what_a_run_of_it_copies(
    shape: str, before: str, step: str, after: str
) -> None:
    """A slice of it is a view or one copy of the slice, and a collective first makes all of it contiguous."""
    rows, columns = shape.split("x")
    turned = f"{columns}x{rows}"
    passed = before.translate(str.maketrans("01", "10"))
    given, wanted = (f"{{spmd.sharding = #spmd.sharding<@mesh{', ' if s else ''}{s}>}}" for s in (before, after))
    modelled, measured = of_text(f"""{MESH}
func.func @f(%x: tensor<{shape}xf32> {given}) -> (tensor<{turned}xf32> {wanted}) {{
  %e = aten.neg(%x) : tensor<{shape}xf32> <{before}>
  %0 = aten.t(%e) : tensor<{turned}xf32> <{passed}>
  %1 = spmd.{step} : tensor<{turned}xf32> <{after}>
  return %1 : tensor<{turned}xf32>
}}""")
    assert modelled == measured


@pytest.mark.parametrize(
    ("before", "after"), [("a: S(0), b: S(1)", "a: S(1)"), ("b: S(0)", "a: S(0), b: S(1)"), ("b: S(0)", "a: S(0)")]
)
def test_an_exchange_holds_its_operand_on_ranks_that_keep_chunks_of_it(before: str, after: str) -> None:
    modelled, measured = of_text(f"""
spmd.mesh @mesh <a = 2, b = 4>
func.func @f(%x: tensor<64x64xf32> {{spmd.sharding = #spmd.sharding<@mesh, {before}>}})
    -> (tensor<64x64xf32> {{spmd.sharding = #spmd.sharding<@mesh, {after}>}}) {{
  %0 = aten.neg(%x) : tensor<64x64xf32> <{before}>
  %1 = spmd.exchange %0 : tensor<64x64xf32> <{after}>
  return %1 : tensor<64x64xf32>
}}""")
    assert modelled == measured


@pytest.mark.parametrize(
    ("last_use", "peak"),
    [
        ("%n", 4 * 256),  # the three arguments, and one new value at a time
        ("%w", 4 * 256 + 4),  # the old w is used after the new one, so both are held during the sum
    ],
)
def test_a_new_value_of_the_state_is_written_over_the_old_one_that_nothing_uses_afterwards(
    last_use: str, peak: int
) -> None:
    modelled, measured = of_text(
        MESH
        + f"""
func.func @step(%w: tensor<8x8xf32> {REPLICATED}, %m: tensor<8x8xf32> {REPLICATED}, %x: tensor<8x8xf32> {REPLICATED})
    -> (tensor<8x8xf32> {{spmd.name = "w", spmd.kind = "update", spmd.sharding = #spmd.sharding<@mesh>}},
        tensor<8x8xf32> {{spmd.name = "m", spmd.kind = "update", spmd.sharding = #spmd.sharding<@mesh>}},
        tensor<f32> {REPLICATED}) {{
  %n = aten.add.Tensor(%m, %x) : tensor<8x8xf32> <>
  %v = aten.sub.Tensor(%w, %n) : tensor<8x8xf32> <>
  %s = aten.sum({last_use}) : tensor<f32> <>
  return %v, %n, %s : tensor<8x8xf32>, tensor<8x8xf32>, tensor<f32>
}}"""
    )
    assert modelled == measured == peak


def test_results_are_classed_by_the_arguments_that_they_renew_or_are_gradients_of() -> None:
    found = report(
        """
func.func @step(%w: tensor<8x8xf32>, %m: tensor<8x8xf32>, %x: tensor<8x8xf32>, %b: tensor<8x8xf32>)
    -> (tensor<8x8xf32> {spmd.name = "w"}, tensor<8x8xf32> {spmd.name = "m"}, tensor<8x8xf32> {spmd.name = "b"}) {
  %0 = aten.mm(%x, %w) : tensor<8x8xf32> <>
  %g = aten.mm(%x, %0) : tensor<8x8xf32> <>
  %n = aten.add.Tensor(%m, %g) : tensor<8x8xf32> <>
  %v = aten.sub.Tensor(%w, %n) : tensor<8x8xf32> <>
  %h = aten.mm(%b, %x) : tensor<8x8xf32> <>
  return %v, %n, %h : tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>
}""".replace(">, %", f"> {REPLICATED}, %").replace(">)\n", f"> {REPLICATED})\n")
    )
    assert {one.name: one.kind for one in found.holders} == {
        "w": "parameters",
        "m": "optimizer state",
        "x": "inputs",
        "b": "parameters",
        "%n": "optimizer state",
        "%v": "parameters",
        "%h": "gradients",
    }


def test_the_report_prints_the_peak_its_classes_and_the_largest_holders() -> None:
    found = report(f"""
func.func @f(%x: tensor<8x4xf32> {REPLICATED}) -> (tensor<8x4xf32> {REPLICATED}) {{
  %0 = aten.exp(%x) : tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}}""")
    assert str(found).splitlines() == [
        "peak of live memory of a rank 256 B, at %0",
        "  inputs                    128 B",
        "  activations               128 B",
        "largest",
        "  x       128 B  inputs",
        "  %0      128 B  activations",
    ]


@pytest.mark.parametrize(
    ("step", "before", "after"),
    [
        ("all_gather %x, %y on [tp] dim 0", "tp: S(0)", ""),
        ("all_gather %x, %y on [tp] dim 1", "tp: S(1)", ""),
        ("reduce_scatter %x, %y on [tp] dim 0 op sum", "tp: P(sum)", "tp: S(0)"),
        ("reduce_scatter %x, %y on [tp] dim 1 op sum", "tp: P(sum)", "tp: S(1)"),
        ("all_reduce %x, %y on [tp] op sum", "tp: P(sum)", ""),
        ("all_to_all %x, %y on [tp] from 0 to 1", "tp: S(0)", "tp: S(1)"),
        ("all_to_all %x, %y on [tp] from 1 to 0", "tp: S(1)", "tp: S(0)"),
        ("exchange %x, %y", "tp: S(0)", "tp: S(1)"),
        ("exchange %x, %y", "tp: P(sum)", "tp: S(1)"),
    ],
)
def test_a_bucket_holds_what_a_run_of_it_holds(step: str, before: str, after: str) -> None:
    given, wanted = (f"{{spmd.sharding = #spmd.sharding<@mesh{', ' if s else ''}{s}>}}" for s in (before, after))
    small, large = "tensor<64x64xf32>", "tensor<128x64xf32>"
    modelled, measured = of_text(f"""{MESH}
func.func @f(%x: {small} {given}, %y: {large} {given}) -> ({small} {wanted}, {large} {wanted}) {{
  %0, %1 = spmd.{step} : {small} <{after}>, {large} <{after}>
  return %0, %1 : {small}, {large}
}}""")
    assert modelled == measured
