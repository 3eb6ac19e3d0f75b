"""The torch ops of local maps: a user's function and its gradient, registered as `torch.ops.local_map.NAME`.

    outs  = NAME([q, k], literals, in_shardings, out_shardings, module, 0.0)
    grads = NAME_backward([q, k, grad_out], literals, …, [0, 1])            for q and k

Both run the function on the tensors that they receive: whole tensors on one device, local shards on a rank. The op of
the gradient runs the function again, because only the operands are saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from spmdir.core.placement.declaration import NAMESPACE, Declaration
from spmdir.importer.local_function import LocalFunction, is_inexact
from spmdir.torch_interop.dispatch import is_inside_transform
from spmdir.torch_interop.ops import OpOverload, is_registered

LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")

_PARAMETERS = (
    "(Tensor[] operands, str literals, str[] in_shardings, str[] out_shardings, str module, float flops_per_element"
)
ARGUMENT_COUNT = 5
"""The number of parameters after the operands."""

_FUNCTION = "spmdir_local_function"
"""The attribute of an op that contains its function."""

BACKWARD = "_backward"
"""The end of the name of the op of a gradient."""


def register(local: LocalFunction) -> OpOverload:
    """Register the op of a function and the op of its gradient with torch, and return the op of the function."""
    for name, run, fake, further_parameters in (
        (local.name, local.run, local.run, ""),
        # `wanted` has the indices of the operands whose gradients the op returns.
        (local.name + BACKWARD, local.run_backward, _fake_gradients, ", int[] wanted"),
    ):
        LIBRARY.define(f"{name}{_PARAMETERS}{further_parameters}) -> Tensor[]")
        LIBRARY.impl(name, run, "CompositeExplicitAutograd")
        torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=LIBRARY)
    op, backward_op = find_op(local.name), find_op(local.name + BACKWARD)
    assert op is not None and backward_op is not None
    setattr(op, _FUNCTION, (local, False))
    setattr(backward_op, _FUNCTION, (local, True))
    torch.library.register_autograd(
        f"{NAMESPACE}::{local.name}",
        lambda ctx, gradients: (_gradients(ctx, gradients, ctx.needs_input_grad[0]), *[None] * ARGUMENT_COUNT),
        setup_context=lambda ctx, inputs, output: _save_operands(ctx, backward_op, inputs, output),
        lib=LIBRARY,
    )
    return op


def registered_function(op: Any) -> tuple[LocalFunction, bool] | None:
    """Return (function, whether `op` computes its gradient) of the op of a local map; None for any other op."""
    return getattr(op, _FUNCTION, None)


def find_op(name: str) -> OpOverload | None:
    """Return `torch.ops.local_map.NAME`; None if it is not registered."""
    if not is_registered(f"{NAMESPACE}::{name}", ""):
        return None
    return getattr(getattr(torch.ops, NAMESPACE), name).default


def call_op(op: OpOverload, operands: Sequence[Tensor], arguments: tuple[Any, ...]) -> Sequence[Tensor]:
    """Call the op of a function. torch.func cannot differentiate custom ops, so there an autograd.Function calls it."""
    if not torch.compiler.is_dynamo_compiling() and is_inside_transform():
        return _LocalMapFunction.apply(op, arguments, *operands)  # type: ignore
    return op(list(operands), *arguments)


class _LocalMapFunction(torch.autograd.Function):
    """The op of a function, for torch.func."""

    @staticmethod
    def forward(op: OpOverload, arguments: tuple[Any, ...], *operands: Tensor) -> tuple[Tensor, ...]:
        return tuple(op(list(operands), *arguments))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        op, arguments, *operands = inputs
        _save_operands(ctx, find_op(op.name().partition("::")[2] + BACKWARD), (operands, *arguments), output)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return None, None, *_gradients(ctx, gradients, ctx.needs_input_grad[2:])


class _GradientFunction(torch.autograd.Function):
    """The op of a gradient, which has no gradient itself."""

    @staticmethod
    def forward(op: OpOverload, arguments: tuple[Any, ...], *operands: Tensor) -> tuple[Tensor, ...]:
        return tuple(op(list(operands), *arguments))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.op = inputs[0]

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        registered = registered_function(ctx.op)
        assert registered is not None
        raise registered[0].error(
            "is differentiated twice; expected first gradients only: write the function in torch ops"
        )


def _save_operands(ctx: Any, backward_op: OpOverload | None, inputs: Any, output: Sequence[Tensor]) -> None:
    """Save in `ctx`, for the backward, the operands, the other arguments, and shape, dtype and device of each result.

    Args:
        backward_op: the op of the gradient.
        inputs: (operands, *other arguments of the op).
    """
    operands, *ctx.arguments = inputs
    ctx.save_for_backward(*operands)
    ctx.results = [(result.shape, result.dtype, result.device) for result in output]
    ctx.backward_op = backward_op


def _gradients(ctx: Any, gradients: Sequence[Tensor | None], needed: Sequence[bool]) -> list[Tensor | None]:
    """Return the gradient of each operand; None where it is not needed.

    The op of the gradient gets the operands, then the gradient of each floating-point result.

    Args:
        ctx: the context of autograd, filled by `_save_operands`.
        needed: for each operand, whether its gradient is needed.
        gradients: the gradient of each result; None for a zero gradient.
    """
    operands = ctx.saved_tensors
    literals, in_shardings, out_shardings, module, flops = ctx.arguments
    wanted = [index for index, operand in enumerate(operands) if needed[index] and is_inexact(operand.dtype)]
    inexact = [index for index, (_, dtype, _) in enumerate(ctx.results) if is_inexact(dtype)]
    result_gradients: list[Tensor] = []
    for index in inexact:
        shape, dtype, device = ctx.results[index]
        gradient = gradients[index]
        result_gradients.append(torch.zeros(shape, dtype=dtype, device=device) if gradient is None else gradient)
    declared = Declaration.parse(tuple(in_shardings), tuple(out_shardings)).of_gradients(inexact, wanted)
    arguments = (literals, *declared.texts, module, flops, wanted)
    operand_gradients = iter(_GradientFunction.apply(ctx.backward_op, arguments, *operands, *result_gradients))  # type: ignore
    return [next(operand_gradients) if index in wanted else None for index in range(len(operands))]


def _fake_gradients(operands: Sequence[Tensor], *arguments: Any) -> list[Tensor]:
    """Return fake gradients: an empty tensor like each operand in `wanted`, the last of `arguments`."""
    return [torch.empty_like(operands[index]) for index in arguments[-1]]
