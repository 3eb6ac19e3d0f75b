"""Check a local map on the local shapes of a rank, and count its floating-point operations there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from spmdir.core.errors import ShardingError, SpmdirError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.declaration import FLOPS, LITERALS, declaration, work_elements
from spmdir.core.placement.sharding import as_sharding
from spmdir.core.placement.tensor import TensorMeta
from spmdir.importer.function_ops import registered_function
from spmdir.importer.local_function import LocalFunction
from spmdir.torch_interop.dispatch import TorchDispatchMode
from spmdir.torch_interop.dtypes import DTYPES_OF_TORCH, TORCH_DTYPES
from spmdir.torch_interop.fake_tensors import FakeTensorMode
from spmdir.torch_interop.ops import OpOverload

_BACKWARD_COST = 3
"""The cost of a gradient in calls of the function: it calls the function again, and the gradient costs two calls."""


def with_cost(
    op: Any,
    operands: Sequence[TensorMeta],
    results: Sequence[TensorMeta | None],
    arguments: Mapping[str, Any],
    mesh: Mesh,
) -> dict[str, Any]:
    """Return the arguments of a call of a local map, with the attribute `FLOPS`: its operations per element of work.

    To count the operations, the function runs on fake tensors with the local shapes of rank 0.

    Args:
        op: the torch op of the local map, or of its gradient.
        operands, results: the global types.
        arguments: the arguments of the call that are not tensors, by name.

    Raises:
        ShardingError: a declared sharding does not fit the mesh or its tensor, or the function returns other shapes on
            the shards of a rank than the declared ones.
        UnsupportedError: the function fails on the shards of a rank.
    """
    registered = registered_function(op)
    assert registered is not None
    local, is_backward = registered
    declared = declaration(arguments, len(operands), len(results))
    local_metas: list[TensorMeta] = []
    for index, (sharding, meta) in enumerate(zip(declared.all, (*operands, *results), strict=True)):
        is_operand = index < len(operands)
        tensor = f"tensor argument {index}" if is_operand else f"result {index - len(operands)}"
        assert meta is not None
        try:
            on_mesh = as_sharding(sharding, mesh)
            on_mesh.check_shape(mesh, meta.shape, meta.dtype)
        except SpmdirError as error:
            raise error.at(local.location, f"{tensor} of the local map '{local.function.__qualname__}'") from None
        local_metas.append(on_mesh.local_type(meta, mesh, mesh.coordinate(0)))
    local_operands, local_results = tuple(local_metas[: len(operands)]), local_metas[len(operands) :]
    returned, flops = _run(local, is_backward, local_operands, arguments[LITERALS], arguments.get("wanted", ()))
    for index, (meta, expected) in enumerate(zip(returned, local_results, strict=True)):
        if meta != expected:
            global_meta, sharding = results[index], declared.results[index]
            raise ShardingError(
                f"the function '{local.function.__qualname__}' of a local map returns tensor<{meta}> as result {index} "
                f"on the shards of a rank; expected tensor<{expected}>, the shard of tensor<{global_meta}> "
                f"<{sharding}>: correct out_shardings",
                local.location,
            )
    elements = work_elements(declared, tuple(local_metas))
    return {**arguments, FLOPS: flops / elements if elements else 0.0}


@lru_cache(maxsize=4096)
def _run(
    local: LocalFunction, is_backward: bool, operands: tuple[TensorMeta, ...], literals: str, wanted: tuple[int, ...]
) -> tuple[tuple[TensorMeta, ...], float]:
    """Run a function, or its gradient, on fake tensors; return the types of its results and its operations (FLOPs).

    Args:
        is_backward: whether to run the gradient.
        operands: the local types of the operands.
        literals: the arguments that are not tensors, as text.
        wanted: the indices of the tensor arguments whose gradient is computed; only for the gradient.
    """
    with FakeTensorMode(), _FlopCounter() as counter:
        tensors = [torch.empty(meta.shape, dtype=TORCH_DTYPES[meta.dtype]) for meta in operands]
        try:
            if is_backward:
                results: list[Tensor] = local.run_backward(tensors, literals, None, None, None, None, wanted)
            else:
                results = local.run(tensors, literals)
        except SpmdirError:
            raise
        except Exception as error:  # the user's function may raise anything
            shapes = ", ".join(f"tensor<{meta}>" for meta in operands)
            reason = str(error).partition("\n")[0]
            raise local.error(
                f"fails on the shards of a rank, ({shapes}): {type(error).__name__}: {reason}; expected a function of "
                "local shapes: read sizes from the arguments, or correct in_shardings"
            ) from error
    metas = tuple(TensorMeta(tuple(result.shape), DTYPES_OF_TORCH[result.dtype]) for result in results)
    if local.flops is None:
        return metas, counter.flops
    # The operands of a gradient are the tensor arguments of the function, then the gradients of its results.
    shapes = [tuple(meta.shape) for meta in operands[: sum(local.tensors)]]
    flops = float(local.flops(*shapes) if callable(local.flops) else local.flops)
    return metas, flops * (_BACKWARD_COST if is_backward else 1)


class _FlopCounter(TorchDispatchMode):
    """Counts floating-point operations as torch's FlopCounterMode, which torch.compile in the function rejects."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0.0

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Return True, as torch.compile inside the function requires of all active modes."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an op, and add its operations by torch's formula. An op without a formula is decomposed, if it can be."""
        kwargs = kwargs or {}
        formula = flop_registry.get(getattr(func, "overloadpacket", func))
        if formula is None and isinstance(func, OpOverload) and func.namespace != "prim":
            with self:  # torch disables a mode inside its own dispatch, so the ops of the decomposition need it again
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        result = func(*args, **kwargs)
        self.flops += formula(*args, **kwargs, out_val=result) if formula is not None else 0
        return result
