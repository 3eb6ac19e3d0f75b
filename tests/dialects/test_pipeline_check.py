"""Pipelined steps that are not well formed: each error names the fault and its place."""

from __future__ import annotations

import pytest

from spmdir.core.errors import SpmdirError
from spmdir.dialects import ir

TEXT = """spmd.mesh @mesh <tp = 2>

func.func private @f0(%x: tensor<2x4xf32>, %parameters.a: tensor<4xf32>) -> (tensor<2x4xf32> {spmd.name = "y"}) {
  %0 = aten.mul.Tensor(%x, %parameters.a) : tensor<2x4xf32>
  return %0 : tensor<2x4xf32>
}

func.func private @f1(%y: tensor<2x4xf32>, %loss: tensor<f32>) -> (tensor<f32> {spmd.name = "loss"}) {
  %0 = aten.sum(%y) : tensor<f32>
  %1 = aten.add.Tensor(%loss, %0) : tensor<f32>
  return %1 : tensor<f32>
}

func.func private @nothing() {
  return
}

spmd.pipeline @step over pp = 2 micro 2 {
  batch x
  state parameters
  sums loss
  outputs loss
  stage 0 at 0: F @f0, B @nothing
  stage 1 at 1: F @f1, B @nothing
  order
    0F0 0F0>1 0F1 1F0 0F1>1 1F1 0B0 1B0 0B1 1B1
}
"""


def test_a_well_formed_step_is_printed_as_it_was_read() -> None:
    assert ir.print_ir(ir.parse(TEXT)) == TEXT
    generic = ir.print_ir(ir.parse(TEXT), generic=True)
    assert ir.print_ir(ir.parse(generic)) == TEXT


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("1F0 0F1>1", "0F1>1 0F1>1", "step.mlir:26:25: error: 0F1>1 is in the order twice"),
        (" 0F1>1", "", "step.mlir:18:1: error: the order has no 0F1>1"),
        ("0F1>1 1F1", "1F1 0F1>1", "step.mlir:26:23: error: 1F1 comes before 0F1>1"),
        ("1 at 1", "1 at 0", "step.mlir:18:1: error: coordinate 1 has no stage"),
        ("1 at 1", "1 at 2", "step.mlir:18:1: error: stage 1 is at 2; expected a coordinate from 0 to 1"),
        ("F @f1, B", "F @f2, B", "step.mlir:24:3: error: stage 1 runs @f2; expected a function of the module"),
        (
            "F @f1, B @nothing",
            "F @f1",
            "step.mlir:24:3: error: stage 1 has functions of the kinds F; expected one of each",
        ),
        ('name = "y"', 'name = "z"', "step.mlir:3:1: error: no function uses the result 'z' of @f0"),
        (
            "f1(%y: tensor<2x4xf32>",
            "f1(%y: tensor<4x2xf32>",
            "step.mlir:8:1: error: 'y' is tensor<4x2xf32> in @f1, but",
        ),
        ("state parameters", "state other", "step.mlir:3:1: error: no function computes the argument 'parameters.a'"),
        ("outputs loss", "outputs parameters", "step.mlir:18:1: error: no update computes the output 'parameters'"),
        ("outputs loss", "outputs losses", "step.mlir:18:1: error: no update computes the output 'losses'"),
        (
            "f1, B @nothing",
            "f1, B @f1",
            "step.mlir:8:1: error: @f1 uses 'loss', which @f1 changes for each micro-batch",
        ),
        (
            "(%x: tensor<2x4xf32>, %parameters.a: tensor<4xf32>)",
            '(%x: tensor<2x4xf32>, %parameters.a: tensor<2x4xf32> {spmd.name = "x"})',
            "step.mlir:3:1: error: @f0 has several arguments 'x'; expected a different name for each",
        ),
        (
            "state parameters\n  sums loss",
            "state parameters, loss",
            "step.mlir:18:1: error: 'loss' is listed in `state`, but each micro-batch changes it, and the update",
        ),
        (
            "state parameters\n  sums loss",
            "sums parameters, loss",
            "step.mlir:18:1: error: 'parameters.a' is listed in `sums`, so it is set to 0 when a step starts",
        ),
        ("micro 2", "micro 0", "step.mlir:18:1: error: the step has 0 micro-batches"),
        ("0B0", "0C0", "step.mlir:26:33: error: invalid entry '0C0'"),
    ],
)
def test_each_fault_has_a_place(old: str, new: str, message: str) -> None:
    assert old in TEXT
    with pytest.raises(SpmdirError) as raised:
        ir.parse(TEXT.replace(old, new), "step.mlir")
    assert message in str(raised.value)


def test_a_module_has_one_step() -> None:
    step = TEXT[TEXT.index("spmd.pipeline") :]
    with pytest.raises(SpmdirError, match=r"the module has 2 spmd.pipeline ops; expected one"):
        ir.parse(TEXT + step.replace("@step", "@other"))
