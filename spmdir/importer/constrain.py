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
    return x.clone()  # a custom op may not return its argument


@_constrain.register_fake
def _(x: Tensor, sharding: str) -> Tensor:
    return torch.empty_like(x)


def _keep_sharding(ctx: Any, inputs: tuple[Tensor, str], output: Tensor) -> None:
    ctx.sharding = inputs[1]


def _of_gradient(sharding: str) -> str:
    """Return the gradient's sharding: partial axes become replicated, since a partial gradient saves nothing.

    Axes of other lossy placements are left to the compiler: the gradient is that of an identity, exact.
    """
    return _of_tangent(
        str(Sharding([(axis, p) for axis, p in parse_sharding(sharding).entries if p.trait != "partial"]))
    )


def _of_tangent(sharding: str) -> str:
    """Return the tangent's sharding: axes of lossy placements are left to the compiler."""
    entries = parse_sharding(sharding).entries
    return str(Sharding([(axis, OPEN if p.error else p) for axis, p in entries]))


def _constrain_gradient(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    return _constrain(gradient, _of_gradient(ctx.sharding)), None


_constrain.register_autograd(_constrain_gradient, setup_context=_keep_sharding)


class _Transformed(torch.autograd.Function):
    """The same for torch.func, which differentiates no registered op."""

    @staticmethod
    def forward(x: Tensor, sharding: str) -> Tensor:
        return _constrain(x, sharding)

    setup_context = staticmethod(_keep_sharding)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _Transformed.apply(gradient, _of_gradient(ctx.sharding)), None  # type: ignore

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> Tensor:
        return _Transformed.apply(tangent, _of_tangent(ctx.sharding))  # type: ignore

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int, None], x: Tensor, sharding: str) -> tuple[Tensor, int]:
        """Return the samples stand along a new first dimension."""
        entries = parse_sharding(sharding).entries
        behind = [(axis, p if p.dim is None else attrs.evolve(p, dim=p.dim + 1)) for axis, p in entries]
        return _Transformed.apply(x.movedim(in_dims[0], 0), str(Sharding(behind))), 0  # type: ignore


CONSTRAIN = torch.ops.spmdir.constrain.default
"""The op that traces record."""


def constrain(x: Tensor, sharding: str | Sharding | Mapping[str, object]) -> Tensor:
    """Constrain `x` to a sharding; its gradient is constrained alike, but replicated where `x` is partial.

    A lossy placement, such as one of 8-bit shards, applies to the value alone: ops that follow take the rounded value,
    and the gradient passes unchanged, as of an identity (a straight-through estimator). The compiler decides the
    placement of the gradient on these axes.

    An identity in eager; `torch.export` and `make_fx` record it, and `import_fx` makes it a `spmd.constraint`.
    Gradients of any order and tangents pass it.

    Args:
        x: of any shape.
        sharding: `"dp: S(0), tp: ?"` or `{"dp": "S(0)", "tp": "?"}`; `?` leaves an axis to the compiler, an axis
            that is not named is replicated.

    Raises:
        ParseError, ShardingError: the sharding is malformed.

    Example:
        >>> x = spmdir.constrain(x, "dp: S(0), tp: ?")
    """
    if not isinstance(x, (Tensor, fx.Proxy)):
        raise wrong_argument("x", x, "a tensor")
    text = _checked(sharding)
    if not torch.compiler.is_dynamo_compiling() and is_inside_transform():
        return _Transformed.apply(x, text)  # type: ignore
    return _constrain(x, text)


@torch.compiler.assume_constant_result  # Dynamo is not to trace the parser
def _checked(sharding: str | Sharding | Mapping[str, object]) -> str:
    if isinstance(sharding, Mapping):
        sharding = ", ".join(f"{axis}: {placement}" for axis, placement in sharding.items())
    require_type("sharding", sharding, (str, Sharding), 'a text such as "dp: S(0)", a dict or a Sharding')
    parse_sharding(str(sharding))
    return str(sharding)
