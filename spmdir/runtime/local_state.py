"""The shards of a rank: made from global tensors, and as DTensors, which say what part of the tensor they are."""

from __future__ import annotations

import math
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from spmdir.core.errors import UnsupportedError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.standard import Shard as S
from spmdir.core.sharding import Sharding
from spmdir.simulator.distribution import local_tensor


@attrs.frozen(eq=False)
class LocalShard:
    """The shard of this rank of a tensor whose sharding DTensor has no placements for; it cannot be saved as it is.

    Attributes:
        name: of the tensor in the state.
        tensor: the local shard.
        sharding: of the global tensor.
        shape: of the global tensor.
    """

    name: str
    tensor: Tensor
    sharding: Sharding
    shape: tuple[int, ...]

    def __reduce__(self) -> Any:
        raise UnsupportedError(
            f"'{self.name}' is laid out as <{self.sharding}>, for which DTensor has no placements, so a checkpoint of "
            "it would lose the shards of other ranks; save state_dict(), which gathers it, or shard it by S(dim) alone"
        )


def own_shard(tensor: Tensor, sharding: Sharding, mesh: Mesh, rank: int, device: torch.device) -> Tensor:
    """Return the shard of `rank` on `device`, in storage of its own, so that the global tensor can be freed.

    The shard of a parameter is a parameter.
    """
    shard = local_tensor(tensor.detach(), sharding, mesh, rank).to(device)
    shard = shard.clone(memory_format=torch.contiguous_format)
    return nn.Parameter(shard, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else shard


def as_dtensor(
    name: str, tensor: Tensor, sharding: Sharding, shape: tuple[int, ...], mesh: Mesh, device_mesh: Any
) -> DTensor | nn.Parameter | LocalShard:
    """Return this rank's shard of a tensor of global `shape` as a DTensor that shares its memory.

    A parameter gives a parameter; what DTensor has no placements for gives a LocalShard.
    """
    placements = dtensor_placements(sharding, shape, mesh)
    if placements is None:
        return LocalShard(name, tensor, sharding, shape)
    strides = tuple(math.prod(max(size, 1) for size in shape[dim + 1 :]) for dim in range(len(shape)))
    shared = DTensor.from_local(tensor.detach(), device_mesh, placements, run_check=False, shape=shape, stride=strides)  # type: ignore
    return nn.Parameter(shared, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else shared


def dtensor_placements(sharding: Sharding, shape: tuple[int, ...], mesh: Mesh) -> list[Any] | None:
    """Return the DTensor placements of `sharding`; None if there are none.

    DTensor nests shards of one dimension in mesh order. Where `sharding` nests them otherwise, a strided shard stands
    for those that come too early, which is exact where all shards have the same size.
    """
    if any(type(placement) is not S or axis not in mesh.axis_names for axis, placement in sharding.entries):
        return None
    order = {axis: position for position, axis in enumerate(mesh.axis_names)}
    placements: list[Any] = [Replicate()] * len(order)
    for dim, size in enumerate(shape):
        axes = sharding.dim_axes(dim)
        for at, axis in enumerate(axes):
            later = [mesh.sizes[major] for major in axes[:at] if order[major] > order[axis]]
            placements[order[axis]] = _StridedShard(dim, split_factor=math.prod(later)) if later else Shard(dim)
            if later and size % mesh.group_size(axes):
                return None
    return placements
