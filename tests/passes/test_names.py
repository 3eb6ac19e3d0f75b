"""Passes leave names alone: what they insert is named after the value that it is made of."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from spmdir.dialects import ir
from spmdir.dialects.names import keep_name
from spmdir.pipeline.pipeline import run_passes

EXAMPLE = (Path(__file__).parents[2] / "examples" / "mlp.mlir").read_text()
PIPELINE = ("insert-reshard", "lower-reshard", "fuse-collectives", "localize")

NAMED = """spmd.mesh @mesh <dp = 2, tp = 2>
func.func @main(%x: tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(0)>},
                %w: tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<8x6xf32> {
  %mul_3 = aten.mul.Tensor(%x, %x) : tensor<8x4xf32> <dp: S(0), tp: S(0)>
  %mul_4 = aten.relu(%mul_3) : tensor<8x4xf32> <dp: S(0)>
  %mul_4.reshard = aten.tanh(%mul_4) : tensor<8x4xf32> <dp: S(0), tp: S(1)>
  %5 = aten.mm(%mul_4.reshard, %w) : tensor<8x6xf32> <dp: S(0)>
  %3 = aten.exp(%5) : tensor<8x6xf32> <dp: S(0), tp: S(1)>
  return %3 : tensor<8x6xf32>
}
"""


def defined(text: str) -> dict[str, str]:
    """Name of each value → the op that makes it."""
    return dict(re.findall(r"%([\w.]+) = ([\w.]+)", text))


def test_a_value_has_no_name_that_text_cannot_spell() -> None:
    module = ir.parse(NAMED)
    argument, *_ = ir.main_function(module).args
    keep_name(argument, "gr\u00f6\u00dfe")
    assert ir.print_ir(ir.parse(ir.print_ir(module))) == ir.print_ir(module)


@pytest.mark.parametrize("source", [EXAMPLE, NAMED], ids=["numbers", "names"])
def test_a_pass_renames_no_value(source: str) -> None:
    module = run_passes(ir.parse(source), "propagate,expand")
    for name in PIPELINE:
        before = defined(ir.print_ir(module))
        after = defined(ir.print_ir(run_passes(module, name)))
        kept = {value: op for value, op in before.items() if not op.startswith("spmd.")}
        assert kept.items() <= after.items()
        assert all("." in value for value in after.keys() - before.keys())


def test_a_pass_changes_no_line_but_those_that_it_inserts_and_their_users() -> None:
    before = ir.print_ir(ir.parse(NAMED)).splitlines()
    after = ir.print_ir(run_passes(ir.parse(NAMED), "insert-reshard")).splitlines()
    changed = [line for line in after if line not in before and "spmd.stage" not in line]
    assert changed[:4] == [
        "  %mul_3.reshard = spmd.reshard %mul_3 : tensor<8x4xf32> <dp: S(0)>",
        "  %mul_4 = aten.relu(%mul_3.reshard) : tensor<8x4xf32> <dp: S(0)>",
        "  %mul_4.reshard_1 = spmd.reshard %mul_4 : tensor<8x4xf32> <dp: S(0), tp: S(1)>",
        "  %mul_4.reshard = aten.tanh(%mul_4.reshard_1) : tensor<8x4xf32> <dp: S(0), tp: S(1)>",
    ]


def test_a_program_has_the_same_names_whether_it_is_printed_between_passes_or_not() -> None:
    at_once = ir.print_ir(run_passes(ir.parse(EXAMPLE), ",".join(("propagate", *PIPELINE))))
    text = EXAMPLE
    for name in ("propagate", *PIPELINE):
        text = ir.print_ir(run_passes(ir.parse(text), name))
    assert text == at_once


def test_a_value_that_a_pass_left_without_a_name_takes_no_number_of_the_text() -> None:
    module = ir.parse(EXAMPLE)
    first = next(op for op in ir.main_function(module).body.block.ops if op.results)
    first.results[0].name_hint = None
    assert list(defined(ir.print_ir(module))) == ["3", "1", "2"]
