"""Propagation again of what was propagated decides nothing anew."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from spmdir.core.errors import SpmdirWarning
from spmdir.dialects import ir
from spmdir.pipeline.pipeline import Pipeline, run_passes
from spmdir.report.communication import comm_report
from spmdir.tools.golden import read_golden

GOLDEN = Path(__file__).parents[1] / "golden" / "propagate"
PROGRAMS = [
    pytest.param(part, id=f"{path.stem}-{number}")
    for path in sorted(GOLDEN.glob("*.mlir"))
    if "--verify-diagnostics" not in path.read_text()
    for number, part in enumerate(read_golden(path.read_text(), str(path)).sources)
]


@pytest.mark.parametrize("text", PROGRAMS)
def test_propagating_twice_gives_the_text_of_propagating_once(text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpmdirWarning)
        once = ir.print_ir(run_passes(ir.parse(text), "propagate"))
        assert ir.print_ir(run_passes(ir.parse(once), "propagate")) == once


@pytest.mark.parametrize("text", PROGRAMS)
def test_what_propagate_needs_is_what_insert_reshard_gives(text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpmdirWarning)
        module = run_passes(
            ir.parse(text), "propagate,bind-sizes{examples},verify-spmd{before-reshard},insert-reshard,verify-spmd"
        )
    assert " needs (" not in ir.print_ir(module)


@pytest.mark.parametrize(("effort", "end"), [(1, "1 turn, effort used up"), (100, "turns, near its own bound")])
def test_it_says_how_the_search_ended_on_each_block_of_axes(
    effort: int, end: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """spmd.mesh @mesh <a = 2, b = 2>
func.func @f(%x: tensor<64x512xf32>, %w: tensor<512x512xf32>, %v: tensor<512x64xf32>)
    -> (tensor<64x64xf32>, tensor<512x512xf32>) {
  %0 = aten.mm(%x, %w) : tensor<64x512xf32>
  %1 = aten.softmax.int(%0) {dim = -1} : tensor<64x512xf32>
  %2 = aten.t(%1) : tensor<512x64xf32>
  %3 = aten.mm(%2, %0) : tensor<512x512xf32>
  %4 = aten.mm(%3, %v) : tensor<512x64xf32>
  %5 = aten.mm(%1, %4) : tensor<64x64xf32>
  return %5, %3 : tensor<64x64xf32>, tensor<512x512xf32>
}
"""
    run_passes(ir.parse(text, "in.mlir"), f"propagate{{remarks effort={effort}}}")
    said = capsys.readouterr().err
    assert said.startswith(f"in.mlir:2:1: remark: searched in at most {effort} turns: axes a, b: ")
    assert said.endswith(f"{end}\n")


@pytest.mark.parametrize(
    "lines",
    [
        "reduce_scatter 4 ranks 1024 bytes = 100e-6\nreduce_scatter 4 ranks 24576 bytes = 5e-6",
        "reduce_scatter 4 ranks 1 bytes = 1000000\nreduce_scatter 4 ranks 100 bytes = 1e-9",
    ],
)
def test_times_that_are_measured_on_no_line_are_decided_by_as_they_are(lines: str, tmp_path: Path) -> None:
    text = """spmd.mesh @mesh <dp = 2, tp = 4>
func.func @mlp(%x: tensor<16x1024xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>},
               %w1: tensor<1024x4096xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>},
               %w2: tensor<4096x1024xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> RESULT {
  %0 = aten.mm(%x, %w1) : tensor<16x4096xf32>
  %1 = aten.gelu(%0) {approximate = "none"} : tensor<16x4096xf32>
  %2 = aten.mm(%1, %w2) : tensor<16x1024xf32>
  return %2 : tensor<16x1024xf32>
}
"""
    result, sharded = "tensor<16x1024xf32>", "{spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(0)>}"
    (tmp_path / "costs.txt").write_text(lines)
    pipeline, priced = (Pipeline(text, costs=tmp_path / "costs.txt") for text in ("propagate", ""))
    free, annotated = (
        comm_report(run_passes(ir.parse(text.replace("RESULT", of)), pipeline), pipeline=priced)
        for of in (result, f"({result} {sharded})")
    )
    assert free.objective is not None and annotated.objective is not None
    assert free.objective <= annotated.objective
