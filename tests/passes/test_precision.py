"""Where the order of additions would show: sums narrower than a program in f64."""

import pytest

from spmdir.core.placement.standard import Shard
from spmdir.dialects import ir
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import sharding_of
from spmdir.pipeline.pipeline import run_passes

NORM = """
spmd.mesh @mesh <a = 2>
func.func @main(%x: tensor<1x8x{wide}> {{spmd.sharding = #spmd.sharding<@mesh, a: S(1)>}}) -> tensor<1x1x{narrow}> {{
  %0 = aten._to_copy(%x) {{dtype = {narrow}}} : tensor<1x8x{narrow}>
  %1 = aten.mean.dim(%0) {{dim = [-1], keepdim = true}} : tensor<1x1x{narrow}>
  return %1 : tensor<1x1x{narrow}>
}}
"""


@pytest.mark.parametrize(
    ("wide", "narrow", "split"), [("f64", "f32", False), ("f64", "f64", True), ("f32", "bf16", True)]
)
def test_a_sum_narrower_than_a_program_in_f64_is_not_split(wide, narrow, split):
    module = ir.parse(NORM.format(wide=wide, narrow=narrow))
    run_passes(module, "propagate{topology=flat},expand")
    values = [r for op in ir.main_function(module).body.block.ops if isinstance(op, ValueOp) for r in op.results]
    assert any(sharding_of(value).partial for value in values) == split


def test_a_sum_that_the_user_splits_is_split_in_any_precision():
    text = NORM.format(wide="f64", narrow="f32").replace("mean.dim", "sum.dim_IntList")
    text = text.replace("true} : tensor<1x1xf32>", "true} : tensor<1x1xf32> <a: P(sum)>")
    module = ir.parse(text)
    run_passes(module, "propagate,insert-reshard,verify-spmd")
    assert "P(sum)" in ir.print_ir(module)


COLUMNS = """
spmd.mesh @mesh <a = 2>
func.func @main(%x: tensor<3x64x{wide}> {{spmd.sharding = #spmd.sharding<@mesh, a: S(1)>}}) -> tensor<64x{narrow}> {{
  %0 = aten._to_copy(%x) {{dtype = {narrow}}} : tensor<3x64x{narrow}>
  %1 = aten.{op} : tensor<64x{narrow}>
  return %1 : tensor<64x{narrow}>
}}
"""


@pytest.mark.parametrize("op", ["sum.dim_IntList(%0) {dim = [0]}", 'einsum([%0, %0]) {equation = "ij,ij->j"}'])
def test_columns_are_sharded_where_the_order_of_adding_cannot_show(op):
    sharded = {}
    for wide, narrow in (("f64", "f32"), ("f64", "f64"), ("f32", "f32")):
        module = ir.parse(COLUMNS.format(wide=wide, narrow=narrow, op=op))
        run_passes(module, "propagate")
        total = list(ir.main_function(module).body.block.ops)[-2]
        sharded[wide, narrow] = isinstance(sharding_of(total.results[0])["a"], Shard)
    assert sharded == {("f64", "f32"): op.startswith("einsum"), ("f64", "f64"): True, ("f32", "f32"): True}
