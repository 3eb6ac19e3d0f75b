"""Checks that the shardings and local shapes of a program fit its mesh and its types."""

from __future__ import annotations

from typing import Any

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from spmdir.core.declared_fields import place
from spmdir.core.dtype import DType
from spmdir.core.errors import ShardingError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.tensor import TensorMeta
from spmdir.dialects.attributes import (
    DYNAMIC,
    global_meta,
    print_type,
    type_of,
)

_NO_MESH = "has a sharding, but the module declares no mesh; expected one: add `spmd.mesh @mesh <dp = 2>` with the axes"


def check_decided(sharding: Sharding) -> None:
    """Raise ShardingError if `sharding` leaves an axis to the compiler."""
    if sharding.open_axes:
        raise ShardingError(
            f"<{sharding}> leaves axis '{sharding.open_axes[0]}' open; expected open axes only on arguments "
            "and constraints: write a placement in place of `?`, or use a spmd.constraint"
        )


def check_shards(meta: TensorMeta, shape: Any, sharding: Sharding | None, mesh: Mesh | None) -> None:
    """Raise SpmdirError unless `meta` is the common local type of a tensor of global shape `shape`.

    Sizes that differ between ranks are DYNAMIC.

    Args:
        shape: the entry of the attribute `of`: the global sizes, and the global element type if the local one differs.
            None without an entry.
    """
    if shape is None and sharding is None:
        return  # a value inside a local form
    if sharding is None:
        raise ShardingError(
            f"{print_type(type_of(meta))} has a global shape but no sharding; expected both: write the "
            "sharding before `of`, as in `<dp: S(0)> of [7, 4]`"
        )
    if mesh is None:
        raise ShardingError(_NO_MESH)
    if shape is None:
        raise ShardingError(
            f"{print_type(type_of(meta))} has a size that differs between ranks; expected its "
            "global shape, as in `of [7, 8]`"
        )
    sizes = shape[:-1] if isinstance(shape, tuple) and shape and isinstance(shape[-1], DType) else shape
    if not isinstance(sizes, tuple) or any(type(size) is not int or size < 0 for size in sizes):
        raise ShardingError(f"has the global shape {shape}; expected a list of sizes, as in `of [7, 8]`")
    if len(sizes) != meta.rank and not sharding.has_own_type:
        raise ShardingError(f"has the global shape {list(sizes)}; expected {meta.rank} sizes, as in `of [7, 8]`")
    global_type = global_meta(shape, meta)
    sharding.check_shape(mesh, global_type.shape, global_type.dtype)
    expected = common_type(sharding, global_type, mesh)
    if meta != expected:
        raise ShardingError(
            f"the local type is {print_type(type_of(meta))}; expected {print_type(type_of(expected))}, the type of the "
            f"shards of {print_type(type_of(global_type))} <{sharding}>"
        )


def common_type(sharding: Sharding, meta: TensorMeta, mesh: Mesh) -> TensorMeta:
    """Return the common local type of a tensor of global type `meta`; sizes that differ are DYNAMIC.

    Raises:
        ShardingError: local shards differ in element type or number of dimensions.
    """
    types = sharding.local_types(meta, mesh)
    if len({(local.rank, local.dtype) for local in types}) > 1:
        type_texts = ", ".join(sorted(f"tensor<{local}>" for local in types))
        declaring_method = next(placement.local_type for _, placement in sharding.entries if placement.has_own_type)
        raise ShardingError(
            f"ranks have {type_texts} of tensor<{meta}> <{sharding}>; expected one element type and one number of "
            "dimensions",
            place(declaring_method),
        )
    shape = []
    for dim, sizes_of_ranks in enumerate(zip(*(local.shape for local in types), strict=True)):
        is_fixed = len(set(sizes_of_ranks)) == 1 and dim not in sharding.routed_dims
        shape.append(sizes_of_ranks[0] if is_fixed else DYNAMIC)
    return TensorMeta(tuple(shape), next(iter(types)).dtype)


def check_sharding(sharding: Sharding, mesh: Mesh | None, meta: TensorMeta | None, local: bool = False) -> None:
    """Raise SpmdirError unless a tensor of shape and element type `meta` can have `sharding` on `mesh`.

    Args:
        local: whether `meta` is the local type.
    """
    if mesh is None:
        raise ShardingError(_NO_MESH)
    if meta is None:
        raise ShardingError(
            f"has the sharding <{sharding}> but is not a tensor of a known element type; expected a type "
            "such as `tensor<4x6xf32>`: correct the type, or remove the sharding"
        )
    if sharding.mesh != mesh.name:
        raise ShardingError(f"has a sharding over mesh @{sharding.mesh}; expected the mesh of the module, @{mesh.name}")
    if local:
        sharding.check(mesh, meta.rank)
    else:
        sharding.check_shape(mesh, meta.shape, meta.dtype)
    for axis, placement in sharding.entries:
        if not placement.supports(meta.dtype):
            noun = "reduction" if placement.trait == "partial" else "placement"
            raise ShardingError(
                f"{placement} on axis '{axis}' is not a {noun} of {meta.dtype} values; expected a placement "
                "that this element type supports, such as R or S(0)"
            )


def mesh_of(op: Operation) -> Mesh | None:
    """Return the mesh of the module around `op`; None if it declares none."""
    mesh_op: Any = declaration(op, "spmd.mesh")  # MeshOp, which imports this module
    return mesh_op and mesh_op.mesh


def declaration(op: Operation, name: str) -> Operation | None:
    """Return the first op `name` of the module around `op`, or of `op` itself; None if there is none."""
    top: Operation = op
    while (parent := top.parent_op()) is not None:
        top = parent
    if not isinstance(top, ModuleOp):
        return None
    return next((child for child in top.body.block.ops if child.name == name), None)
