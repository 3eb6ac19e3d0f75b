"""Look up torch ops by their names in the IR, and decide from their schemas whether programs may call them."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from spmdir.core.admitted_ops import LISTED, NAMESPACES, exception, names_file, sentence
from spmdir.core.errors import UnsupportedError
from spmdir.torch_interop.ops import OpOverload, is_registered, schema_of, schema_or_none

_PLAIN = {
    "Tensor", "bool", "complex", "float", "int", "number", "str",
    "Device", "Generator", "Layout", "MemoryFormat", "ScalarType", "SymBool", "SymInt",
}  # fmt: skip
"""The types of arguments that are tensors or plain values."""


@cache
def resolve(name: str) -> OpOverload | None:
    """Return `torch.ops.aten.mm.default` for `aten.mm`; None if nothing has registered such an op.

    Only ops of the dispatcher are found, and never another attribute of `torch.ops`.
    """
    parts = name.split(".")
    if len(parts) not in (2, 3):
        return None
    namespace, base, overload = [*parts, "default"][:3]
    qualified, overload_key = f"{namespace}::{base}", "" if overload == "default" else overload
    if not is_registered(qualified, overload_key):
        return None
    op = getattr(getattr(getattr(torch.ops, namespace), base, None), overload, None)
    if not isinstance(op, OpOverload):
        return None
    schema = schema_of(op)
    return op if (schema.name, schema.overload_name) == (qualified, overload_key) else None


@cache
def torch_op(name: str) -> OpOverload:
    """Return `torch.ops.aten.mm.default` for `aten.mm`.

    Raises:
        UnsupportedError: torch has no such op, or no program may call it. The op is not run.
    """
    op = resolve(name)
    if op is None:
        raise UnsupportedError(
            f"torch {torch.__version__} has no op '{name}'; expected a registered op: import the module that defines it"
        )
    require_admitted(op)
    return op


def is_random(target: Any) -> bool:
    """Return whether `target` is an op that draws random numbers, by its torch tags. Any object may be passed."""
    return torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())


def is_mutable(target: Any) -> bool:
    """Return whether `target` is an op that writes to an argument, by its schema. Any object may be passed."""
    return getattr(schema_or_none(target), "is_mutable", False)


def declares_aliases(target: Any) -> bool:
    """Return whether the schema of `target` declares that results share memory with arguments.

    A target without a schema, such as an inner graph, counts as declared.
    """
    schema = schema_or_none(target)
    return schema is None or any(returned.alias_info is not None for returned in schema.returns)


@cache
def reason_against(target: Any) -> str:
    """Return the reason why programs may not call an overload, in the words of the table of ops; "" if they may."""
    return judge(str(target).removesuffix(".default"), schema_of(target))


def require_admitted(target: Any) -> None:
    """Raise UnsupportedError if programs may not call an overload. The message continues the name of the op."""
    reason = reason_against(target)
    if reason:
        raise UnsupportedError(sentence(str(target).removesuffix(".default"), reason))


def judge(name: str, schema: Any) -> str:
    """Return the reason why programs may not call the op `name`; "" if they may.

    Views are admitted, because no admitted op writes to them. Random ops and ops with shapes that depend on data are
    admitted too: the importer rejects some of their calls.
    """
    namespace = name.partition(".")[0]
    if namespace in NAMESPACES:
        return NAMESPACES[namespace]
    for argument in schema.arguments:
        if _element_type(argument.real_type) == "str" and names_file(argument.name):
            return f"file {argument.name}"
        if argument.name == "group_name":
            return "collective"
    for argument in schema.arguments:
        if argument.alias_info is not None and argument.alias_info.is_write:
            return f"writes {argument.name}"
    for argument in schema.arguments:
        type_ = _element_type(argument.real_type)
        if type_ not in _PLAIN:
            return f"takes {type_} {argument.name}"
    types = [_element_type(returned.real_type) for returned in schema.returns]
    other_types = [type_ for type_ in types if type_ not in _PLAIN]
    if other_types:
        return f"gives {other_types[0]}"
    reason = exception(name) if namespace in LISTED else ""
    return reason or ("" if "Tensor" in types else "gives-nothing")


def _element_type(type_: Any) -> str:
    """Return the element type of lists and optional values, without the path of a class."""
    while type_.kind() in ("OptionalType", "ListType"):
        type_ = type_.getElementType()
    return str(type_).rpartition(".")[2].replace(" ", "")
