"""Passes that only look at the program, or take it back to what it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from spmdir.core.errors import ShardingError, SpmdirErrors, UnsupportedError
from spmdir.dialects import ir
from spmdir.pipeline.pipeline import run_passes

EXAMPLE = (Path(__file__).parents[2] / "examples" / "mlp.mlir").read_text()
WAY = "propagate,insert-reshard,lower-reshard,fuse-collectives"


def test_noted_rules_are_read_back() -> None:
    text = ir.print_ir(run_passes(ir.parse(EXAMPLE), "print-rules"))
    assert "attributes {spmd.rule = " in text
    assert ir.print_ir(ir.parse(text)) == text
    assert ir.print_ir(ir.parse(ir.print_ir(ir.parse(text), generic=True))) == text


def test_a_partitioned_program_is_well_typed_and_strips_to_the_single_device_program() -> None:
    single = ir.print_ir(run_passes(ir.parse(EXAMPLE), "strip-spmd"))
    partitioned = run_passes(ir.parse(EXAMPLE), f"{WAY},verify-spmd")
    assert ir.print_ir(partitioned) != single
    assert ir.print_ir(run_passes(partitioned, "strip-spmd")) == single


@pytest.mark.parametrize("name", ["lower-reshard", "fuse-collectives", "print-rules", "strip-spmd"])
def test_passes_on_global_types_reject_local_ones(name: str) -> None:
    module = run_passes(ir.parse(EXAMPLE), f"{WAY},localize")
    with pytest.raises(UnsupportedError, match=f"run {name} before localize"):
        run_passes(module, name)


def test_verify_names_every_ill_typed_op() -> None:
    text = """spmd.mesh @mesh <tp = 2>
func.func @main(%x: tensor<4xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> tensor<4xf32> {
  %a = aten.exp(%x) : tensor<4xf32> <tp: P(sum)>
  %b = aten.sqrt(%a) : tensor<4xf32> <>
  return %b : tensor<4xf32>
}
"""
    with pytest.raises(SpmdirErrors) as raised:
        run_passes(ir.parse(text, "in.mlir"), "verify-spmd")
    assert [(error.location.line, type(error)) for error in raised.value.errors if error.location] == [
        (3, ShardingError),
        (4, ShardingError),
    ]
