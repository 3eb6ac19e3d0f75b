"""Checks of the attributes in function signatures."""

from __future__ import annotations

from typing import Any

from xdsl.dialects.builtin import DictionaryAttr, StringAttr
from xdsl.dialects.func import CallOp, ReturnOp
from xdsl.utils.exceptions import VerifyException

from spmdir.core.errors import ShardingError, did_you_mean
from spmdir.core.mesh import Mesh
from spmdir.core.placement.edge import INITIAL_VALUES
from spmdir.dialects.attributes import (
    DYNAMIC,
    HostType,
    PendingType,
    ShapesAttr,
    ShardingAttr,
    global_meta,
    meta_of,
    print_type,
    type_of,
)
from spmdir.dialects.layer_calls import layer_function
from spmdir.dialects.names import text_name
from spmdir.dialects.sharding_checks import check_sharding, check_shards, mesh_of
from spmdir.dialects.stage import is_local
from spmdir.dialects.values import (
    function_attrs,
    global_type,
    layout_sources,
    sharding_of,
    signature_kind,
    signature_name,
    updated_arguments,
)

FUNCTION_ATTRIBUTES = (
    "spmd.sharding",
    "spmd.name",
    "spmd.kind",
    "spmd.of",
    "spmd.state",
    "spmd.keep",
    "spmd.like",
    "spmd.buffer",
)
"""The attributes of arguments and results that the IR defines."""

GIVEN = "spmd.given"
"""The attribute of a decided function with the user annotations: name of a value or result → its annotations."""

FUNCTION_TEXTS: dict[str, tuple[str, ...]] = {
    "spmd.name": (),
    "spmd.kind": (
        "parameter",
        "buffer",
        "cache",
        "input",
        "tangent",
        "late_buffer",
        "output",
        "mutation",
        "update",
        "state",
    ),
    "spmd.state": INITIAL_VALUES,
    "spmd.keep": (),
    "spmd.like": (),
    "spmd.buffer": (),
}
"""Attribute with a string value → allowed strings; () for any string."""


def check_function(function: Any) -> None:
    """Raise SpmdirError or VerifyException unless the function has one block and a valid signature.

    The block must end in an op. Arguments and results must be tensors, neither pending nor on the host. Their
    attributes must be valid: shardings, states, buffers of the backward, results like arguments, and `spmd.given`.
    """
    mesh = mesh_of(function)
    if len(function.body.blocks) != 1:
        raise VerifyException(f"has {len(function.body.blocks)} blocks; expected one: write the body without branches")
    if function.body.block.last_op is None:
        raise VerifyException("has an empty body; expected it to end in `return`: add a `return` op")
    return_op = function.body.block.last_op
    returned = return_op.operands if isinstance(return_op, ReturnOp) else ()
    if is_local(function) and len(returned) != len(function.function_type.outputs):
        return  # the verification of `return` reports it with a location
    for attribute_name, types in (
        ("arg_attrs", function.function_type.inputs),
        ("res_attrs", function.function_type.outputs),
    ):
        subject = "argument" if attribute_name == "arg_attrs" else "result"
        for index, type_ in enumerate(types):
            if meta_of(type_) is None:
                raise VerifyException(f"{subject} {index} is {type_}; expected a tensor of a known element type")
            if isinstance(type_, (PendingType, HostType)):
                if isinstance(type_, PendingType):
                    remedy = "wait for it in the function that starts it"
                else:
                    remedy = "reload it in the function that offloads it"
                raise VerifyException(f"{subject} {index} is {print_type(type_)}; expected a tensor: {remedy}")
            attributes = function_attrs(function, attribute_name, index)
            for key, attribute in attributes.items():
                meta, of = meta_of(type_), attributes.get("spmd.of")
                if meta is not None and isinstance(of, ShapesAttr) and len(of.data) == 1:
                    meta = global_meta(of.data[0], meta)
                if attribute_name == "res_attrs" and is_local(function):
                    meta = global_type(returned[index], mesh)
                _check_function_attribute(f"{subject} {index}", key, attribute, mesh, meta, is_local(function))
            if attribute_name == "arg_attrs":
                _check_argument_shards(f"{subject} {index}", attributes, mesh, meta_of(type_))
    _check_late_buffers(function)
    _check_states(function)
    _check_likes(function)
    _check_updates(function)
    _check_user_annotations(function.attributes.get(GIVEN), mesh)


def _check_user_annotations(annotations: Any, mesh: Mesh | None) -> None:
    """Raise SpmdirError unless `spmd.given` maps names to `spmd.sharding` or `spmd.like` attributes."""
    expected = 'expected, as propagate writes it, {"%x" = {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}}'
    if annotations is None:
        return
    if not isinstance(annotations, DictionaryAttr):
        raise VerifyException(f"{GIVEN} is {annotations}; {expected}")
    for name, entry in annotations.data.items():
        # An entry that is not a dictionary gets the key "", which is an error below.
        for key, attribute in entry.data.items() if isinstance(entry, DictionaryAttr) else [("", entry)]:
            kind = {"spmd.sharding": ShardingAttr, "spmd.like": StringAttr}.get(key)
            if kind is None or not isinstance(attribute, kind):
                raise VerifyException(f"{GIVEN} of '{name}' is {entry}; {expected}")
            if isinstance(attribute, ShardingAttr) and mesh is not None:
                for axis, _ in attribute.data.entries:
                    mesh.require(axis)


def check_layer_call(call: CallOp) -> None:
    """Raise ShardingError unless the operands of a layer call have the shardings of the function's arguments."""
    function = layer_function(call)
    if function is None:
        return
    for operand, argument in zip(call.operands, function.args, strict=True):
        operand_sharding, argument_sharding = sharding_of(operand), sharding_of(argument)
        if operand_sharding is not None and argument_sharding is not None and operand_sharding != argument_sharding:
            raise ShardingError(
                f"operand {text_name(operand)} is <{operand_sharding}>; expected <{argument_sharding}>, as "
                f"argument {text_name(argument)} of {call.callee}: pass operands in the order of the "
                "arguments, with their shardings"
            )


def _check_likes(function: Any) -> None:
    """Raise VerifyException unless a result with `spmd.like` has the shape and sharding of that argument."""
    for index, argument_index in layout_sources(function).items():
        result_type = function.function_type.outputs.data[index]
        attributes = function_attrs(function, "res_attrs", index)
        name = attributes["spmd.like"].data
        meta = None if argument_index is None else meta_of(function.function_type.inputs.data[argument_index])
        if argument_index is None or meta is None or meta.shape != meta_of(result_type).shape:  # type: ignore  # checked to be one
            raise VerifyException(
                f"result {index} is declared `spmd.like` '{name}'; expected the name of an argument with the same shape"
            )
        argument_attributes = function_attrs(function, "arg_attrs", argument_index)
        if argument_attributes.get("spmd.sharding") != attributes.get("spmd.sharding"):
            raise VerifyException(
                f"result {index} is declared `spmd.like` '{name}' but has a different spmd.sharding; "
                "expected one sharding: give both the same sharding, or omit both"
            )


def _check_updates(function: Any) -> None:
    """Raise VerifyException unless each result of the kind "update" has the name and type of an argument."""
    for index, argument in updated_arguments(function).items():
        if argument is None or argument.type != function.function_type.outputs.data[index]:
            name = signature_name(function, "res_attrs", index)
            raise VerifyException(
                f"result {index} has spmd.kind = \"update\" and the name '{name}'; expected the name of an argument of "
                "the same type, which the caller overwrites with the result"
            )


def _check_late_buffers(function: Any) -> None:
    """Raise VerifyException unless exactly the arguments of kind "late_buffer" have `spmd.buffer`."""
    for index in range(len(function.function_type.inputs)):
        is_late = signature_kind(function, "arg_attrs", index) == "late_buffer"
        if is_late != ("spmd.buffer" in function_attrs(function, "arg_attrs", index)):
            raise VerifyException(
                f"argument {index} has {'no ' if is_late else ''}spmd.buffer; expected the name of a buffer if its "
                'spmd.kind is "late_buffer", and no such attribute otherwise'
            )


def _check_states(function: Any) -> None:
    """Raise VerifyException unless each state is an argument and a result of the same name, type and sharding."""
    signature_entries = [
        entry.data for attrs in (function.arg_attrs, function.res_attrs) if attrs for entry in attrs.data
    ]
    if not any("spmd.state" in entry or "spmd.kind" in entry for entry in signature_entries):
        return

    def find_states(attribute_name: str, types: Any) -> dict[str, Any]:
        """Return name → (type, sharding) of the states among the arguments or results."""
        states = {}
        for index, type_ in enumerate(types):
            if signature_kind(function, attribute_name, index) == "state":
                sharding = function_attrs(function, attribute_name, index).get("spmd.sharding")
                states[signature_name(function, attribute_name, index)] = type_, sharding
        return states

    arguments = find_states("arg_attrs", function.function_type.inputs)
    results = find_states("res_attrs", function.function_type.outputs)
    for name in dict.fromkeys([*arguments, *results]):
        if arguments.get(name) != results.get(name):
            raise VerifyException(
                f"state '{name}' is not both an argument and a result of the same type and sharding; expected "
                'an argument with spmd.state, and a result with spmd.kind = "state" and the same spmd.name'
            )


def _check_function_attribute(place: str, key: str, attribute: Any, mesh: Mesh | None, meta: Any, local: bool) -> None:
    """Raise SpmdirError unless an attribute of an argument or result has a valid value.

    Args:
        place: the argument or result, for errors, such as "argument 0".
        key: the name of the attribute.
        meta: the global type of the argument or result, or the local type of an argument without `spmd.of`.
        local: whether the function is local. Then only the number of dimensions and the element type are checked.
    """
    texts = FUNCTION_TEXTS.get(key)
    if texts is not None and not (isinstance(attribute, StringAttr) and (not texts or attribute.data in texts)):
        expected = " or ".join(f'"{text}"' for text in texts) or "a string"
        raise VerifyException(f"{key} of {place} is {attribute}; expected {expected}")
    if key == "spmd.keep" and mesh is not None:
        for axis in attribute.data.split(","):
            mesh.require(axis.strip())
    if key != "spmd.sharding":
        # A misspelt spmd.sharding would be ignored.
        hint = did_you_mean(key, ["spmd.sharding"])
        if key not in FUNCTION_ATTRIBUTES and hint:
            raise VerifyException(
                f"{place} has the unknown attribute '{key}'; expected spmd.sharding: correct the name{hint}"
            )
        return
    if not isinstance(attribute, ShardingAttr):
        raise VerifyException(f"spmd.sharding of {place} is {attribute}; expected #spmd.sharding<@mesh, dp: S(0)>")
    try:
        check_sharding(attribute.data, mesh, meta, local)
    except ShardingError as error:
        raise error.at(None, place) from None


def _check_argument_shards(place: str, attributes: dict[str, Any], mesh: Mesh | None, meta: Any) -> None:
    """Raise ShardingError unless `spmd.of` and the sharding determine the local type `meta` of an argument.

    Both attributes are required if a size of the local type differs between ranks.
    """
    shape, sharding = attributes.get("spmd.of"), attributes.get("spmd.sharding")
    if shape is None and DYNAMIC not in meta.shape:
        return
    if sharding is None or not isinstance(shape, ShapesAttr) or len(shape.data) != 1:
        raise ShardingError(
            f"{place} is {print_type(type_of(meta))}, whose size differs between ranks; expected "
            "spmd.sharding and spmd.of, its global shape"
        )
    try:
        check_shards(meta, shape.data[0], sharding.data, mesh)
    except ShardingError as error:
        raise error.at(None, place) from None
