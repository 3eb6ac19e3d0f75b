"""A program that is lowered to the graph of one rank is read back as an equal program."""

from __future__ import annotations

import pytest
import torch

import spmdir
from spmdir.core.placement.tensor import TensorMeta
from spmdir.dialects import ir
from spmdir.dialects.attributes import meta_of
from spmdir.dialects.values import sharding_of
from spmdir.pipeline.pipeline import Pipeline
from spmdir.pipeline.remaining_passes import localize
from spmdir.torch_interop.dtypes import TORCH_DTYPES
from tests.read_back.rank_graphs import random_inputs

HEAD = "spmd.mesh @mesh <dp = 2, tp = 2>\n\n"
MLP = """func.func @f(%x: tensor<8x8xf64> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>},
             %w1: tensor<8x12xf64> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>},
             %w2: tensor<12x8xf64> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<8x8xf64> {
  %0 = aten.mm(%x, %w1) : tensor<8x12xf64>
  %1 = aten.gelu(%0) : tensor<8x12xf64>
  %2 = aten.mm(%1, %w2) : tensor<8x8xf64>
  return %2 : tensor<8x8xf64>
}
"""
SOFTMAX = """func.func @f(%x: tensor<4x6x8xf64> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(1)>},
             %w: tensor<8x16xf64> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>},
             %o: tensor<16x8xf64> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<4x6x8xf64> {
  %0 = aten.einsum([%x, %w]) {equation = "bsh,hf->bsf"} : tensor<4x6x16xf64>
  %1 = aten._softmax(%0) {dim = 2, half_to_float = false} : tensor<4x6x16xf64> <dp: S(0), tp: S(2)>
  %2 = aten.einsum([%1, %o]) {equation = "bsh,hf->bsf"} : tensor<4x6x8xf64>
  %3 = aten.add.Tensor(%2, %x) : tensor<4x6x8xf64>
  return %3 : tensor<4x6x8xf64>
}
"""
FSDP = """func.func @f(%x: tensor<8x8xf64> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(0)>},
             %w: tensor<8x12xf64> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(0)>})
    -> (tensor<8x12xf64> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(0)>},
        tensor<8x8xf64> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(1)>}) {
  %0 = aten.mm(%x, %w) : tensor<8x12xf64> <dp: S(0), tp: S(0)>
  %1 = aten.t(%x) : tensor<8x8xf64>
  %2 = aten.mm(%1, %0) : tensor<8x12xf64>
  %3 = aten.relu(%x) : tensor<8x8xf64>
  return %2, %3 : tensor<8x12xf64>, tensor<8x8xf64>
}
"""


@pytest.mark.parametrize("text", [MLP, SOFTMAX, FSDP], ids=["mlp", "softmax", "fsdp"])
@pytest.mark.parametrize("rank", [0, 3])
def test_a_lowered_program_is_read_back_with_equal_shardings_and_numbers(text, rank):
    program = ir.parse(HEAD + text)
    local = localize(ir.parse(HEAD + text), Pipeline())
    function = ir.main_function(local)
    metas: list[TensorMeta] = [meta_of(argument.type) for argument in function.args]  # type: ignore
    examples = [torch.empty(meta.shape, dtype=TORCH_DTYPES[meta.dtype], device="meta") for meta in metas]
    shardings = {f"input:{index}": sharding_of(argument) for index, argument in enumerate(function.args)}
    graph = spmdir.lower_to_fx(program, rank=rank)
    module = spmdir.import_ranks(graph, ir.mesh(program), shardings, rank=rank, example_inputs=examples)
    results = ir.terminator(ir.main_function(module)).operands
    assert [sharding_of(v) for v in results] == [sharding_of(v) for v in ir.terminator(function).operands]
    shapes = {str(index): meta_of(v.type).shape for index, v in enumerate(ir.main_function(program).args)}  # type: ignore
    inputs = list(random_inputs(shapes).values())
    for value, expected in zip(spmdir.simulate(module, inputs), spmdir.simulate(program, inputs), strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)
