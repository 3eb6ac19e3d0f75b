"""Traced programs of small models, made once a process.

`forward_program` exports a model; `training_graph` traces forward, loss, backward and update as one graph.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from spmdir.importer.constrain import constrain
from spmdir.runtime.training import training_step
from tests.models.catalog import EVEN, ODD, Inputs, models
from tests.models.plans import COLUMN

MODELS = {name: model for name, model in models(EVEN).items() if name in COLUMN}
"""The models that have sharding plans. GPT-2 with sdpa in double precision is beyond torch's default decompositions."""

ODD_MODELS = {f"odd_{name}": model for name, model in models(ODD).items()}
"""More models, of sizes that axes do not divide."""

ALL = {**MODELS, **ODD_MODELS}


class Program(nn.Module):
    """A model with tensors in and one tensor out; its parameters are called `model.…`."""

    def __init__(self, model: nn.Module, call: Callable[..., Tensor]):
        super().__init__()
        self.model, self.call = model, call

    def forward(self, *args: Any) -> Tensor:
        return self.call(self.model, *args)


def eager_model(name: str, dtype: torch.dtype = torch.float64, attention: str = "sdpa", seed: int = 0) -> Program:
    """Return the module of a model, in the mode in which it is run, with seeded random weights, none of which are all
    0."""
    torch.manual_seed(seed)
    model = Program(ALL[name].build(attention), ALL[name].call).to(dtype).train(ALL[name].training)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model


def example_inputs(name: str, dtype: torch.dtype, batch: int, sequence: int) -> Inputs:
    """Seeded random arguments of a model's forward."""
    torch.manual_seed(1)
    given = ALL[name].inputs(batch, sequence)
    return tuple(value.to(dtype) if value.is_floating_point() else value for value in given)


DECOMPOSITIONS = {"inference": ({},), "core": ()}
"""Name → the arguments of `run_decompositions`."""

BLOCKS = ("LlamaDecoderLayer", "GPT2Block", "BertLayer", "ViTLayer", "T5Block")
"""Classes whose output is the residual stream."""


def _constrain_residual(model: Program, sharding: str) -> None:
    def hook(_: nn.Module, __: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (constrain(output[0], sharding), *output[1:])
        return constrain(output, sharding)

    modules = [m for m in model.modules() if type(m).__name__ in BLOCKS]
    for module in modules or [m for m in model.modules() if isinstance(m, nn.Linear)]:
        module.register_forward_hook(hook)


@cache
def forward_program(
    name: str,
    dtype: torch.dtype = torch.float64,
    batch: int = 4,
    sequence: int = 8,
    attention: str = "sdpa",
    residual: str | None = None,
    decompositions: str = "",
) -> tuple[torch.export.ExportedProgram, Inputs]:
    """Return a model's forward as torch.export gives it, and arguments for it.

    Args:
        residual: the sharding to which the residual stream is constrained after every block.
        decompositions: "inference" for run_decompositions({}), "core" for run_decompositions().
    """
    if decompositions:
        exported, inputs = forward_program(name, dtype, batch, sequence, attention, residual)
        return exported.run_decompositions(*DECOMPOSITIONS[decompositions]), inputs
    inputs = example_inputs(name, dtype, batch, sequence)
    model = eager_model(name, dtype, attention)
    if residual:
        _constrain_residual(model, residual)
    return torch.export.export(model, inputs), inputs


OPTIMIZERS = ("adamw", "sgd")
"""The names of optimizers that training steps of models are made with."""


def optimizer_of(name: str, model: nn.Module, lr: float) -> torch.optim.Optimizer:
    """Return an optimizer of all parameters of a model."""
    if name == "sgd":
        return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    return torch.optim.AdamW(model.parameters(), lr=lr)


def loss_of(model: nn.Module, *args: Any) -> Tensor:
    """Cross entropy against the last argument where it is integers, else the mean square distance from it."""
    *inputs, target = args
    output = model(*inputs)
    if target.is_floating_point():
        return (output - target).square().mean()
    return nn.functional.cross_entropy(output.flatten(0, -2), target.flatten())


def example_target(name: str, dtype: torch.dtype, batch: int, sequence: int) -> Tensor:
    """Return a seeded random target for `loss_of`."""
    torch.manual_seed(2)
    target = ALL[name].target(batch, sequence)
    return target.to(dtype) if target.is_floating_point() else target


@cache
def training_graph(
    name: str,
    optimizer: str = "adamw",
    dtype: torch.dtype = torch.float64,
    batch: int = 4,
    sequence: int = 8,
    attention: str = "sdpa",
    residual: str | None = None,
) -> tuple[fx.GraphModule, tuple[Tensor, ...], tuple[str, ...]]:
    """One training step as make_fx gives it, its flat arguments, and the name of each in the IR.

    The graph's outputs are the loss and the leaves of the new state.
    """
    step, arguments = training_case(name, optimizer, dtype, batch, sequence, attention, residual)
    graph = make_fx(step, tracing_mode="fake")(*arguments)
    leaves, _ = pytree.tree_flatten_with_path(arguments)
    names = [".".join(str(getattr(key, "key", getattr(key, "idx", ""))) for key in path[1:]) for path, _ in leaves]
    return graph, tuple(leaf for _, leaf in leaves), tuple(names)


def training_case(
    name: str,
    optimizer: str,
    dtype: torch.dtype,
    batch: int,
    sequence: int,
    attention: str = "sdpa",
    residual: str | None = None,
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return the eager training step of a model, and the arguments of its first call."""
    inputs = example_inputs(name, dtype, batch, sequence)
    model = eager_model(name, dtype, attention)
    if residual:
        _constrain_residual(model, residual)
    step, state = training_step(model, loss_of, optimizer_of(optimizer, model, lr=0.1))
    return step, (state, *inputs, example_target(name, dtype, batch, sequence))
