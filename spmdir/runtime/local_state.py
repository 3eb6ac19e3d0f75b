"""Make the local shard of a global tensor, and convert between local shards and DTensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard

from spmdir.core.errors import UnsupportedError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding, as_sharding
from spmdir.core.placement.standard import Shard as S
from spmdir.lowering.process_groups import device_rank
from spmdir.runtime.block_shard import BlockShard
from spmdir.runtime.shard_blocks import ShardBlock, find_shard_blocks
from spmdir.simulator.distribution import local_tensor
from spmdir.torch_interop.dtensors import StridedShard, dtensor_spec, inner_tensor, shard_order
from spmdir.torch_interop.elementwise_dtensor import on_shard


@attrs.frozen(eq=False)
class LocalShard:
    """A local tensor that does not consist of elements of the global tensor, such as a partial sum. It cannot be saved.

    Attributes:
        name: the name of the tensor in the state.
        tensor: the local shard.
        sharding: the sharding of the global tensor.
        shape: the global shape.
        reason: the reason why it cannot be saved.
    """

    name: str
    tensor: Tensor
    sharding: Sharding
    shape: tuple[int, ...]
    reason: str

    def __reduce__(self) -> Any:
        raise UnsupportedError(f"'{self.name}' has the sharding <{self.sharding}>: {self.reason}")


def copy_shard(tensor: Tensor, sharding: Sharding, mesh: Mesh, rank: int, device: torch.device) -> Tensor:
    """Return a copy of the shard of `rank` on `device`. It shares no memory with the global tensor, which can be freed.

    The shard of a parameter is a parameter. The shard of a tensor on the meta device is on the meta device.
    """
    shard = local_tensor(tensor.detach(), sharding, mesh, rank)
    if shard.is_meta:  # the tensor may be a fake tensor of a trace, and so would be its copy
        shard = torch.empty(shard.shape, dtype=shard.dtype, device="meta")
    else:
        shard = shard.to(device).clone(memory_format=torch.contiguous_format)
    return nn.Parameter(shard, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else shard


def as_dtensor(
    name: str, tensor: Tensor, sharding: Sharding, shape: tuple[int, ...], mesh: Mesh, device_mesh: Any
) -> DTensor | nn.Parameter | LocalShard:
    """Return this rank's shard of a tensor of global `shape` as a DTensor that shares its memory.

    The result for a parameter is a parameter. If the shard is not one of torch.chunk, the DTensor contains a
    `BlockShard`. If it does not consist of elements of the tensor, the result is a LocalShard.
    """
    placements, shard = dtensor_placements(sharding, shape, mesh), tensor.detach()
    if placements is None:
        try:
            blocks = find_shard_blocks(sharding, shape, mesh, device_rank(device_mesh))
        except UnsupportedError as error:
            return LocalShard(name, tensor, sharding, shape, error.message)
        placements, is_partition = _sharded_axes(sharding, shape, mesh)
        shard = BlockShard(shard, blocks, is_partition)
    dtensor = dtensor_of_shard(shard, shape, device_mesh, placements)
    return nn.Parameter(dtensor, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else dtensor


def dtensor_of_shard(local: Tensor, shape: Sequence[int], device_mesh: Any, placements: Sequence[Any]) -> DTensor:
    """Return the DTensor of global `shape` with the local shard `local`, without a comparison between ranks."""
    strides = tuple(math.prod(max(size, 1) for size in shape[dim + 1 :]) for dim in range(len(shape)))
    return DTensor.from_local(local, device_mesh, placements, run_check=False, shape=torch.Size(shape), stride=strides)


def local_shard(tensor: DTensor) -> Tensor:
    """Return the shard of a DTensor on this rank: a plain tensor that shares its memory, outside autograd.

    `DTensor.to_local` may return a `BlockShard`, on which programs of ranks cannot run.
    """
    local: Any = inner_tensor(tensor)
    return local.shard if isinstance(local, BlockShard) else local


def like_shard(tensor: DTensor, local: Tensor) -> DTensor:
    """Return a DTensor with the placements and local strides of `tensor` whose shard on this rank is `local`.

    Fused optimizers of torch process a parameter, its gradient and its states in memory order, and do not compare
    strides. So `local` is copied if its elements have another order in memory. `DTensor.from_local` is not used: its
    checks cost as much as the update of a small parameter. Tensors of one layout may share their spec, a constant.
    """
    reference: Any = inner_tensor(tensor)
    if isinstance(reference, BlockShard):
        local = BlockShard(with_strides(local, reference.shard), reference.blocks, reference.is_partition)
    else:
        local = with_strides(local, reference)
    return on_shard(local, dtensor_spec(tensor))


def with_strides(tensor: Tensor, like: Tensor) -> Tensor:
    """Return `tensor` with the strides of `like`, a dense tensor of equal shape; a view if the memory orders agree."""
    strides = like.stride()
    if tensor.stride() == strides:
        return tensor
    sizes = zip(tensor.shape, tensor.stride(), strides, strict=True)
    if not tensor.numel() or all(size == 1 or stride == expected_stride for size, stride, expected_stride in sizes):
        return tensor.as_strided(like.shape, strides)
    return torch.empty_like(like, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def checkpointable(name: str, tensor: DTensor) -> DTensor:
    """Return a DTensor in the memory of `tensor` that torch.distributed.checkpoint saves and loads correctly.

    torch saves only shards of torch.chunk, nested in mesh order, at the right positions. The local tensor of the result
    is a `BlockShard`, from which torch reads the positions. This also supports a `StridedShard` of several blocks and
    another nesting order.

    Raises:
        UnsupportedError: the DTensor is partial, or its local shape differs from that of its placements.
    """
    local: Any = inner_tensor(tensor)
    if isinstance(local, BlockShard):
        return tensor
    shape, device_mesh, order = tuple(tensor.shape), tensor.device_mesh, shard_order(tensor)
    axes = [f"axis{index}" for index in range(device_mesh.ndim)]
    mesh = Mesh(dict(zip(axes, device_mesh.mesh.shape, strict=True)))
    sharding = as_sharding(list(tensor.placements), mesh, len(shape))
    # `order` has the nesting order of the axes, which the placements lack.
    if order and not any(isinstance(placement, StridedShard) for placement in tensor.placements):
        sharding = Sharding([(axes[axis], S(entry.tensor_dim)) for entry in order for axis in entry.mesh_dims])
    blocks = find_shard_blocks(sharding, shape, mesh, device_rank(device_mesh))
    expected = sharding.local_shape(shape, mesh, mesh.coordinate(device_rank(device_mesh)))
    if expected != tuple(local.shape):
        raise UnsupportedError(
            f"'{name}' of shape {list(shape)} has the placements {tensor.placements} and the local shape "
            f"{list(local.shape)}; expected {list(expected)}, the shape of the shard of torch.chunk"
        )
    return dtensor_of_shard(BlockShard(local.detach(), blocks, False), shape, device_mesh, tensor.placements)


def blocks_and_shard(name: str, tensor: Tensor | LocalShard) -> tuple[tuple[ShardBlock, ...], Tensor]:
    """Return the blocks of the tensor that this rank has, and the local shard, in the memory of `tensor`.

    A plain tensor is one block: each rank has all of it.

    Raises:
        UnsupportedError: the local shard does not consist of elements of the tensor.
    """
    if isinstance(tensor, LocalShard):
        raise UnsupportedError(f"'{name}' has the sharding <{tensor.sharding}>: {tensor.reason}")
    if isinstance(tensor, DTensor):
        block_shard: Any = inner_tensor(checkpointable(name, tensor))
        return block_shard.blocks, block_shard.shard
    origin = (0,) * tensor.dim()
    return (ShardBlock(origin, tuple(tensor.shape), origin),), tensor.detach()


def _sharded_axes(sharding: Sharding, shape: tuple[int, ...], mesh: Mesh) -> tuple[list[Any], bool]:
    """Return (approximate DTensor placements, whether the ranks of the sharding axes have every element once).

    The placements contain the dimension that each mesh axis shards, but not the form of its shards. If an axis shards
    several dimensions, they contain the first.
    """
    dims: dict[str, int] = {}
    shard_counts: dict[str, int] = {}
    for axis, placement in sharding.entries:
        for dim in placement.held_ranges(shape, mesh.sizes[axis], 0) or ():
            root = mesh.root_axis(axis)
            dims.setdefault(root, dim)
            shard_counts[root] = shard_counts.get(root, 1) * mesh.sizes[axis]
    shards_whole_axes = all(shard_counts[axis] == mesh.sizes[axis] for axis in shard_counts)
    placements = [Shard(dims[axis]) if axis in dims else Replicate() for axis in mesh.axis_names]
    return placements, shards_whole_axes and not sharding.has_own_type


def dtensor_placements(sharding: Sharding, shape: tuple[int, ...], mesh: Mesh) -> list[Any] | None:
    """Return the DTensor placements of `sharding`; None if DTensor cannot represent it.

    DTensor nests shards of one dimension in mesh order. If `sharding` has another nesting order, the result contains a
    strided shard for each axis that precedes an outer one in the mesh. It is exact if all shards have equal sizes.
    On a mesh (a=2, b=3), shards along b of which each is divided along a become a: StridedShard(0, split_factor=3) and
    b: Shard(0).
    """
    if any(type(placement) is not S or axis not in mesh.axis_names for axis, placement in sharding.entries):
        return None
    mesh_position = {axis: position for position, axis in enumerate(mesh.axis_names)}
    placements: list[Any] = [Replicate()] * len(mesh_position)
    for dim, size in enumerate(shape):
        axes = sharding.dim_axes(dim)
        for position, axis in enumerate(axes):
            # The axes outside of this one in the sharding, but inside of it in the mesh.
            swapped_axes = [outer for outer in axes[:position] if mesh_position[outer] > mesh_position[axis]]
            if swapped_axes and size % mesh.group_size(axes):
                return None
            placements[mesh_position[axis]] = (
                StridedShard(dim, split_factor=mesh.group_size(swapped_axes)) if swapped_axes else Shard(dim)
            )
    return placements
