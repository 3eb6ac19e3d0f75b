"""Ops on lists of tensors, as ops on their entries: each entry has a sharding of its own.

What `torch._foreach_*` does to an entry torch says itself. What the fused kernels of optimizers do is written here: the
updates of Kingma & Ba (2014) for Adam, Loshchilov & Hutter (2019) for AdamW, Duchi et al. (2011) for Adagrad.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from spmdir.importer.running_statistics import StatisticsDeclarer
from spmdir.torch_interop.decompositions import composite
from spmdir.torch_interop.ops import overload_name, schema_of

_aten = torch.ops.aten

Tensors = Sequence[Tensor]
Lists = tuple[list[Tensor], ...]

_HALVES = (torch.float16, torch.bfloat16)
_PREFIXES = ("aten._foreach_", "aten._fused_", "aten._amp_foreach_")


def works_on_lists(target: Any) -> bool:
    """Return whether `target` is an op that does one thing to all tensors of a list."""
    if not str(target).startswith(_PREFIXES):
        return False
    return any(str(argument.type) == "List[Tensor]" for argument in schema_of(target).arguments)


def is_known(target: Any) -> bool:
    """Return whether `entrywise` has the op on lists `target`."""
    functional = _functional(target)
    return functional in WRITTEN or str(functional).startswith("aten._foreach_")


def is_written(target: Any) -> bool:
    """Return whether what stands for `target` is written here, by ops that may round in another way."""
    return works_on_lists(target) and _functional(target) in WRITTEN


def entrywise(targets: Iterable[Any]) -> dict[Any, Callable[..., Any]]:
    """Return the functional form of each op on lists among `targets` → the same by ops on entries."""
    ops = dict.fromkeys(_functional(target) for target in targets if works_on_lists(target) and is_known(target))
    return {op: WRITTEN.get(op) or composite(op) for op in ops}


class Entrywise(StatisticsDeclarer):
    """Runs a graph with the ops of `WRITTEN` on entries; those that mutate copy the results into what they got."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        form = WRITTEN.get(_functional(target)) if works_on_lists(target) else None
        if form is None:
            return super().call_function(target, args, kwargs)
        made = form(*args, **kwargs)
        arguments = schema_of(target).arguments
        given = {**dict(zip((argument.name for argument in arguments), args, strict=False)), **kwargs}
        changed = [given[a.name] for a in arguments if a.alias_info is not None and a.alias_info.is_write]
        if not changed:
            return made
        for old, new in zip(changed, made if isinstance(made, tuple) else (made,), strict=True):
            for entry, value in zip(*((x if isinstance(x, (list, tuple)) else [x]) for x in (old, new)), strict=True):
                if value is not entry:
                    entry.copy_(value)
        return None


def _functional(target: Any) -> Any:
    packet = schema_of(target).name.removeprefix("aten::").removesuffix("_")
    return getattr(getattr(_aten, packet), overload_name(target))


def _zero(self: Tensors) -> list[Tensor]:
    return [torch.zeros_like(x) for x in self]


def _addcmul(self: Tensors, tensor1: Tensors, tensor2: Tensors, scalars: Tensor) -> list[Tensor]:
    return [x + s * (a * b) for x, a, b, s in zip(self, tensor1, tensor2, scalars.unbind(), strict=True)]


def _addcdiv(self: Tensors, tensor1: Tensors, tensor2: Tensors, scalars: Tensor) -> list[Tensor]:
    return [x + s * (a / b) for x, a, b, s in zip(self, tensor1, tensor2, scalars.unbind(), strict=True)]


def _unscale(self: Tensors, found_inf: Tensor, inv_scale: Tensor) -> tuple[list[Tensor], Tensor]:
    for x in self:
        found_inf = torch.maximum(found_inf, x.isfinite().logical_not().any().to(found_inf.dtype))
    return [x * inv_scale for x in self], found_inf


def _updating(update: Callable[..., tuple[Tensor, ...]]) -> Callable[..., Lists]:
    """Return the update of one parameter as that of a list of them, for gradients of a loss scaled by `grad_scale`.

    Where `found_inf` is 1 everything stays as it was. Halves are updated in f32, as the kernels do, and a learning rate
    that is a tensor counts in double precision, as one that is a number does.
    """

    def updated(self: Tensors, grads: Tensors, *rest: Tensors, grad_scale: Tensor | None = None,
                found_inf: Tensor | None = None, maximize: bool, **options: Any) -> Lists:  # fmt: skip
        if isinstance(options["lr"], Tensor):
            options["lr"] = options["lr"].double()
        made: Lists = tuple([] for _ in range(2 + len(rest)))
        for index, (p, g) in enumerate(zip(self, grads, strict=True)):
            old = (p, g, *(entries[index] if entries else None for entries in rest))
            p, g, *states = (x.float() if x is not None and x.dtype in _HALVES else x for x in old)
            assert p is not None and g is not None
            g = g if grad_scale is None else g / grad_scale
            p, *states = update(p, -g if maximize else g, *states, **options)
            for entries, before, after in zip(made, old, (p, g, *states), strict=True):
                if before is not None and after is not None:
                    after = after if found_inf is None else torch.where(found_inf == 1, before, after)
                    entries.append(after.to(before.dtype))
        return made

    return updated


def _adam(decoupled: bool) -> Callable[..., Any]:
    def update(p: Tensor, g: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, greatest: Tensor | None, step: Tensor, *,
               lr: Any, beta1: float, beta2: float, weight_decay: float, eps: float, amsgrad: bool) -> Any:  # fmt: skip
        if weight_decay:
            p, g = (p * (1 - lr * weight_decay), g) if decoupled else (p, g + p * weight_decay)
        exp_avg = exp_avg + (g - exp_avg) * (1 - beta1)
        exp_avg_sq = exp_avg_sq * beta2 + g * g * (1 - beta2)
        greatest = torch.maximum(greatest, exp_avg_sq) if amsgrad and greatest is not None else greatest
        # In double precision: 1 - 0.999 has few digits left in single.
        corrections = [1 - beta ** step.double() for beta in (beta1, beta2)]
        second = greatest if amsgrad and greatest is not None else exp_avg_sq
        scale = second.sqrt() / corrections[1].sqrt() + eps
        return p - exp_avg / scale * (lr / corrections[0]), exp_avg, exp_avg_sq, greatest, step

    return update


def _sgd(p: Tensor, g: Tensor, velocity: Tensor | None, *, weight_decay: float, momentum: float, lr: Any,
         dampening: float, nesterov: bool, is_first_step: bool) -> Any:  # fmt: skip
    g = g + p * weight_decay if weight_decay else g
    if not momentum or velocity is None:
        return p - g * lr, velocity
    velocity = g.clone() if is_first_step else velocity * momentum + g * (1 - dampening)
    return p - (g + velocity * momentum if nesterov else velocity) * lr, velocity


def _adagrad(p: Tensor, g: Tensor, total: Tensor, step: Tensor, *, lr: Any, lr_decay: float, weight_decay: float,
             eps: float) -> Any:  # fmt: skip
    g = g + p * weight_decay if weight_decay else g
    total = total + g * g
    rate = lr / (1 + (step.double() - 1) * lr_decay)
    return p - g / (total.sqrt() + eps) * rate, total, step


def _first(count: int, update: Callable[..., Lists]) -> Callable[..., Lists]:
    """Return `update` without the lists behind the first `count`, which the op does not change."""
    return lambda *lists, **options: update(*lists, **options)[:count]


WRITTEN: dict[Any, Callable[..., Any]] = {
    _aten._foreach_zero.default: _zero,
    _aten._foreach_addcmul.Tensor: _addcmul,
    _aten._foreach_addcdiv.Tensor: _addcdiv,
    _aten._amp_foreach_non_finite_check_and_unscale.default: _unscale,
    **dict.fromkeys((_aten._fused_adam.default, _aten._fused_adam.tensor_lr), _first(5, _updating(_adam(False)))),
    **dict.fromkeys((_aten._fused_adamw.default, _aten._fused_adamw.tensor_lr), _first(5, _updating(_adam(True)))),
    **dict.fromkeys((_aten._fused_sgd.default, _aten._fused_sgd.tensor_lr), _updating(_sgd)),
    _aten._fused_adagrad.default: _updating(_adagrad),
    _aten._fused_adagrad.tensor_lr: _first(3, _updating(_adagrad)),
}
"""Functional op on lists → what it does, by ops on entries, where torch's own form is one kernel."""
