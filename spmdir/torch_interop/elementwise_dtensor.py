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

_LIKE = (
    "clone", "empty_like", "ones_like", "zeros_like", "square", "__add__", "__radd__", "__sub__", "__mul__", "__rmul__",
    "__truediv__", "__neg__",
)  # fmt: skip


def _functions() -> dict[Any, bool]:
    """Return function or method of torch → whether it writes into its first operand."""
    writes = [*_INPLACE, *_FUSED, *(f"_foreach_{name}" for name in _INPLACE)]
    makes = [*_NEW, *_LIKE, *(f"_foreach_{name}" for name in _NEW)]
    names = dict.fromkeys(writes, True) | dict.fromkeys(makes, False)
    homes: tuple[Any, ...] = Tensor, torch
    return {getattr(home, name): kind for home in homes for name, kind in names.items() if hasattr(home, name)}


_WRITES = _functions()

_DETACH = Tensor.detach


class ElementwiseDTensor(DTensor):
    """A DTensor that runs elementwise ops on its shard; its copies do too."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        writes = _WRITES.get(func)
        if writes is None or torch.is_grad_enabled() or (kwargs and "out" in kwargs):
            result = without_torch_function(func, types, args, kwargs or {})
            return elementwise(result) if func is _DETACH else result
        shards = _shards(args if not kwargs else (*args, *kwargs.values()))
        if shards is None:
            return without_torch_function(func, types, args, kwargs or {})
        if not kwargs:
            result = func(*shards)
        else:
            result = func(*shards[: len(args)], **dict(zip(kwargs, shards[len(args) :], strict=True)))
        if writes:
            increment_version(args[0])  # autograd looks there for what has been written to
            return None if result is None else args[0]
        wrapped = _wrapped(result, args[0], shards[0])
        return without_torch_function(func, types, args, kwargs or {}) if wrapped is None else wrapped

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten.detach.default:  # which autograd calls for each gradient
            tensor = args[0]
            return on_shard(tensor._local_tensor.detach(), tensor._spec)
        return super().__torch_dispatch__(func, types, args, kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> DTensor:
        return elementwise(_as_dtensor(self, lambda: Tensor.__deepcopy__(self, memo)))

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Return what makes a DTensor, which every reader of torch.load knows."""
        return _as_dtensor(self, lambda: Tensor.__reduce_ex__(self, protocol))


def elementwise(tensor: Any) -> Any:
    """Make a DTensor itself an `ElementwiseDTensor`, and return it."""
    tensor.__class__ = ElementwiseDTensor
    return tensor


def on_shard(local: Tensor, spec: Any) -> ElementwiseDTensor:
    """Return the tensor laid out as `spec` whose shard on this rank is `local`; `DTensor.__init__` takes 3 us."""
    return DTensor.__new__(ElementwiseDTensor, local, spec, requires_grad=False)  # type: ignore[return-value]


def _as_dtensor(tensor: ElementwiseDTensor, run: Callable[[], Any]) -> Any:
    """Return what `run` gives while `tensor` is a DTensor."""
    tensor.__class__ = DTensor  # type: ignore[assignment]
    try:
        return run()
    finally:
        elementwise(tensor)


def _shards(operands: Sequence[Any]) -> list[Any] | None:
    """Return the operands with local tensors in the place of DTensors; None unless all of these have one layout.

    In an op of lists, those of each place have one. Numbers and tensors without dimensions are as they are.
    """
    spec, layouts, found = None, None, []
    for operand in operands:
        kind = type(operand)
        if kind is float or kind is int:
            found.append(operand)
        elif kind is ElementwiseDTensor or isinstance(operand, DTensor):
            if spec is None:
                spec = operand._spec
            elif operand._spec is not spec and operand._spec != spec:
                return None
            found.append(operand._local_tensor)
        elif isinstance(operand, Tensor):
            if operand.dim():
                return None
            found.append(operand)
        elif isinstance(operand, (list, tuple)) and operand and isinstance(operand[0], Tensor):
            if all(isinstance(one, DTensor) for one in operand):
                specs = [one._spec for one in operand]
                if layouts is None:
                    layouts = specs
                elif any(one is not other and one != other for one, other in zip(specs, layouts, strict=True)):
                    return None
                found.append([one._local_tensor for one in operand])
            elif any(isinstance(one, DTensor) or one.dim() for one in operand):
                return None
            else:
                found.append(operand)
        else:
            found.append(operand)
    return None if spec is not None and layouts is not None else found


def _wrapped(result: Any, like: Any, local: Any) -> Any:
    """Return `result` laid out as `like`, whose shard is `local`; None if it has another type or order in memory."""
    if isinstance(like, (list, tuple)):
        found = [_wrapped(*row) for row in zip(result, like, local, strict=True)]
        return None if any(one is None for one in found) else type(result)(found)
    if not isinstance(like, DTensor) or not isinstance(result, Tensor):
        return None
    if result.dtype != local.dtype or result.device != local.device or result.stride() != local.stride():
        return None
    return on_shard(result, like._spec)
