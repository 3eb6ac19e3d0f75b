"""The ranks of a mesh in the process group, and their devices."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from spmdir.core.errors import SpmdirError
from spmdir.core.mesh import Mesh
from spmdir.lowering.process_groups import device_groups, device_rank


def given_device_mesh(mesh: Mesh | DeviceMesh, device_mesh: DeviceMesh | None) -> DeviceMesh | None:
    """Return `device_mesh`, or `mesh` if that is a DeviceMesh; None if neither is."""
    return mesh if device_mesh is None and isinstance(mesh, DeviceMesh) else device_mesh


def mesh_members(device_mesh: Any) -> list[int]:
    """Return the global ranks of the mesh, in mesh order, after a check that this process is one of them.

    Raises:
        SpmdirError: there is no process group.
    """
    if not dist.is_initialized():
        raise SpmdirError(
            "this process has no process group; expected one of all ranks: start a process for each rank "
            "of the mesh, as with torchrun, and call torch.distributed.init_process_group first"
        )
    if device_mesh is None:
        return list(range(dist.get_world_size()))
    device_rank(device_mesh)
    return device_mesh.mesh.flatten().tolist()


def check_world(mesh: Mesh, device_mesh: Any) -> None:
    """Raise SpmdirError unless the device mesh, or the process group if it is None, fits `mesh`."""
    if device_mesh is not None:
        device_groups(mesh, device_mesh)
    elif dist.get_world_size() != mesh.world_size:
        count = dist.get_world_size()
        raise SpmdirError(
            f"the process group has {count} rank{'s' * (count > 1)}; expected {mesh.world_size}, as in mesh "
            f"{mesh}: start {mesh.world_size} process{'es' * (mesh.world_size > 1)}, or give the "
            "device_mesh of a part of them"
        )


def make_device_mesh(mesh: Mesh, device: torch.device) -> Any:
    """Return a torch DeviceMesh like `mesh` over the default process group."""
    return dist.device_mesh.init_device_mesh(device.type, tuple(mesh.sizes.values()), mesh_dim_names=mesh.axis_names)


def rank_device(device_mesh: Any) -> torch.device:
    """Return the device of this rank: that of the device mesh, else CUDA if the group has NCCL, else the CPU."""
    if device_mesh is not None:
        kind = device_mesh.device_type
    else:
        kind = "cuda" if "nccl" in dist.get_backend_config() and torch.cuda.is_available() else "cpu"
    return torch.device(kind) if kind == "cpu" else torch.device(kind, torch.get_device_module(kind).current_device())
