"""Shardings and global types of values, before and after localize, and the attributes of function signatures."""

from __future__ import annotations

import re
from typing import Any

from xdsl.dialects.builtin import DictionaryAttr, StringAttr
from xdsl.ir import Attribute, BlockArgument, Operation, OpResult, SSAValue

from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.shards import ShardPlacement
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
    """Return the sharding of a value; None if it is not decided.

    The result of a call of an outlined layer has the sharding of the value that the function of the layer returns.
    """
    if type(value) is OpResult:  # isinstance of the op is slow
        attribute: Any = value.op.properties.get("sharding")
        if isinstance(attribute, ShardingsAttr):
            return attribute.data[value.index]
        returned = returned_value(value)
        return None if returned is None else sharding_of(returned)
    annotation = function_attrs(value.owner.parent_op(), "arg_attrs", value.index).get("spmd.sharding")
    return annotation.data if isinstance(annotation, ShardingAttr) else None


def global_shape(value: Any, mesh: Mesh | None) -> tuple[int, ...]:
    """Return the global shape of a value, before and after localize; () for a missing result."""
    meta = global_type(value, mesh)
    return () if meta is None else meta.shape


def global_type(value: Any, mesh: Mesh | None) -> TensorMeta | None:
    """Return the global shape and element type of a value, before and after localize; None if it is not a tensor."""
    meta = meta_of(value._type)
    if meta is None:
        return None
    owner = value.owner
    if not is_local(owner.parent_op()):
        return meta
    if type(value) is OpResult:
        returned = returned_value(value)
        if returned is not None:
            return global_type(returned, mesh)
        attribute: Any = owner.properties.get("of")
        shape_entry = attribute.data[value.index] if attribute is not None else None
    else:
        attribute = function_attrs(owner.parent_op(), "arg_attrs", value.index).get("spmd.of")
        shape_entry = attribute.data[0] if isinstance(attribute, ShapesAttr) else None
    sharding = sharding_of(value)
    if shape_entry is not None or sharding is None or mesh is None:
        return global_meta(shape_entry, meta)
    # Without `of`, shards have equal sizes: the global size is that of one shard times the number of shards.
    return TensorMeta(
        tuple([size * mesh.group_size(sharding.dim_axes(dim)) for dim, size in enumerate(meta.shape)]), meta.dtype
    )


def function_attrs(function: Any, attribute_name: str, index: int) -> dict[str, Any]:
    """Return the attributes of argument (`arg_attrs`) or result (`res_attrs`) `index` of a function."""
    attrs = getattr(function, attribute_name, None)
    return dict(attrs.data[index].data) if attrs is not None and index < len(attrs.data) else {}


def signature_name(function: Any, attribute_name: str, index: int) -> str:
    """Return the name of an argument (`arg_attrs`) or result (`res_attrs`): `spmd.name`, or the name of its value."""
    stated_name = function_attrs(function, attribute_name, index).get("spmd.name")
    if isinstance(stated_name, StringAttr):
        return stated_name.data
    value = function.args[index] if attribute_name == "arg_attrs" else function.body.block.last_op.operands[index]
    return name_of(value) or ""


def signature_kind(function: Any, attribute_name: str, index: int) -> str:
    """Return the kind of an argument or result: its `spmd.kind`, or `input` or `output`.

    An argument with `spmd.state`, the initial content of an edge state, is of kind `state`.
    """
    attributes = function_attrs(function, attribute_name, index)
    if "spmd.state" in attributes:
        return "state"
    stated_kind = attributes.get("spmd.kind")
    if isinstance(stated_kind, StringAttr):
        return stated_kind.data
    return "input" if attribute_name == "arg_attrs" else "output"


def is_backward_input(function: Any, index: int) -> bool:
    """Return whether argument `index` is an input of the backward: the gradient of an output, or a buffer."""
    return signature_kind(function, "arg_attrs", index) in ("tangent", "late_buffer")


def is_call_input(function: Any, index: int) -> bool:
    """Return whether each call passes argument `index`: it is an input of the forward or of the backward."""
    return signature_kind(function, "arg_attrs", index) == "input" or is_backward_input(function, index)


def late_buffers(function: Any) -> dict[int, str]:
    """Return argument index → name of the buffer, for the arguments that are buffers passed to the backward."""
    buffers = {}
    for index in range(len(function.args)):
        if signature_kind(function, "arg_attrs", index) == "late_buffer":
            buffers[index] = function_attrs(function, "arg_attrs", index)["spmd.buffer"].data
    return buffers


def layout_sources(function: Any) -> dict[int, int | None]:
    """Return result index → argument index, for the results that have the sharding of an argument by `spmd.like`.

    The argument index is None if no argument has the name.
    """
    results = range(len(function.function_type.outputs))
    attributes = {index: function_attrs(function, "res_attrs", index).get("spmd.like") for index in results}
    argument_names = {index: name.data for index, name in attributes.items() if isinstance(name, StringAttr)}
    if not argument_names:
        return {}
    indices_by_name = {
        signature_name(function, "arg_attrs", argument_index): argument_index
        for argument_index in reversed(range(len(function.args)))
    }
    return {index: indices_by_name.get(name) for index, name in argument_names.items()}


def updated_arguments(function: Any) -> dict[int, BlockArgument | None]:
    """Return result index → argument, for results of the kind "update"; None if no argument has the name.

    The caller overwrites the argument with the result, so a program may write the result into it.
    """
    updates = [
        index
        for index in range(len(function.function_type.outputs))
        if signature_kind(function, "res_attrs", index) == "update"
    ]
    if not updates:
        return {}
    by_name = {signature_name(function, "arg_attrs", value.index): value for value in reversed(function.args)}
    return {index: by_name.get(signature_name(function, "res_attrs", index)) for index in updates}


def backward_ops(function: Any) -> set[Operation]:
    """Return the ops of a function that depend on inputs of the backward, directly or through other ops."""
    values = {value for value in function.args if is_backward_input(function, value.index)}
    ops: set[Operation] = set()
    for op in function.body.block.ops:
        if any(operand in values for operand in op.operands):
            ops.add(op)
            values.update(op.results)
    return ops


def signature_attrs(
    name: str | None,
    kind: str,
    sharding: Sharding | None,
    argument: SSAValue | None = None,
    keep: tuple[str, ...] = (),
    like: str | None = None,
    buffer: str | None = None,
) -> DictionaryAttr:
    """Return the attributes of an argument or a result in a signature.

    Args:
        name: its name; omitted from the attributes if the SSA name of `argument` is the same.
        kind: the value of `spmd.kind`. "input" and "output" are the defaults, so they are omitted.
        sharding: the sharding; None for no annotation.
        argument: the argument; None for a result.
        keep: the axes along which users must take the argument without a reshard, if it is sharded on them.
        like: the name of the argument whose sharding the result has.
        buffer: the name of the buffer, for kind `late_buffer`.
    """
    attributes: dict[str, Attribute] = {}
    # xDSL's tools cut the number off a name such as x_1, so the attribute keeps it.
    is_value_name = argument is not None and name == name_of(argument) and not _NUMBERED.search(name or "")
    if name is not None and not is_value_name:
        attributes["spmd.name"] = StringAttr(name)
    if kind not in ("input", "output"):
        attributes["spmd.kind"] = StringAttr(kind)
    if sharding is not None:
        attributes["spmd.sharding"] = sharding_attr(sharding)
        kept_axes = [axis for axis in keep if isinstance(sharding[axis], ShardPlacement)]
        if kept_axes:
            attributes["spmd.keep"] = StringAttr(", ".join(kept_axes))
    if like is not None:
        attributes["spmd.like"] = StringAttr(like)
    if buffer is not None:
        attributes["spmd.buffer"] = StringAttr(buffer)
    return DictionaryAttr(attributes)


def needed_result(attribute: object, value: SSAValue, mesh: Mesh) -> Sharding:
    """Return the sharding in which a function returns `value`.

    Without an annotation, the result is replicated on the axes on which the value is partial.

    Args:
        attribute: the annotation of the result, or None. An open axis keeps the placement of the value, or is
            replicated if the value is partial there.
    """
    current = sharding_of(value) or Sharding()
    annotation = getattr(attribute, "data", None)
    if annotation is None:
        entries = [(axis, placement) for axis, placement in current.entries if placement.trait != "partial"]
        return Sharding(entries, current.mesh)
    if not annotation.open_axes:
        return annotation
    refined_mesh = refinement(mesh, current, annotation)
    current, annotation = current.refined(refined_mesh), annotation.refined(refined_mesh)
    annotated_entries = [(axis, placement) for axis, placement in annotation.entries if placement.trait != "open"]
    kept_entries = [(axis, current[axis]) for axis in annotation.open_axes if current[axis].trait != "partial"]
    return Sharding([*annotated_entries, *kept_entries], current.mesh).merged(mesh)
