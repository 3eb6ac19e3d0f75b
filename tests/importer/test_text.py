"""The text of an imported program, whole."""

from __future__ import annotations

import torch
from torch import nn

from spmdir.dialects.ir import print_ir
from spmdir.importer.constrain import constrain
from spmdir.importer.importer import import_fx
from tests.importer.imported_programs import MESH, export

EXPECTED = """\
spmd.mesh @mesh <dp = 2, tp = 2>

func.func @main(%up.weight: tensor<8x4xf32> {spmd.kind = "parameter", \
spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>},
                %down.weight: tensor<4x8xf32> {spmd.kind = "parameter"},
                %args_0: tensor<2x3x4xf32> {spmd.name = "args_0", \
spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> \
(tensor<2x12xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  %linear = aten.linear(%args_0, %up.weight) : tensor<2x3x8xf32>
  %gelu = aten.gelu(%linear) {approximate = "tanh"} : tensor<2x3x8xf32>
  %constrain = spmd.constraint %gelu : tensor<2x3x8xf32> <dp: S(0), tp: ?>
  %linear_1 = aten.linear(%constrain, %down.weight) : tensor<2x3x4xf32>
  %view = aten.view(%linear_1) {size = [2, 12]} : tensor<2x12xf32>
  return %view : tensor<2x12xf32>
}
"""


def test_an_mlp_reads_as_expected():
    def forward(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        hidden = constrain(nn.functional.gelu(model.up(x), approximate="tanh"), "dp: S(0), tp: ?")
        return model.down(hidden).view(2, -1)

    layers = {"up": nn.Linear(4, 8, bias=False), "down": nn.Linear(8, 4, bias=False)}
    program = export(forward, torch.ones(2, 3, 4), **layers)
    module = import_fx(program, MESH, {"up.*": "tp: S(0)", "args_0": "dp: S(0)"}, out_shardings=["like:args_0"])
    assert print_ir(module) == EXPECTED
