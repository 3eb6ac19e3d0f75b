"""Replace ops on lists of tensors by ops on the entries, because each entry has a separate sharding.

torch decomposes most `torch._foreach_*` ops. The fused kernels of optimizers are written here: the updates of Kingma &
Ba (2014) for Adam, Loshchilov & Hutter (2019) for AdamW, Duchi et al. (2011) for Adagrad.
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
    """Return whether `target` is an op that treats all tensors of a list alike."""
    if not str(target).startswith(_PREFIXES):
        return False
    return any(str(argument.type) == "List[Tensor]" for argument in schema_of(target).arguments)


def has_entrywise_form(target: Any) -> bool:
    """Return whether `entrywise_forms` has a form of `target`, an op on lists: one written here, or torch's."""
    functional = _functional(target)
    return functional in ENTRYWISE_FORMS or str(functional).startswith("aten._foreach_")


def has_written_form(target: Any) -> bool:
    """Return whether `target` is an op on lists with a form in `ENTRYWISE_FORMS`, which spmdir writes itself.

    Such a form may round differently from torch's kernel. The other forms are torch's decompositions.
    """
    return works_on_lists(target) and _functional(target) in ENTRYWISE_FORMS


def entrywise_forms(targets: Iterable[Any]) -> dict[Any, Callable[..., Any]]:
    """Return functional op → its form by ops on entries, for each op on lists among `targets` that has such a form."""
    ops = dict.fromkeys(
        _functional(target) for target in targets if works_on_lists(target) and has_entrywise_form(target)
    )
    return {op: ENTRYWISE_FORMS.get(op) or composite(op) for op in ops}


class EntrywiseInterpreter(StatisticsDeclarer):
    """Runs a graph with each kernel in `ENTRYWISE_FORMS` replaced by its form on entries.

    For an in-place kernel, the results are copied into the arguments that it writes to, and the call returns None.
    """

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Run a call; a kernel on lists that has a form in `ENTRYWISE_FORMS` runs by this form."""
        form = ENTRYWISE_FORMS.get(_functional(target)) if works_on_lists(target) else None
        if form is None:
            return super().call_function(target, args, kwargs)
        results = form(*args, **kwargs)
        parameters = schema_of(target).arguments
        arguments = {**dict(zip((parameter.name for parameter in parameters), args, strict=False)), **kwargs}
        # The arguments that the kernel writes to, tensors or lists, in the order of the results of the form.
        destinations = [
            arguments[parameter.name]
            for parameter in parameters
            if parameter.alias_info is not None and parameter.alias_info.is_write
        ]
        if not destinations:
            return results
        new_values = results if isinstance(results, tuple) else (results,)
        for destination, new_value in zip(destinations, new_values, strict=True):
            is_list = isinstance(destination, (list, tuple))
            entries, new_entries = (destination, new_value) if is_list else ([destination], [new_value])
            for entry, new_entry in zip(entries, new_entries, strict=True):
                if new_entry is not entry:
                    entry.copy_(new_entry)
        return None


def _functional(target: Any) -> Any:
    """Return the functional variant of an op, such as `_foreach_add` for `_foreach_add_`."""
    packet = schema_of(target).name.removeprefix("aten::").removesuffix("_")
    return getattr(getattr(_aten, packet), overload_name(target))


def _zero(self: Tensors) -> list[Tensor]:
    """Compute `_foreach_zero`."""
    return [torch.zeros_like(x) for x in self]


def _addcmul(self: Tensors, tensor1: Tensors, tensor2: Tensors, scalars: Tensor) -> list[Tensor]:
    """Compute `_foreach_addcmul` with the factors in a tensor: x + s · (a · b) for each entry."""
    return [x + s * (a * b) for x, a, b, s in zip(self, tensor1, tensor2, scalars.unbind(), strict=True)]


def _addcdiv(self: Tensors, tensor1: Tensors, tensor2: Tensors, scalars: Tensor) -> list[Tensor]:
    """Compute `_foreach_addcdiv` with the factors in a tensor: x + s · (a / b) for each entry."""
    return [x + s * (a / b) for x, a, b, s in zip(self, tensor1, tensor2, scalars.unbind(), strict=True)]


def _unscale(self: Tensors, found_inf: Tensor, inv_scale: Tensor) -> tuple[list[Tensor], Tensor]:
    """Compute `_amp_foreach_non_finite_check_and_unscale`.

    Returns: (gradients times `inv_scale`, 1 if an element is not finite or `found_inf` was 1 before, else 0).
    """
    for x in self:
        found_inf = torch.maximum(found_inf, x.isfinite().logical_not().any().to(found_inf.dtype))
    return [x * inv_scale for x in self], found_inf


def _map_over_parameters(update: Callable[..., tuple[Tensor, ...]]) -> Callable[..., Lists]:
    """Return the update of lists of parameters for `update`, the update of one parameter.

    `update(p, g, *states, **options)` returns the new parameter and states for the parameter p and its gradient g.

    The gradients are those of a loss that was multiplied by `grad_scale`. If `found_inf` is 1, nothing changes. As in
    the kernels, f16 and bf16 values are updated in f32. A learning rate is used in double precision, even if it is a
    tensor.
    """

    def update_all(self: Tensors, grads: Tensors, *state_lists: Tensors, grad_scale: Tensor | None = None,
                   found_inf: Tensor | None = None, maximize: bool, **options: Any) -> Lists:  # fmt: skip
        """Return the new parameters, gradients and states, each a list with an entry for each parameter."""
        if isinstance(options["lr"], Tensor):
            options["lr"] = options["lr"].double()
        updated_lists: Lists = tuple([] for _ in range(2 + len(state_lists)))
        for index, (p, g) in enumerate(zip(self, grads, strict=True)):
            # The list of a state that the optimizer does not have, such as the momentum of plain SGD, is empty.
            old_values = (p, g, *(entries[index] if entries else None for entries in state_lists))
            p, g, *states = (x.float() if x is not None and x.dtype in _HALVES else x for x in old_values)
            assert p is not None and g is not None
            g = g if grad_scale is None else g / grad_scale
            p, *states = update(p, -g if maximize else g, *states, **options)
            for entries, old_value, new_value in zip(updated_lists, old_values, (p, g, *states), strict=True):
                if old_value is not None and new_value is not None:
                    new_value = new_value if found_inf is None else torch.where(found_inf == 1, old_value, new_value)
                    entries.append(new_value.to(old_value.dtype))
        return updated_lists

    return update_all


def _adam_update(decoupled: bool) -> Callable[..., Any]:
    """Return the update of one parameter by Adam; with `decoupled` weight decay, by AdamW."""

    def update(p: Tensor, g: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, max_exp_avg_sq: Tensor | None,
               step: Tensor, *, lr: Any, beta1: float, beta2: float, weight_decay: float, eps: float,
               amsgrad: bool) -> Any:  # fmt: skip
        """Return the new parameter and its new states for the gradient `g`, in the order of the arguments."""
        if weight_decay:
            p, g = (p * (1 - lr * weight_decay), g) if decoupled else (p, g + p * weight_decay)
        exp_avg = exp_avg + (g - exp_avg) * (1 - beta1)
        exp_avg_sq = exp_avg_sq * beta2 + g * g * (1 - beta2)
        if amsgrad and max_exp_avg_sq is not None:
            max_exp_avg_sq = torch.maximum(max_exp_avg_sq, exp_avg_sq)
        # 1 - 0.999 would have few significant digits in single precision.
        corrections = [1 - beta ** step.double() for beta in (beta1, beta2)]
        second_moment = max_exp_avg_sq if amsgrad and max_exp_avg_sq is not None else exp_avg_sq
        scale = second_moment.sqrt() / corrections[1].sqrt() + eps
        return p - exp_avg / scale * (lr / corrections[0]), exp_avg, exp_avg_sq, max_exp_avg_sq, step

    return update


def _sgd_update(p: Tensor, g: Tensor, velocity: Tensor | None, *, weight_decay: float, momentum: float, lr: Any,
         dampening: float, nesterov: bool, is_first_step: bool) -> Any:  # fmt: skip
    """Return the new parameter and velocity of SGD. Without momentum, the velocity stays, or is None."""
    g = g + p * weight_decay if weight_decay else g
    if not momentum or velocity is None:
        return p - g * lr, velocity
    velocity = g.clone() if is_first_step else velocity * momentum + g * (1 - dampening)
    return p - (g + velocity * momentum if nesterov else velocity) * lr, velocity


def _adagrad_update(p: Tensor, g: Tensor, total: Tensor, step: Tensor, *, lr: Any, lr_decay: float, weight_decay: float,
             eps: float) -> Any:  # fmt: skip
    """Return the new parameter, sum of squares and step of Adagrad."""
    g = g + p * weight_decay if weight_decay else g
    total = total + g * g
    rate = lr / (1 + (step.double() - 1) * lr_decay)
    return p - g / (total.sqrt() + eps) * rate, total, step


def _keep_first(count: int, update: Callable[..., Lists]) -> Callable[..., Lists]:
    """Return a function that calls `update` and returns only the first `count` lists of its result.

    The kernel does not return the other lists, such as the steps, because it does not change them.
    """
    return lambda *lists, **options: update(*lists, **options)[:count]


ENTRYWISE_FORMS: dict[Any, Callable[..., Any]] = {
    _aten._foreach_zero.default: _zero,
    _aten._foreach_addcmul.Tensor: _addcmul,
    _aten._foreach_addcdiv.Tensor: _addcdiv,
    _aten._amp_foreach_non_finite_check_and_unscale.default: _unscale,
    **dict.fromkeys(
        (_aten._fused_adam.default, _aten._fused_adam.tensor_lr),
        _keep_first(5, _map_over_parameters(_adam_update(False))),
    ),
    **dict.fromkeys(
        (_aten._fused_adamw.default, _aten._fused_adamw.tensor_lr),
        _keep_first(5, _map_over_parameters(_adam_update(True))),
    ),
    **dict.fromkeys((_aten._fused_sgd.default, _aten._fused_sgd.tensor_lr), _map_over_parameters(_sgd_update)),
    _aten._fused_adagrad.default: _map_over_parameters(_adagrad_update),
    _aten._fused_adagrad.tensor_lr: _keep_first(3, _map_over_parameters(_adagrad_update)),
}
"""Functional op on lists that is one kernel in torch → its form by ops on entries."""
