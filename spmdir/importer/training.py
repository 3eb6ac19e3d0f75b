"""A training step as one function of tensors: what `make_fx` traces and `import_fx` imports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from spmdir.errors import UnsupportedError, did_you_mean

State = dict[str, Any]
"""`parameters`, `buffers` and each moment of the optimizer by FQN, and the 0-d tensor `step`."""

Moments = tuple[Tensor, ...]


@attrs.frozen
class Optimizer:
    """An update rule.

    Attributes:
        moments: the names of the tensors it keeps beside each parameter, shaped like it.
        defaults: option → value where the caller gives none.
        common: (step, options) → what the updates of all parameters share.
        update: (parameter, gradient, moments, common, options) → the new parameter and moments.
    """

    moments: tuple[str, ...]
    defaults: Mapping[str, Any]
    common: Callable[[Tensor, Mapping[str, Any]], Moments]
    update: Callable[[Tensor, Tensor, Moments, Moments, Mapping[str, Any]], tuple[Tensor, Moments]]


def _bias_corrections(step: Tensor, o: Mapping[str, Any]) -> Moments:
    """1 − βᵗ for both moments, in double precision: 1 − 0.999 has few digits left in single."""
    return tuple(1 - beta ** step.double() for beta in o["betas"])


def _adamw(p: Tensor, g: Tensor, moments: Moments, common: Moments, o: Mapping[str, Any]) -> tuple[Tensor, Moments]:
    """Loshchilov & Hutter, Decoupled Weight Decay Regularization (2019), algorithm 2, with bias correction."""
    (beta1, beta2), (exp_avg, exp_avg_sq) = o["betas"], moments
    exp_avg = exp_avg * beta1 + g * (1 - beta1)
    exp_avg_sq = exp_avg_sq * beta2 + g * g * (1 - beta2)
    scale = (exp_avg_sq / common[1]).sqrt() + o["eps"]
    return p * (1 - o["lr"] * o["weight_decay"]) - exp_avg / common[0] / scale * o["lr"], (exp_avg, exp_avg_sq)


def _sgd(p: Tensor, g: Tensor, moments: Moments, common: Moments, o: Mapping[str, Any]) -> tuple[Tensor, Moments]:
    """Heavy-ball momentum as in torch.optim.SGD: v ← μ v + g, p ← p − lr v."""
    gradient = g + p * o["weight_decay"] if o["weight_decay"] else g
    velocity = moments[0] * o["momentum"] + gradient
    return p - velocity * o["lr"], (velocity,)


OPTIMIZERS = {
    "adamw": Optimizer(
        ("exp_avg", "exp_avg_sq"),
        {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-2},
        _bias_corrections,
        _adamw,
    ),
    "sgd": Optimizer(
        ("momentum_buffer",), {"lr": 1e-3, "momentum": 0.9, "weight_decay": 0.0}, lambda step, o: (), _sgd
    ),
}


class _Objective(nn.Module):
    """The loss as a module around the model, so that `functional_call` can give the model its parameters."""

    def __init__(self, model: nn.Module, loss: Callable[..., Tensor]):
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, *args: Any) -> Tensor:
        return self.loss(self.model, *args)


def training_step(
    model: nn.Module, loss: Callable[..., Tensor], optimizer: str = "adamw", **options: Any
) -> tuple[Callable[..., tuple[Tensor, State]], State]:
    """One training step of `model` as a pure function, and the state it begins with.

    `step(state, *args) → (loss, new_state)` computes `loss(model, *args)`, its gradients and the optimizer's
    update. It is made of pure tensor ops, so `make_fx(step)(state, *args)` traces forward, backward and update
    into one graph. `import_fx` names the state's tensors by their path: `parameters.<FQN>`, `buffers.<FQN>`,
    `exp_avg.<FQN>`, …, `step`; a sharding given for `<FQN>` holds for the parameter and its moments alike.

    Args:
        loss: (model, *args) → 0-d tensor, e.g. `lambda model, x, y: (model(x) - y).square().mean()`.
        optimizer: "adamw" (lr, betas, eps, weight_decay) or "sgd" (lr, momentum, weight_decay).
        options: the optimizer's options; torch.optim's defaults, except that SGD has momentum 0.9.

    Raises:
        UnsupportedError: unknown optimizer or option.
    """
    if optimizer not in OPTIMIZERS:
        raise UnsupportedError(
            f"unknown optimizer '{optimizer}'; expected one of {', '.join(OPTIMIZERS)}"
            + did_you_mean(optimizer, OPTIMIZERS)
        )
    rule = OPTIMIZERS[optimizer]
    for option in options:
        if option not in rule.defaults:
            raise UnsupportedError(
                f"{optimizer} has no option '{option}'; expected one of {', '.join(rule.defaults)}"
                + did_you_mean(option, rule.defaults)
            )
    options = {**rule.defaults, **options}
    objective = _Objective(model, loss)

    def step(state: State, *args: Any) -> tuple[Tensor, State]:
        parameters = {name: value.detach().requires_grad_() for name, value in state["parameters"].items()}
        buffers = {name: value.clone() for name, value in state["buffers"].items()}
        held = {f"model.{name}": value for name, value in {**parameters, **buffers}.items()}
        with torch.enable_grad():
            value = torch.func.functional_call(objective, held, args)
            gradients = torch.autograd.grad(value, list(parameters.values()), allow_unused=True)
        new: State = {"parameters": {}, "buffers": buffers, **{m: {} for m in rule.moments}, "step": state["step"] + 1}
        common = rule.common(new["step"], options)
        for (name, parameter), gradient in zip(parameters.items(), gradients, strict=True):
            moments = tuple(state[moment][name] for moment in rule.moments)
            updated = parameter.detach()
            if gradient is not None:
                updated, moments = rule.update(updated, gradient, moments, common, options)
            new["parameters"][name] = updated
            for moment, tensor in zip(rule.moments, moments, strict=True):
                new[moment][name] = tensor
        return value.detach(), new

    parameters = {name: p.detach() for name, p in model.named_parameters()}
    state: State = {
        "parameters": parameters,
        "buffers": {name: b.detach() for name, b in model.named_buffers()},
        **{moment: {name: torch.zeros_like(p) for name, p in parameters.items()} for moment in rule.moments},
        "step": torch.zeros((), dtype=torch.float32),
    }
    return step, state
