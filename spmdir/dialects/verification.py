"""Checks that the shardings and local shapes of a program fit its mesh and its types."""

from __future__ import annotations

from typing import Any

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from spmdir.core.errors import ShardingError
from spmdir.core.mesh import Mesh
from spmdir.core.sharding import Sharding
from spmdir.core.tensor import TensorMeta
from spmdir.dialects.attributes import (
    DYNAMIC,
    print_type,
    type_of,
)


def check_decided(sharding: Sharding) -> None:
    """Raise ShardingError if `sharding` leaves an axis to the compiler."""
    if sharding.open_axes:
        raise ShardingError(f"<{sharding}> leaves '{sharding.open_axes[0]}' open; only an input or a constraint may")


def check_shards(meta: TensorMeta, shape: Any, sharding: Sharding | None, mesh: Mesh | None) -> None:
    """Raise SpmdirError unless `meta` is local to a tensor of global shape `shape`; sizes that differ are `?`."""
    if shape is None and sharding is None:
        return  # inside a local form, which alone knows
    if shape is None or sharding is None or mesh is None:
        raise ShardingError(
            f"{print_type(type_of(meta))} has a size that differs between ranks; expected its "
            "global shape, as in `of [7, 8]`"
        )
    if not isinstance(shape, tuple) or len(shape) != meta.rank or any(type(n) is not int or n < 0 for n in shape):
        raise ShardingError(
            f"is of a global tensor of {meta.rank} dimensions, found the shape {shape}; "
            f"expected {meta.rank} sizes, as in `of [7, 8]`"
        )
    sharding.check_shape(mesh, shape)
    shapes = sharding.local_shapes(shape, mesh)
    expected = [sizes[0] if len(set(sizes)) == 1 else "?" for sizes in zip(*shapes, strict=True)]
    found = ["?" if size == DYNAMIC else size for size in meta.shape]
    if found != expected:
        raise ShardingError(f"the shards of {list(shape)} <{sharding}> have the shape {expected}, found {found}")


def check_sharding(sharding: Sharding, mesh: Mesh | None, meta: TensorMeta | None, local: bool = False) -> None:
    """Raise SpmdirError unless a tensor of shape and element type `meta` can have `sharding` on `mesh`.

    Args:
        local: the shape is that of a rank's shard.
    """
    if mesh is None:
        raise ShardingError("has a sharding but the module declares no mesh; add `spmd.mesh @mesh <…>`")
    if meta is None:
        raise ShardingError(
            f"has the sharding <{sharding}> but is not a tensor of a known element type; "
            "expected a type such as `tensor<4x6xf32>`, or no sharding"
        )
    if sharding.mesh != mesh.name:
        raise ShardingError(
            f"has a sharding over mesh @{sharding.mesh}; the mesh of the module is @{mesh.name}, expected that one"
        )
    if local:
        sharding.check(mesh, meta.rank)
    else:
        sharding.check_shape(mesh, meta.shape)
    for axis, placement in sharding.entries:
        if not placement.supports(meta.dtype):
            what = "reduction" if placement.trait == "partial" else "placement"
            raise ShardingError(f"{placement} on axis '{axis}' is not a {what} of {meta.dtype} values")


def is_local(function: Any) -> bool:
    """Return whether the types of `function` are those of one rank, as localize makes them."""
    return function is not None and "spmd.local" in function.attributes


def mesh_of(op: Operation) -> Mesh | None:
    """Return the mesh of the module around `op`; None if it declares none."""
    found: Any = declaration(op, "spmd.mesh")  # MeshOp, which imports this module
    return found and found.mesh


def declaration(op: Operation, name: str) -> Operation | None:
    """Return the first op `name` of the module around `op`, or of `op` itself; None if there is none."""
    top: Operation = op
    while (parent := top.parent_op()) is not None:
        top = parent
    if not isinstance(top, ModuleOp):
        return None
    return next((child for child in top.body.block.ops if child.name == name), None)
