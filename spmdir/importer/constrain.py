"""`constrain`: user annotations on values inside a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import torch
from torch import Tensor, fx

from spmdir.core.errors import require_type, wrong_argument
from spmdir.core.placement.sharding import Sharding, parse_sharding
from spmdir.core.placement.standard import OPEN
from spmdir.torch_interop.dispatch import is_inside_transform


@torch.library.custom_op("spmdir::constrain", mutates_args=(), schema="(Tensor x, str sharding) -> Tensor")
def _constrain(x: Tensor, sharding: str) -> Tensor:
    """Compute the op `spmdir::constrain` on real tensors: it copies `x`."""
    return x.clone()  # a custom op may not return its argument


@_constrain.register_fake
def _(x: Tensor, sharding: str) -> Tensor:
    """Return the result of the op on fake tensors."""
    return torch.empty_like(x)


def _keep_sharding(ctx: Any, inputs: tuple[Tensor, str], output: Tensor) -> None:
    """Save the sharding in `ctx` for the backward, as autograd's `setup_context`."""
    ctx.sharding = inputs[1]


def _gradient_sharding(sharding: str) -> str:
    """Return the text of the sharding of the gradient of a value with `sharding`.

    Partial axes become replicated: a partial gradient saves nothing. An axis with a lossy placement becomes `?`
    (the compiler decides it), because the gradient of a rounded value is exact.
    """
    entries = parse_sharding(sharding).entries
    not_partial = [(axis, placement) for axis, placement in entries if placement.trait != "partial"]
    return _tangent_sharding(str(Sharding(not_partial)))


def _tangent_sharding(sharding: str) -> str:
    """Return the text of the sharding of the tangent of a value: `sharding` with `?` on axes with lossy placements."""
    entries = parse_sharding(sharding).entries
    return str(Sharding([(axis, OPEN if placement.error else placement) for axis, placement in entries]))


def _constrain_gradient(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    """Return the gradients of `x` and `sharding`; the second is None, because a string has no gradient."""
    return _constrain(gradient, _gradient_sharding(ctx.sharding)), None


_constrain.register_autograd(_constrain_gradient, setup_context=_keep_sharding)


class _ConstrainFunction(torch.autograd.Function):
    """The same op for torch.func, which cannot differentiate custom ops."""

    @staticmethod
    def forward(x: Tensor, sharding: str) -> Tensor:
        return _constrain(x, sharding)

    setup_context = staticmethod(_keep_sharding)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _ConstrainFunction.apply(gradient, _gradient_sharding(ctx.sharding)), None  # type: ignore

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> Tensor:
        return _ConstrainFunction.apply(tangent, _tangent_sharding(ctx.sharding))  # type: ignore

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int, None], x: Tensor, sharding: str) -> tuple[Tensor, int]:
        """Constrain all samples at once, and return (the result, the index of its batch dimension: 0).

        The batch dimension of `x` moves to the front, so the placements of one sample shift by one dimension.
        """
        shifted = []
        for axis, placement in parse_sharding(sharding).entries:
            if placement.dim is not None:
                placement = attrs.evolve(placement, dim=placement.dim + 1)
            shifted.append((axis, placement))
        return _ConstrainFunction.apply(x.movedim(in_dims[0], 0), str(Sharding(shifted))), 0  # type: ignore


CONSTRAIN = torch.ops.spmdir.constrain.default
"""The op that traces record."""


def constrain(x: Tensor, sharding: str | Sharding | Mapping[str, object]) -> Tensor:
    """Constrain `x` and its gradient to a sharding. On axes where `x` is partial, the gradient is replicated.

    In eager mode, this is an identity. `torch.export` and `make_fx` record it, and `import_fx` converts it to a
    `spmd.constraint`. It supports gradients of any order and tangents.

    A lossy placement, such as one with 8-bit shards, rounds only the value. The gradient passes unchanged (a
    straight-through estimator), and the compiler decides its placement on these axes.

    Args:
        x: a tensor of any shape.
        sharding: `"dp: S(0), tp: ?"` or `{"dp": "S(0)", "tp": "?"}`. The compiler decides axes with `?`. Axes that are
            not listed are replicated.

    Returns:
        A tensor equal to `x`.

    Raises:
        ParseError, ShardingError: the sharding is malformed.

    Example:
        >>> x = spmdir.constrain(x, "dp: S(0), tp: ?")
    """
    if not isinstance(x, (Tensor, fx.Proxy)):
        raise wrong_argument("x", x, "a tensor")
    text = _check_sharding(sharding)
    if not torch.compiler.is_dynamo_compiling() and is_inside_transform():
        return _ConstrainFunction.apply(x, text)  # type: ignore
    return _constrain(x, text)


@torch.compiler.assume_constant_result  # Dynamo must not trace the parser
def _check_sharding(sharding: str | Sharding | Mapping[str, object]) -> str:
    """Return the text of a sharding, after a check that it is well formed."""
    if isinstance(sharding, Mapping):
        sharding = ", ".join(f"{axis}: {placement}" for axis, placement in sharding.items())
    require_type("sharding", sharding, (str, Sharding), 'a text such as "dp: S(0)", a dict or a Sharding')
    parse_sharding(str(sharding))
    return str(sharding)
