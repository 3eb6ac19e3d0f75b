"""Shardings and global shapes of values, before and after localize, and what a signature states about its values."""

from __future__ import annotations

import re
from typing import Any

from xdsl.dialects.builtin import DictionaryAttr, StringAttr
from xdsl.ir import Attribute, Operation, OpResult, SSAValue

from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import ShardPlacement
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.tensor import TensorMeta
from spmdir.dialects.attributes import (
    ShapesAttr,
    ShardingAttr,
    ShardingsAttr,
    global_meta,
    meta_of,
    sharding_attr,
)
from spmdir.dialects.layer_calls import returned_value
from spmdir.dialects.names import name_of
from spmdir.dialects.stage import is_local
from spmdir.reshard.conditions import refinement

_NUMBERED = re.compile(r"_[0-9]+\Z")


def sharding_of(value: Any) -> Sharding | None:
    """Return the sharding of a value; None where undecided."""
    if type(value) is OpResult:  # told by its class, for asking what an op is an instance of is slow
        attribute: Any = value.op.properties.get("sharding")
        if isinstance(attribute, ShardingsAttr):
            return attribute.data[value.index]
        returned = returned_value(value)
        return None if returned is None else sharding_of(returned)
    given = function_attrs(value.owner.parent_op(), "arg_attrs", value.index).get("spmd.sharding")
    return given.data if isinstance(given, ShardingAttr) else None


def global_shape(value: Any, mesh: Mesh | None) -> tuple[int, ...]:
    """Return the global shape of a value, before and after localize; that of a missing result is empty."""
    meta = global_type(value, mesh)
    return () if meta is None else meta.shape


def global_type(value: Any, mesh: Mesh | None) -> TensorMeta | None:
    """Return the global shape and the element type of a value, before and after localize; None if it is no tensor."""
    meta = meta_of(value._type)
    if meta is None:
        return None
    owner = value.owner
    if not is_local(owner.parent_op()):
        return meta
    if type(value) is OpResult:
        if (returned := returned_value(value)) is not None:
            return global_type(returned, mesh)
        attribute: Any = owner.properties.get("of")
        given = attribute.data[value.index] if attribute is not None else None
    else:
        attribute = function_attrs(owner.parent_op(), "arg_attrs", value.index).get("spmd.of")
        given = attribute.data[0] if isinstance(attribute, ShapesAttr) else None
    sharding = sharding_of(value)
    if given is not None or sharding is None or mesh is None:
        return global_meta(given, meta)
    return TensorMeta(
        tuple([size * mesh.group_size(sharding.dim_axes(dim)) for dim, size in enumerate(meta.shape)]), meta.dtype
    )


def function_attrs(function: Any, which: str, index: int) -> dict[str, Any]:
    """Return the attributes of argument (`arg_attrs`) or result (`res_attrs`) `index` of a function."""
    attrs = getattr(function, which, None)
    return dict(attrs.data[index].data) if attrs is not None and index < len(attrs.data) else {}


def signature_name(function: Any, which: str, index: int) -> str:
    """Return the name of an argument (`arg_attrs`) or result (`res_attrs`): `spmd.name`, else that of its value."""
    said = function_attrs(function, which, index).get("spmd.name")
    if isinstance(said, StringAttr):
        return said.data
    value = function.args[index] if which == "arg_attrs" else function.body.block.last_op.operands[index]
    return name_of(value) or ""


def signature_kind(function: Any, which: str, index: int) -> str:
    """Return what an argument or result is: `spmd.kind`, else `state` of what has an initial one, `input` or
    `output`."""
    given = function_attrs(function, which, index)
    if "spmd.state" in given:
        return "state"
    said = given.get("spmd.kind")
    return said.data if isinstance(said, StringAttr) else "input" if which == "arg_attrs" else "output"


def is_of_backward(function: Any, index: int) -> bool:
    """Return whether argument `index` is given to the backward: the gradient of an output, or a buffer."""
    return signature_kind(function, "arg_attrs", index) in ("tangent", "late_buffer")


def is_given(function: Any, index: int) -> bool:
    """Return whether argument `index` is given by each call: an input, or what is given to the backward."""
    return signature_kind(function, "arg_attrs", index) == "input" or is_of_backward(function, index)


def late_buffers(function: Any) -> dict[int, str]:
    """Return each argument that is a buffer as the backward takes it → the name of the buffer."""
    late = [i for i in range(len(function.args)) if signature_kind(function, "arg_attrs", i) == "late_buffer"]
    return {index: function_attrs(function, "arg_attrs", index)["spmd.buffer"].data for index in late}


def like_arguments(function: Any) -> dict[int, int | None]:
    """Return, of each result that says by `spmd.like` as what it is to be laid out, that argument; None if there is
    none of the name."""
    results = range(len(function.function_type.outputs))
    said = {index: function_attrs(function, "res_attrs", index).get("spmd.like") for index in results}
    names = {index: name.data for index, name in said.items() if isinstance(name, StringAttr)}
    if not names:
        return {}
    places = {signature_name(function, "arg_attrs", place): place for place in reversed(range(len(function.args)))}
    return {index: places.get(name) for index, name in names.items()}


def backward_ops(function: Any) -> set[Operation]:
    """Return the ops of a function that depend on what is given to the backward."""
    values = {value for value in function.args if is_of_backward(function, value.index)}
    found: set[Operation] = set()
    for op in function.body.block.ops:
        if any(operand in values for operand in op.operands):
            found.add(op)
            values.update(op.results)
    return found


def signature_attrs(
    name: str | None,
    kind: str,
    sharding: Sharding | None,
    argument: SSAValue | None = None,
    keep: tuple[str, ...] = (),
    like: str | None = None,
    buffer: str | None = None,
) -> DictionaryAttr:
    """Return the attributes of a result, or of an argument that does not say its name by itself.

    Args:
        keep: the axes along which the argument is used as it lies, if it is sharded along them.
        like: the name of the argument that the result is to be laid out as.
        buffer: the name of the buffer that a late buffer is.
    """
    said: dict[str, Attribute] = {}
    # Of a name that ends in a number xDSL's own tools keep what stands before it.
    implied = argument is not None and name == name_of(argument) and not _NUMBERED.search(name or "")
    if name is not None and not implied:
        said["spmd.name"] = StringAttr(name)
    if kind not in ("input", "output"):
        said["spmd.kind"] = StringAttr(kind)
    if sharding is not None:
        said["spmd.sharding"] = sharding_attr(sharding)
        kept = [axis for axis in keep if isinstance(sharding[axis], ShardPlacement)]
        if kept:
            said["spmd.keep"] = StringAttr(", ".join(kept))
    if like is not None:
        said["spmd.like"] = StringAttr(like)
    if buffer is not None:
        said["spmd.buffer"] = StringAttr(buffer)
    return DictionaryAttr(said)


def needed_result(attribute: object, value: SSAValue, mesh: Mesh) -> Sharding:
    """Return the sharding in which a function returns `value`: without an annotation, replicated where it is partial.

    Args:
        attribute: the annotation of the result, whose open axes keep what the value has; None without one.
    """
    current = sharding_of(value) or Sharding()
    given = getattr(attribute, "data", None)
    if given is None:
        return Sharding([(axis, p) for axis, p in current.entries if p.trait != "partial"], current.mesh)
    if not given.open_axes:
        return given
    fine = refinement(mesh, current, given)
    current, given = current.refined(fine), given.refined(fine)
    free = [(axis, current[axis]) for axis in given.open_axes if current[axis].trait != "partial"]
    return Sharding([*((a, p) for a, p in given.entries if p.trait != "open"), *free], current.mesh).merged(mesh)
