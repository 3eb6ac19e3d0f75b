"""A pipelined step computes what one device computes, for every cut, order and model."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from spmdir.core.errors import SpmdirError
from spmdir.pipeline.pipeline import run_passes
from spmdir.simulator.pipelined_step import simulate_step
from tests.simulator import pipelined_steps as cases

LIMIT = 1e-12
ROWS = {"*.up.weight": "tp: S(0)", "*.down.weight": "tp: S(1)"}


@pytest.mark.parametrize(("passes", "clip"), [("propagate", 0.1), (cases.LOWERED, None)], ids=["clipping", "lowered"])
@pytest.mark.parametrize(
    ("cut", "kind"),
    [
        ("at=2", "gpipe"),
        ("at=2", "1f1b"),
        ("at=1,2,3", "gpipe"),
        ("at=1,2,3", "1f1b"),
        ("ranks=2 at=1,2,3", "1f1b"),
        ("ranks=2 at=1,2,3", "search"),
    ],
)
def test_five_updates_equal_those_of_one_device(cut: str, kind: str, passes: str, clip: float | None) -> None:
    step, state, module = cases.step_of(cases.blocks, clip=clip, plan=ROWS)
    module = cases.pipelined(module, cut, kind, passes)
    assert cases.relative_error(step, state, module, cases.numbers(), 5) < LIMIT


sgd = functools.partial(torch.optim.SGD, momentum=0.9)

LAYERS = "layers.1,layers.3,layers.5"
MODELS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "skip_connections": (cases.SkipConnections, LAYERS),
    "first_layers_frozen": (functools.partial(cases.SkipConnections, frozen=2), LAYERS),
    "shared_layer": (cases.SharedLayer, "first,second"),
    "batch_norm": (cases.batch_norms, "1,2,3"),
}
"""Name → model, and the modules with which its stages begin."""


@pytest.mark.parametrize(
    ("interleaved", "optimizer"),
    [(False, torch.optim.AdamW), (True, torch.optim.Adafactor), (False, sgd)],
    ids=["adamw", "interleaved", "sgd"],
)
@pytest.mark.parametrize("model", MODELS)
def test_values_that_cross_stages_are_sent(model: str, interleaved: bool, optimizer: Callable[..., object]) -> None:
    make, modules = MODELS[model]
    step, state, module = cases.step_of(make, optimizer=optimizer, clip=0.1)  # type: ignore[arg-type]
    cut = f"ranks={1 if model == 'shared_layer' else 2} at={modules}" if interleaved else f"at={modules}"
    module = cases.pipelined(module, cut)
    assert cases.relative_error(step, state, module, cases.numbers(), 3) < LIMIT


@pytest.mark.parametrize(
    ("model", "cut", "kind"),
    [
        (cases.llama, "at=model.layers.1,model.layers.2,model.layers.3", "1f1b"),
        (cases.gpt2, "at=transformer.h.2", "gpipe"),
        (cases.gpt2, "ranks=2 at=transformer.h.1,transformer.h.2,transformer.h.3", "1f1b"),
        (cases.gpt2, "ranks=2 at=transformer.h.1,transformer.h.2,transformer.h.3", "zbv"),
    ],
    ids=["llama", "gpt2", "gpt2_interleaved", "gpt2_zbv"],
)
def test_language_models_equal_one_device(model: Callable[[], nn.Module], cut: str, kind: str) -> None:
    batch = cases.tokens()
    step, state, module = cases.step_of(model, cases.cross_entropy, batch, clip=0.1)
    assert cases.relative_error(step, state, cases.pipelined(module, cut, kind), batch, 5) < LIMIT


@pytest.mark.parametrize(
    ("model", "loss", "batch", "kind"),
    [
        (cases.t5, cases.translation, cases.tokens, "zb"),
        (cases.vit, cases.classification, cases.images, "1f1b"),
        (cases.mixtral, cases.cross_entropy, cases.tokens, "1f1b"),
    ],
    ids=["t5", "vit", "mixtral"],
)
def test_models_of_two_balanced_stages_equal_one_device(
    model: Callable[[], nn.Module], loss: Callable[..., torch.Tensor], batch: Callable[[], Any], kind: str
) -> None:
    step, state, module = cases.step_of(model, loss, batch(), mesh={"dp": 1})
    assert cases.relative_error(step, state, cases.pipelined(module, "ranks=2", kind, "propagate"), batch(), 5) < LIMIT


@pytest.mark.parametrize(
    ("model", "cut", "kind"),
    [
        ("skip_connections", "at={}", "zb"),
        ("skip_connections", "ranks=2 at={}", "zbv"),
        ("skip_connections", "ranks=2 at={}", "search"),
        ("batch_norm", "ranks=2 at={}", "zbv"),
        ("shared_layer", "at={}", "zb"),
    ],
)
def test_a_split_backward_computes_the_same(model: str, cut: str, kind: str) -> None:
    make, modules = MODELS[model]
    step, state, module = cases.step_of(make, clip=0.1)
    module = cases.pipelined(module, cut.format(modules), kind, split=True)
    assert cases.relative_error(step, state, module, cases.numbers(), 5) < LIMIT


def test_missing_inputs_and_orders_are_errors() -> None:
    _, state, module = cases.step_of(cases.blocks)
    x, y = cases.numbers()
    with pytest.raises(SpmdirError, match="the module has no pipelined step; expected"):
        simulate_step(module, state, (x, y))
    run_passes(module, "propagate,cut-stages{ranks=2}")
    with pytest.raises(SpmdirError, match="the module has no order of its actions; expected one"):
        simulate_step(module, state, (x, y))
    run_passes(module, "make-schedule")
    with pytest.raises(SpmdirError, match="the step got 1 inputs; expected 2: arg1_1, arg2_1"):
        simulate_step(module, state, (x,))
    with pytest.raises(SpmdirError, match="expected a first dimension that is a multiple of the 4 micro-batches"):
        simulate_step(module, state, (x[:6], y))
    with pytest.raises(SpmdirError, match=r"no 'lr\.0' in state"):
        simulate_step(module, {key: value for key, value in state.items() if key != "lr"}, (x, y))
