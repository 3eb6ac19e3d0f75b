"""Ops of torch by their names in the IR, and which of them a program may call, as their schemas say."""

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

    Only what the dispatcher knows counts: no attribute of a Python object has a name in the IR.
    """
    parts = name.split(".")
    if len(parts) not in (2, 3):
        return None
    namespace, base, overload = [*parts, "default"][:3]
    qualified, key = f"{namespace}::{base}", "" if overload == "default" else overload
    if not is_registered(qualified, key):
        return None
    found = getattr(getattr(getattr(torch.ops, namespace), base, None), overload, None)
    if not isinstance(found, OpOverload):
        return None
    schema = schema_of(found)
    return found if (schema.name, schema.overload_name) == (qualified, key) else None


@cache
def torch_op(name: str) -> OpOverload:
    """Return `torch.ops.aten.mm.default` for `aten.mm`.

    Raises:
        UnsupportedError: torch has no such op, or it is one that no program may call; nothing of it has run.
    """
    found = resolve(name)
    if found is None:
        raise UnsupportedError(f"torch {torch.__version__} has no op '{name}'; import the module that defines it")
    require_admitted(found)
    return found


def is_random(target: Any) -> bool:
    """Return whether calls of `target`, of whatever type, draw random numbers, as torch's tags say."""
    return torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())


def is_mutable(target: Any) -> bool:
    """Return whether `target`, of whatever type, is an op that writes to an argument, as its schema says."""
    return getattr(schema_or_none(target), "is_mutable", False)


@cache
def reason_against(target: Any) -> str:
    """Return why no program may call an overload, as the table of ops words it; "" if one may."""
    return judge(str(target).removesuffix(".default"), schema_of(target))


def require_admitted(target: Any) -> None:
    """Raise UnsupportedError if no program may call an overload; the message goes behind the op's name."""
    reason = reason_against(target)
    if reason:
        raise UnsupportedError(sentence(str(target).removesuffix(".default"), reason))


def judge(name: str, schema: Any) -> str:
    """Return why no program may call the op that `name` is in the IR; "" if one may.

    Views are admitted, since the IR has values only and nothing that it admits writes. So are ops that draw random
    numbers, and ops whose results' shapes depend on data: others reject these, knowing the call.
    """
    namespace = name.partition(".")[0]
    if namespace in NAMESPACES:
        return NAMESPACES[namespace]
    for argument in schema.arguments:
        if _innermost(argument.real_type) == "str" and names_file(argument.name):
            return f"file {argument.name}"
        if argument.name == "group_name":
            return "collective"
    for argument in schema.arguments:
        if argument.alias_info is not None and argument.alias_info.is_write:
            return f"writes {argument.name}"
    for argument in schema.arguments:
        type_ = _innermost(argument.real_type)
        if type_ not in _PLAIN:
            return f"takes {type_} {argument.name}"
    types = [_innermost(returned.real_type) for returned in schema.returns]
    strange = [type_ for type_ in types if type_ not in _PLAIN]
    if strange:
        return f"gives {strange[0]}"
    reason = exception(name) if namespace in LISTED else ""
    return reason or ("" if "Tensor" in types else "gives-nothing")


def _innermost(type_: Any) -> str:
    """Return the type that lists and optional values of type `type_` are of, without the path of a class."""
    while type_.kind() in ("OptionalType", "ListType"):
        type_ = type_.getElementType()
    return str(type_).rpartition(".")[2].replace(" ", "")
