"""Activations of a plan: which tensors are constrained while a model is captured, and what cannot be."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spmdir.core.errors import SpmdirError
from spmdir.core.mesh import Mesh
from spmdir.plans.activations import constrained_activations
from spmdir.plans.resolve import resolve

MESH = Mesh({"dp": 2, "tp": 2})


class Block(nn.Module):
    def forward(self, x: Tensor, shift: Tensor | None = None, *, scale: float = 1.0) -> Any:
        y = x * scale if shift is None else x + shift
        return {"first": y, "second": y.sum(-1)} if scale == 3.0 else (y, scale) if scale == 2.0 else y


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Block(), Block(), Block(), Block()])

    def forward(self, x: Tensor) -> Tensor:
        a = self.layers[0](x)
        b = self.layers[1](x=a, shift=x)
        c, _ = self.layers[2](b, scale=2.0)
        return self.layers[3](c, scale=3.0)["second"]


def constraints(plan: str) -> list[str]:
    """The shardings of the constraints in the captured model, in order, each with the rank of its tensor."""
    model = Model()
    with constrained_activations(model, resolve(plan, model, MESH)):
        program = torch.export.export(model, (torch.ones(2, 4, 8),))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    nodes = [node for node in program.graph.nodes if "constrain" in str(node.target)]
    return [f"{node.args[1]} of {node.meta['val'].dim()}" for node in nodes]


CASES = {
    "an output, from the end": ('"layers.0" = { outputs = "tp: S(-1), dp: ?" }', ["tp: S(2), dp: ? of 3"]),
    "an input by position": ('"layers.0" = { inputs = "dp: S(0)" }', ["dp: S(0) of 3"]),
    "an input that is passed by name": ('"layers.1" = { inputs = ["?", "dp: S(0)"] }', ["dp: S(0) of 3"]),
    "an input by name that is passed by position": ('"layers.0" = { inputs = { x = "dp: S(0)" } }', ["dp: S(0) of 3"]),
    "an input that is not passed": ('"layers.0" = { inputs = { shift = "dp: S(0)" } }', []),
    "one of a tuple": ('"layers.2" = { outputs = ["tp: S(1)"] }', ["tp: S(1) of 3"]),
    "one of a dict": ('"layers.3" = { outputs = { second = "tp: S(-1)" } }', ["tp: S(1) of 2"]),
    "one of a dict by position": ('"layers.3" = { outputs = ["?", "tp: S(-1)"] }', ["tp: S(1) of 2"]),
    "all layers, but one": (
        '"layers.*" = { inputs = "dp: S(0)" }\n"layers.1" = { inputs = "dp: S(1)" }',
        ["dp: S(0) of 3", "dp: S(1) of 3", "dp: S(0) of 3", "dp: S(0) of 3"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_plan_constrains_what_a_module_takes_and_gives(name: str) -> None:
    text, expected = CASES[name]
    assert constraints(f"[activations]\n{text}") == expected


WRONG = {
    "no module": (
        '"layer.0" = { outputs = "" }',
        "names 'layer.0', which is not a module of the model; expected a name or glob",
    ),
    "no argument": (
        '"layers.0" = { inputs = { y = "" } }',
        "plan:2:.*shards input y of 'layers.0', but the arguments of its forward are x, shift, scale",
    ),
    "no such argument": ('"layers.0" = { inputs = ["?", "?", "?", ""] }', "input 3 of 'layers.0', but the arguments"),
    "a number": ('"layers.2" = { outputs = ["?", ""] }', "output 1 of 'layers.2' of type float; expected"),
    "too many outputs": (
        '"layers.2" = { outputs = ["?", "?", ""] }',
        "output 2 of 'layers.2', but the module returns 2",
    ),
    "one output": ('"layers.0" = { outputs = ["?", ""] }', "output 1 of 'layers.0', but the module returns one tensor"),
    "no key": (
        '"layers.3" = { outputs = { third = "" } }',
        "output third of 'layers.3', but the module returns first, second",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_a_module_does_not_have_is_an_error(name: str) -> None:
    text, message = WRONG[name]
    with pytest.raises(SpmdirError, match=message):
        constraints(f"[activations]\n{text}")
