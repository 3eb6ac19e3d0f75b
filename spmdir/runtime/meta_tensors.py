"""Memory for the parameters and buffers of a sharded module that are on the meta device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils import swap_tensors

from spmdir.core.errors import SpmdirError
from spmdir.runtime.local_state import like_shard, local_shard
from spmdir.runtime.parallel import Parallel


def tensors_on_meta(module: nn.Module) -> dict[str, DTensor]:
    """Return name → DTensor of the parameters and buffers on the meta device. Tied tensors have one entry."""
    named_tensors = (*module.named_parameters(), *module.named_buffers())
    return {name: tensor for name, tensor in named_tensors if isinstance(tensor, DTensor) and tensor.is_meta}


def check_values(state: Any) -> None:
    """Raise SpmdirError if `state` is a Parallel or a module with a tensor without values. Other objects pass."""
    if isinstance(state, Parallel):
        state.check_values()
    elif isinstance(state, nn.Module) and (missing := tensors_on_meta(state)):
        raise no_values_error(min(missing))


def no_values_error(name: str) -> SpmdirError:
    """Return the error of a tensor of a module that has no values."""
    return SpmdirError(
        f"'{name}' has no values, because it is on the meta device; expected a tensor with values: "
        "initialise it with materialize, load_safetensors or checkpoint.load, or with to_empty and your "
        "own initialisation"
    )


@contextmanager
def memory_for_meta(tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """Allocate the DTensors in `tensors` that are on the meta device, on the device of their mesh.

    The tensor objects stay the same, so ties and optimizers remain valid. If the body raises, they are on the meta
    device again.
    """
    meta_tensors = {id(tensor): tensor for tensor in tensors.values() if isinstance(tensor, DTensor) and tensor.is_meta}
    allocations = [(tensor, _allocate(tensor)) for tensor in meta_tensors.values()]
    for tensor, allocated in allocations:
        swap_tensors(tensor, allocated)
    try:
        yield
    except Exception:
        for tensor, allocated in allocations:
            swap_tensors(tensor, allocated)
        raise


@torch.no_grad()
def _allocate(tensor: DTensor) -> DTensor | nn.Parameter:
    """Return an uninitialised DTensor like `tensor` on the device of its mesh; a parameter for a parameter."""
    local = torch.empty_like(local_shard(tensor), device=tensor.device_mesh.device_type)
    allocated = like_shard(tensor, local)
    return nn.Parameter(allocated, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else allocated
