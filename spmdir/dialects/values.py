"""What values of a program are: their shardings and global shapes, before and after localize."""

from __future__ import annotations

from typing import Any

from xdsl.ir import OpResult

from spmdir.core.mesh import Mesh
from spmdir.core.sharding import Sharding
from spmdir.dialects.attributes import (
    ShapesAttr,
    ShardingAttr,
    ShardingsAttr,
    meta_of,
)
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.verification import is_local


def sharding_of(value: Any) -> Sharding | None:
    """The sharding of a value; None where undecided."""
    if type(value) is OpResult:  # told by its class, for asking what an op is an instance of is slow
        held: Any = value.op.properties.get("sharding")
        return held.data[value.index] if isinstance(held, ShardingsAttr) else None
    given = function_attrs(value.owner.parent_op(), "arg_attrs", value.index).get("spmd.sharding")
    return given.data if isinstance(given, ShardingAttr) else None


def global_shape(value: Any, mesh: Mesh | None) -> tuple[int, ...]:
    """The global shape of a value, before and after localize."""
    meta = meta_of(value.type)
    if meta is None:
        return ()
    owner = value.owner
    if not is_local(owner.parent_op()):
        return meta.shape
    if isinstance(owner, ValueOp):
        given = owner.of.data[value.index] if owner.of else None
    else:
        attribute = function_attrs(owner.parent_op(), "arg_attrs", value.index).get("spmd.of")
        given = attribute.data[0] if isinstance(attribute, ShapesAttr) else None
    sharding = sharding_of(value)
    if given is not None or sharding is None or mesh is None:
        return given or meta.shape
    return tuple(size * mesh.group_size(sharding.dim_axes(dim)) for dim, size in enumerate(meta.shape))


def function_attrs(function: Any, which: str, index: int) -> dict[str, Any]:
    """The attributes of argument (`arg_attrs`) or result (`res_attrs`) `index` of a function."""
    attrs = getattr(function, which, None)
    return dict(attrs.data[index].data) if attrs is not None and index < len(attrs.data) else {}
