"""Ops are of the module that they are for: those of an optimizer of its parameter's, those of a head of no layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import spmdir
from spmdir.analysis.memory_classes import memory_classes
from spmdir.analysis.module_paths import module_paths
from spmdir.analysis.phases import phases
from spmdir.dialects import ir
from spmdir.dialects.attributes import meta_of
from spmdir.dialects.names import text_name
from spmdir.pipeline.pipeline import Pipeline

Made = Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True),
        lambda parameters: torch.optim.AdamW(parameters, lr=0.1, amsgrad=True),
        torch.optim.RMSprop,
        torch.optim.NAdam,
    ],
)
def test_what_an_optimizer_does_for_one_parameter_is_of_its_module(optimizer: Made) -> None:
    with torch.device("meta"):
        model, x = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 4)), torch.empty(2, 4)
    step, state = spmdir.training_step(model, lambda model, x: model(x).square().mean(), optimizer(model.parameters()))
    module = spmdir.import_fx(make_fx(step, tracing_mode="fake")(state, x), spmdir.Mesh({"dp": 2}), {})
    function, rules = ir.main_function(module), Pipeline().rules
    phase_of, paths = phases(function, memory_classes(function, rules)), module_paths(function)
    updates = [op for op, phase in phase_of.items() if phase == "optimizer" and op.results]
    tensors = [op for op in updates if (meta := meta_of(op.results[0].type)) is not None and meta.shape]
    assert tensors and {paths[op] for op in tensors} == {"0", "1"}


def test_without_locations_what_reads_a_parameter_of_no_layer_is_of_no_layer() -> None:
    text = """spmd.mesh @mesh <tp = 2>
func.func @f(%x: tensor<8x8xf32>, %embed.weight: tensor<8x8xf32>, %layers.0.w: tensor<8x8xf32>,
             %layers.1.w: tensor<8x8xf32>, %head.weight: tensor<8x8xf32>, %mask: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %e = aten.mm(%x, %embed.weight) : tensor<8x8xf32>
  %a = aten.mm(%e, %layers.0.w) : tensor<8x8xf32>
  %b = aten.add.Tensor(%a, %mask) : tensor<8x8xf32>
  %c = aten.mm(%b, %layers.1.w) : tensor<8x8xf32>
  %d = aten.add.Tensor(%c, %mask) : tensor<8x8xf32>
  %g = aten.mm(%d, %head.weight) : tensor<8x8xf32>
  %h = aten.relu(%g) : tensor<8x8xf32>
  return %h : tensor<8x8xf32>
}
"""
    function = ir.main_function(spmdir.parse(text))
    paths = module_paths(function)
    found = {text_name(op.results[0]): paths[op] for op in function.body.block.ops if op.results}
    assert found == dict(
        zip(
            ("%e", "%a", "%b", "%c", "%d", "%g", "%h"),
            ("", *["layers.0"] * 2, *["layers.1"] * 2, "", ""),
            strict=True,
        )
    )
