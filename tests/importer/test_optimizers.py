"""Optimizers of torch in a traced step: their ops on lists become ops on each tensor, sharded as the tensor is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

import spmdir

MESH = spmdir.Mesh({"dp": 2, "tp": 2})
ADAM = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.01, "eps": 1e-8, "amsgrad": False, "maximize": False}
SGD: dict[str, Any] = {
    "weight_decay": 0.01, "momentum": 0.9, "lr": 0.1, "dampening": 0.1, "nesterov": False, "maximize": False,
    "is_first_step": False,
}  # fmt: skip
ADAGRAD = {"lr": 0.1, "lr_decay": 0.01, "weight_decay": 0.1, "eps": 1e-10, "maximize": False}


def close(function: Callable[..., Any], arguments: tuple[Any, ...], shardings: dict[str, str] | None = None) -> str:
    """That the partitioned trace of `function`, which changes its arguments, computes what it does; its IR."""

    def pure(*given: Any) -> list[Any]:
        copies = pytree.tree_map_only(Tensor, torch.clone, given)
        return [leaf for leaf in pytree.tree_leaves((function(*copies), copies)) if leaf is not None]

    expected = pure(*arguments)
    module = spmdir.import_fx(make_fx(pure, tracing_mode="fake")(*arguments), MESH, shardings or {})
    for one, other in zip(spmdir.simulate(module, pytree.tree_leaves(arguments)), expected, strict=True):
        torch.testing.assert_close(torch.as_tensor(one), other, rtol=1e-9, atol=1e-12)
    return spmdir.print_ir(module)


def state(*names: str) -> tuple[dict[str, list[Tensor]], list[Tensor]]:
    torch.manual_seed(0)
    shapes = ((4, 3), (6,), (5, 2))
    lists = {name: [torch.rand(shape, dtype=torch.float64) for shape in shapes] for name in names}
    return lists, [torch.tensor(3.0) for _ in shapes]


@pytest.mark.parametrize(("amsgrad", "maximize"), [(False, False), (True, True)])
@pytest.mark.parametrize("op", [torch._fused_adam_, torch._fused_adamw_])
def test_fused_adam_updates_each_parameter_by_itself(op: Any, amsgrad: bool, maximize: bool):
    def update(lists: Any, steps: Any, rate: Tensor) -> None:
        options = {**ADAM, "amsgrad": amsgrad, "maximize": maximize, "lr": rate if amsgrad else 0.1}
        op(lists["p"], lists["g"], lists["m"], lists["v"], lists["top"] if amsgrad else [], steps, **options)

    text = close(update, (*state("p", "g", "m", "v", "top"), torch.tensor(0.2)))
    assert "fused" not in text and text.count("aten.sqrt") >= 3


@pytest.mark.parametrize("overflow", [0.0, 1.0])
def test_a_fused_update_of_a_scaled_loss_is_skipped_where_it_overflowed(overflow: float):
    def update(lists: Any, steps: Any, scale: Tensor, found: Tensor) -> None:
        scaler = {"grad_scale": scale, "found_inf": found}
        torch._fused_adam_(lists["p"], lists["g"], lists["m"], lists["v"], [], steps, **ADAM, **scaler)

    close(update, (*state("p", "g", "m", "v"), torch.tensor(4.0), torch.tensor(overflow)))


@pytest.mark.parametrize(
    "change", [{}, {"nesterov": True, "dampening": 0.0}, {"is_first_step": True}, {"momentum": 0.0}]
)
def test_fused_sgd_updates_each_parameter_by_itself(change: dict[str, Any]):
    options = {**SGD, **change}

    def update(lists: Any) -> None:
        torch._fused_sgd_(lists["p"], lists["g"], lists["v"] if options["momentum"] else [], **options)

    close(update, state("p", "g", "v")[:1])


def test_fused_adagrad_updates_each_parameter_by_itself():
    close(lambda lists, steps: torch._fused_adagrad_(lists["p"], lists["g"], lists["t"], steps, **ADAGRAD),
          state("p", "g", "t"))  # fmt: skip


def test_a_fused_update_in_half_width_computes_in_f32_as_the_kernel_does():
    lists, steps = state("p", "g", "m", "v")
    halves = pytree.tree_map(lambda t: t.bfloat16(), lists)

    def update(lists: Any, steps: Any) -> Any:
        torch._fused_adamw_(lists["p"], lists["g"], lists["m"], lists["v"], [], steps, **ADAM)
        return [t.float() for t in lists["p"]]

    close(update, (halves, steps))


def test_every_kind_of_op_on_a_list_is_one_on_its_entries():
    def apply(lists: dict[str, list[Tensor]], number: Tensor) -> Any:
        a, b, c = lists["a"], lists["b"], lists["c"]
        torch._foreach_mul_(a, number)
        torch._foreach_lerp_(a, b, 0.3)
        torch._foreach_addcmul_(a, b, c, 0.5)
        torch._foreach_addcdiv_(a, b, c, [2.0, 3.0, 4.0])
        torch._foreach_copy_(b, a)
        torch._foreach_sqrt_(b)
        torch._foreach_zero_(c)
        return [
            torch._foreach_add(a, b, alpha=2), torch._foreach_sub(a, 1.5), torch._foreach_div(a, [2.0, 3.0, 4.0]),
            torch._foreach_pow(a, 2.0), torch._foreach_maximum(a, b), torch._foreach_norm(a, 2),
            torch._foreach_norm(a, 1), torch._foreach_max(a), torch._foreach_abs(a),
            torch._foreach_neg(a), torch._foreach_reciprocal(b),
        ]  # fmt: skip

    lists = state("a", "b", "c")[0]
    text = close(apply, (lists, torch.tensor(0.5, dtype=torch.float64)), {"input:0": "dp: S(0)", "input:2": "tp: S(1)"})
    assert "foreach" not in text


OPTIMIZERS: dict[str, tuple[Any, dict[str, Any], tuple[str, ...]]] = {
    "adamw fused": (torch.optim.AdamW, {"fused": True}, ("exp_avg", "exp_avg_sq")),
    "adam amsgrad": (torch.optim.Adam, {"fused": True, "amsgrad": True}, ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")),
    "sgd fused": (torch.optim.SGD, {"fused": True, "momentum": 0.9, "weight_decay": 0.1}, ("momentum_buffer",)),
    "sgd nesterov": (torch.optim.SGD, {"foreach": True, "momentum": 0.9, "nesterov": True}, ("momentum_buffer",)),
    "adagrad fused": (torch.optim.Adagrad, {"fused": True}, ("sum",)),
    "rmsprop foreach": (torch.optim.RMSprop, {"foreach": True}, ("square_avg",)),
}
"""Without fused=True, those that count steps read the count as a Python number, which no trace can hold."""


@pytest.mark.parametrize("case", OPTIMIZERS)
def test_a_step_of_an_optimizer_with_clipped_gradients_equals_one_device(case: str):
    make, options, names = OPTIMIZERS[case]
    torch.manual_seed(0)
    weights = [torch.randn(6, 8, dtype=torch.float64), torch.randn(8, 5, dtype=torch.float64)]
    moments = {name: [torch.rand_like(w) for w in weights] for name in names}
    count = [torch.tensor(3.0) for _ in weights]

    def step(weights: list[Tensor], moments: dict[str, list[Tensor]], count: list[Tensor], x: Tensor) -> Tensor:
        parameters = [w.detach().requires_grad_() for w in weights]
        loss = (torch.relu(x @ parameters[0]) @ parameters[1]).square().mean()
        optimizer = make(parameters, lr=0.1, **options)
        for index, (p, g) in enumerate(zip(parameters, torch.autograd.grad(loss, parameters), strict=True)):
            p.grad = g
            optimizer.state[p].update({name: held[index] for name, held in moments.items()}, step=count[index])
        torch.nn.utils.clip_grad_norm_(parameters, 0.5, foreach=True)
        optimizer.step()
        return loss.detach()

    shardings = {"input:0": "tp: S(1)", "input:1": "tp: S(0)", f"input:{2 * len(names) + 4}": "dp: S(0)"}
    close(step, (weights, moments, count, torch.randn(7, 6, dtype=torch.float64)), shardings)
