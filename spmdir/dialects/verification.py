"""Whether the shardings and pieces that a program states fit its mesh and its types."""

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


def check_pieces(meta: TensorMeta, whole: Any, sharding: Sharding | None, mesh: Mesh | None) -> None:
    """Raise SpmdirError unless `meta` is what ranks hold of a tensor of shape `whole`; sizes that differ are `?`."""
    if whole is None and sharding is None:
        return  # inside a local form, which alone knows
    if whole is None or sharding is None or mesh is None:
        raise ShardingError(
            f"{print_type(type_of(meta))} leaves a size open; say of what global shape it is a piece, as `of [7, 8]`"
        )
    if not isinstance(whole, tuple) or len(whole) != meta.rank or any(type(n) is not int or n < 0 for n in whole):
        raise ShardingError(f"is of a global tensor of {meta.rank} dimensions, found the shape {whole}")
    sharding.check_shape(mesh, whole)
    held = sharding.local_shapes(whole, mesh)
    expected = [sizes[0] if len(set(sizes)) == 1 else "?" for sizes in zip(*held, strict=True)]
    found = ["?" if size == DYNAMIC else size for size in meta.shape]
    if found != expected:
        raise ShardingError(f"the pieces of {list(whole)} <{sharding}> have the shape {expected}, found {found}")


def check_sharding(sharding: Sharding, mesh: Mesh | None, meta: TensorMeta | None, local: bool = False) -> None:
    """Raise SpmdirError unless a tensor of shape and element type `meta` can have `sharding` on `mesh`.

    Args:
        local: the shape is that of a rank's piece.
    """
    if mesh is None:
        raise ShardingError("has a sharding but the module declares no mesh; add `spmd.mesh @mesh <…>`")
    if meta is None:
        raise ShardingError(f"has the sharding <{sharding}> but is no tensor of a known element type")
    if sharding.mesh != mesh.name:
        raise ShardingError(f"has a sharding over mesh @{sharding.mesh}; the mesh of the module is @{mesh.name}")
    if local:
        sharding.check(mesh, meta.rank)
    else:
        sharding.check_shape(mesh, meta.shape)
    for axis, placement in sharding.entries:
        if not placement.supports(meta.dtype):
            what = "reduction" if placement.trait == "partial" else "placement"
            raise ShardingError(f"{placement} on axis '{axis}' is no {what} of {meta.dtype} values")


def is_local(function: Any) -> bool:
    """Whether the types of `function` are those of one rank, as localize makes them."""
    return function is not None and "spmd.local" in function.attributes


def mesh_of(op: Operation) -> Mesh | None:
    """The mesh of the module around `op`."""
    top: Operation = op
    while (parent := top.parent_op()) is not None:
        top = parent
    if isinstance(top, ModuleOp):
        for child in top.body.block.ops:
            if child.name == "spmd.mesh":
                return child.mesh  # type: ignore  # MeshOp, which imports this module
    return None
