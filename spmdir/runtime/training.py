"""A training step as one function of tensors: what `make_fx` traces and `import_fx` imports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from spmdir.core.arguments import CALLABLE, accepts, instance
from spmdir.core.errors import UnsupportedError, did_you_mean, shown
from spmdir.core.sharding import Sharding
from spmdir.importer.constrain import constrain
from spmdir.runtime.replay import watch_step

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
    """What √v is divided by, and what is then added, for the sum to be (1 − β₁ᵗ) (√(v / (1 − β₂ᵗ)) + ε).

    In double precision: 1 − 0.999 has few digits left in single.
    """
    first, second = (1 - beta ** step.double() for beta in o["betas"])
    return second.sqrt() / first, first * o["eps"]


def _adamw(p: Tensor, g: Tensor, moments: Moments, common: Moments, o: Mapping[str, Any]) -> tuple[Tensor, Moments]:
    """Loshchilov & Hutter, Decoupled Weight Decay Regularization (2019), algorithm 2, with bias correction.

    In as few ops as torch.optim.AdamW takes for a step that is a tensor.
    """
    (beta1, beta2), (exp_avg, exp_avg_sq) = o["betas"], moments
    exp_avg = exp_avg.lerp(g, 1 - beta1)
    exp_avg_sq = (exp_avg_sq * beta2).addcmul(g, g, value=1 - beta2)
    divisor = exp_avg_sq.sqrt() / common[0] + common[1]
    return (p * (1 - o["lr"] * o["weight_decay"])).addcdiv(exp_avg, divisor, value=-o["lr"]), (exp_avg, exp_avg_sq)


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
    """Loss and gradients as a module around the model, so that `functional_call` can give the model its parameters.

    The gradients are taken inside, for checkpointed functions run again then.
    """

    def __init__(self, model: nn.Module, loss: Callable[..., Tensor]):
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, parameters: list[Tensor], args: tuple[Any, ...]) -> tuple[Tensor, list[Tensor | None]]:
        with torch.enable_grad():
            value = self.loss(self.model, *args)
            if not isinstance(value, Tensor) or (value.dim() and value.numel() != 1):
                found = f"of shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
                raise UnsupportedError(f"the loss is {found}; expected a 0-d tensor, as of mean() or sum()")
            if not _is_reentrant(value):
                return value, list(torch.autograd.grad(value, parameters, allow_unused=True))
            value.backward()
        return value, [parameter.grad for parameter in parameters]


def _is_reentrant(value: Tensor) -> bool:
    """Return whether reentrant checkpointing is part of how `value` was made, which only `backward` differentiates."""
    found, nodes = set(), [value.grad_fn]
    while nodes:
        node = nodes.pop()
        if node is not None and node not in found:
            if node.name() == "CheckpointFunctionBackward":
                return True
            found.add(node)
            nodes += [other for other, _ in node.next_functions]
    return False


def _check_numbers(optimizer: str, option: str, value: Any, default: Any) -> None:
    """Raise UnsupportedError unless `value` is a number, or as many as `default` is."""
    many = isinstance(default, tuple)
    numbers = value if many and isinstance(value, (tuple, list)) else (value,)
    if len(numbers) != (len(default) if many else 1) or not all(isinstance(number, Real) for number in numbers):
        expected = f"{len(default)} numbers" if many else "a number"
        raise UnsupportedError(
            f"{optimizer} has {option} = {shown(value)}; expected {expected}, as in {option}={default}: the traced "
            "step keeps it as a constant, so for a schedule write a step of your own whose state holds it, a 0-d tensor"
        )


@accepts(
    model=instance(nn.Module, expected="a nn.Module"),
    loss=CALLABLE,
    optimizer=instance(str, expected=f"one of {', '.join(OPTIMIZERS)}"),
)
def training_step(
    model: nn.Module,
    loss: Callable[..., Tensor],
    optimizer: str = "adamw",
    *,
    gradients: str | Sharding | Mapping[str, object] | None = None,
    **options: float | Sequence[float],
) -> tuple[Callable[..., tuple[Tensor, State]], State]:
    """Return one training step of `model` as a pure function, and the state it begins with.

    `step(state, *args) → (loss, new_state)` computes `loss(model, *args)`, its gradients and the optimizer's
    update. It is made of pure tensor ops, so `make_fx(step)(state, *args)` traces forward, backward and update
    into one graph. `import_fx` names the state's tensors by their path: `parameters.<FQN>`, `buffers.<FQN>`,
    `exp_avg.<FQN>`, …, `step`; a sharding given for `<FQN>` holds for the parameter and its moments alike.

    Parameters that require no gradient stay as they are and have no moments. Functions under activation checkpointing
    run again for the gradients, and their random ops give again what they gave.

    Args:
        model: whose parameters are trained; it is not changed.
        loss: (model, *args) → 0-d tensor, e.g. `lambda model, x, y: (model(x) - y).square().mean()`.
        optimizer: "adamw" (lr, betas, eps, weight_decay) or "sgd" (lr, momentum, weight_decay).
        gradients: how each gradient is laid out before it is used, such as by a placement that sends less of it; if
            None the compiler decides.
        options: the optimizer's options; torch.optim's defaults, except that SGD has momentum 0.9.

    Raises:
        UnsupportedError: unknown optimizer or option, an option that is no number, or a model with nothing to train.
            The trace of a step raises it where the loss uses a parameter that it did not get from its model.

    Example:
        >>> step, state = spmdir.training_step(model, lambda model, x, y: (model(x) - y).square().mean(), lr=1e-4)
        >>> parallel = spmdir.parallelize(step, (x, y), mesh, {"up.weight": "tp: S(0)"}, state=state)
        >>> loss = parallel(x, y)
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
        _check_numbers(optimizer, option, options[option], rule.defaults[option])
    settings = {**rule.defaults, **options}
    objective = _Objective(model, loss)
    originals = {id(parameter): name for name, parameter in model.named_parameters(remove_duplicate=False)}
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    if not trained:
        raise UnsupportedError("no parameter of the model requires a gradient; set requires_grad where it is to learn")

    def step(state: State, *args: Any) -> tuple[Tensor, State]:
        parameters = {name: state["parameters"][name].detach().requires_grad_() for name in trained}
        buffers = {name: value.clone() for name, value in state["buffers"].items()}
        held = {f"model.{name}": value for name, value in {**state["parameters"], **parameters, **buffers}.items()}
        with watch_step(originals):
            value, found = torch.func.functional_call(objective, held, (list(parameters.values()), args))
        new: State = {
            "parameters": dict(state["parameters"]),
            "buffers": buffers,
            **{moment: {} for moment in rule.moments},
            "step": state["step"] + 1,
        }
        common = rule.common(new["step"], settings)
        for (name, parameter), gradient in zip(parameters.items(), found, strict=True):
            moments = tuple(state[moment][name] for moment in rule.moments)
            updated = parameter.detach()
            if gradient is not None:
                gradient = gradient if gradients is None else constrain(gradient, gradients)
                updated, moments = rule.update(updated, gradient, moments, common, settings)
            new["parameters"][name] = updated
            for moment, tensor in zip(rule.moments, moments, strict=True):
                new[moment][name] = tensor
        return value.detach(), new

    step.model = model  # pyright: ignore[reportFunctionMemberAccess]  # for plans that name its modules
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    state: State = {
        "parameters": parameters,
        "buffers": {name: b.detach() for name, b in model.named_buffers()},
        **{moment: {name: torch.zeros_like(parameters[name]) for name in trained} for moment in rule.moments},
        "step": torch.zeros((), dtype=torch.float32),
    }
    return step, state
