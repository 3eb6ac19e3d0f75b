"""A DTensor whose elementwise updates run on the shards, without the dispatch of DTensor.

An optimizer updates a parameter by about ten small ops, and DTensor spends 15 us on the layout of each, though all its
operands have one layout. `ElementwiseDTensor` runs such an op on the local tensors:

    p.addcdiv_(m, v, value=-lr)   →   p._local_tensor.addcdiv_(m._local_tensor, v._local_tensor, value=-lr)

All other ops, operands of other layouts, and ops that autograd records are those of DTensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.distributed.tensor import DTensor

from spmdir.torch_interop.dispatch import without_torch_function

_INPLACE = (
    "abs_", "add_", "addcdiv_", "addcmul_", "clamp_max_", "clamp_min_", "copy_", "div_", "exp_", "lerp_", "mul_",
    "neg_", "pow_", "reciprocal_", "rsqrt_", "sign_", "sqrt_", "sub_", "zero_",
)  # fmt: skip
"""Ops that write a result for each element into their first operand; foreach ops too, with `_foreach_` before."""

_FUSED = ("_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_", "__iadd__", "__isub__", "__imul__")

_NEW = (
    "abs", "add", "addcdiv", "addcmul", "div", "exp", "lerp", "mul", "neg", "pow", "reciprocal", "rsqrt", "sign",
    "sqrt", "sub",
)  # fmt: skip
"""Ops that give a result for each element; foreach ops too."""

_NEW_METHODS = (
    "clone", "empty_like", "ones_like", "zeros_like", "square", "__add__", "__radd__", "__sub__", "__mul__", "__rmul__",
    "__truediv__", "__neg__",
)  # fmt: skip


def _collect_functions() -> dict[Any, bool]:
    """Return function or method of torch → whether it writes into its first operand."""
    in_place_names = [*_INPLACE, *_FUSED, *(f"_foreach_{name}" for name in _INPLACE)]
    functional_names = [*_NEW, *_NEW_METHODS, *(f"_foreach_{name}" for name in _NEW)]
    names = dict.fromkeys(in_place_names, True) | dict.fromkeys(functional_names, False)
    namespaces: tuple[Any, ...] = Tensor, torch
    functions: dict[Any, bool] = {}
    for namespace in namespaces:
        for name, is_in_place in names.items():
            if hasattr(namespace, name):
                functions[getattr(namespace, name)] = is_in_place
    return functions


_WRITES_IN_PLACE = _collect_functions()

_DETACH = Tensor.detach


class ElementwiseDTensor(DTensor):
    """A DTensor that runs elementwise ops on its shard; its copies do too."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an elementwise function on the local shards if all DTensors have one layout; else as DTensor does."""
        is_in_place = _WRITES_IN_PLACE.get(func)
        if is_in_place is None or torch.is_grad_enabled() or (kwargs and "out" in kwargs):
            result = without_torch_function(func, types, args, kwargs or {})
            return elementwise(result) if func is _DETACH else result
        shards = _to_shards(args if not kwargs else (*args, *kwargs.values()))
        if shards is None:
            return without_torch_function(func, types, args, kwargs or {})
        if not kwargs:
            result = func(*shards)
        else:
            result = func(*shards[: len(args)], **dict(zip(kwargs, shards[len(args) :], strict=True)))
        if is_in_place:
            increment_version(args[0])  # autograd detects writes by the version
            return None if result is None else args[0]
        wrapped = _wrap_result(result, args[0], shards[0])
        return without_torch_function(func, types, args, kwargs or {}) if wrapped is None else wrapped

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an op as DTensor does, but detach without the cost of its dispatch."""
        if func is torch.ops.aten.detach.default:  # which autograd calls for each gradient
            tensor = args[0]
            return on_shard(tensor._local_tensor.detach(), tensor._spec)
        return super().__torch_dispatch__(func, types, args, kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> DTensor:
        return elementwise(_as_dtensor(self, lambda: Tensor.__deepcopy__(self, memo)))

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle the tensor as a plain DTensor, which torch.load accepts everywhere."""
        return _as_dtensor(self, lambda: Tensor.__reduce_ex__(self, protocol))


def elementwise(tensor: Any) -> Any:
    """Make a DTensor itself an `ElementwiseDTensor`, and return it."""
    tensor.__class__ = ElementwiseDTensor
    return tensor


def on_shard(local: Tensor, spec: Any) -> ElementwiseDTensor:
    """Return the tensor laid out as `spec` whose shard on this rank is `local`; `DTensor.__init__` takes 3 us."""
    return DTensor.__new__(ElementwiseDTensor, local, spec, requires_grad=False)  # type: ignore[return-value]


def _as_dtensor(tensor: ElementwiseDTensor, run: Callable[[], Any]) -> Any:
    """Return the result of `run`, called while `tensor` is a plain DTensor."""
    tensor.__class__ = DTensor  # type: ignore[assignment]
    try:
        return run()
    finally:
        elementwise(tensor)


def _to_shards(operands: Sequence[Any]) -> list[Any] | None:
    """Return the operands with the shard of each DTensor; None unless all DTensors have the same layout.

    In an op on lists, the entries at each index must have the same layout, and there must be no DTensors outside of
    lists. Numbers and 0-d tensors are returned unchanged.
    """
    spec, layouts, shards = None, None, []
    for operand in operands:
        kind = type(operand)
        if kind is float or kind is int:
            shards.append(operand)
        elif kind is ElementwiseDTensor or isinstance(operand, DTensor):
            if spec is None:
                spec = operand._spec
            elif operand._spec is not spec and operand._spec != spec:
                return None
            shards.append(operand._local_tensor)
        elif isinstance(operand, Tensor):
            if operand.dim():
                return None
            shards.append(operand)
        elif isinstance(operand, (list, tuple)) and operand and isinstance(operand[0], Tensor):
            if all(isinstance(entry, DTensor) for entry in operand):
                specs = [entry._spec for entry in operand]
                if layouts is None:
                    layouts = specs
                elif any(left is not right and left != right for left, right in zip(specs, layouts, strict=True)):
                    return None
                shards.append([entry._local_tensor for entry in operand])
            elif any(isinstance(entry, DTensor) or entry.dim() for entry in operand):
                return None
            else:
                shards.append(operand)
        else:
            shards.append(operand)
    # DTensors both in lists and outside of them would need a comparison of each entry.
    return None if spec is not None and layouts is not None else shards


def _wrap_result(result: Any, operand: Any, shard: Any) -> Any:
    """Return `result` with the layout of `operand`; None unless it has the type and strides of `shard`.

    Args:
        operand: a DTensor or a list of them, with the local tensor `shard`.
    """
    if isinstance(operand, (list, tuple)):
        wrapped = [_wrap_result(*row) for row in zip(result, operand, shard, strict=True)]
        return None if any(entry is None for entry in wrapped) else type(result)(wrapped)
    if not isinstance(operand, DTensor) or not isinstance(result, Tensor):
        return None
    if result.dtype != shard.dtype or result.device != shard.device or result.stride() != shard.stride():
        return None
    return on_shard(result, operand._spec)
