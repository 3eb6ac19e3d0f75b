"""An fx call bound to its torch schema: tensor operands, their structure, and literal arguments by name."""

from __future__ import annotations

from functools import cache
from typing import Any

import attrs
import torch

from spmdir.core.dtype import DType
from spmdir.core.errors import Location, UnsupportedError
from spmdir.core.placement.call import Structure
from spmdir.core.placement.tensor import TensorMeta
from spmdir.core.symbolic.expressions import Real, Size, apply
from spmdir.torch_interop.dtypes import DTYPES_OF_TORCH
from spmdir.torch_interop.ops import schema_of

PLACEMENT_ARGUMENTS = frozenset({"device", "layout", "pin_memory", "non_blocking", "generator"})
"""Arguments about where a tensor is made, not what is in it: each rank's program decides these itself."""


@attrs.frozen
class Bound:
    """A call of a torch op.

    Attributes:
        name: the IR's name of the op.
        operands: the values of the tensor arguments, flat.
        arguments: schema name → literal, where it is not the schema's default; symbolic sizes as they are.
        results: shape and element type of each result; None for a result that is not a tensor.
        structure: as in `call.Call`.
    """

    name: str
    operands: tuple[Any, ...]
    arguments: dict[str, Any]
    results: tuple[TensorMeta | None, ...]
    structure: Structure | None


@attrs.frozen
class _Parameter:
    name: str
    role: str  # "tensor", "tensors", "float", "list" or "literal"
    default: Any
    count: int | None


_MISSING = object()


@attrs.frozen
class OpSignature:
    """What a torch op is called and takes."""

    name: str
    parameters: tuple[_Parameter, ...]


@cache
def signature(overload: Any) -> OpSignature:
    """Return the signature of a torch op, by its schema."""
    arguments: Any = schema_of(overload).arguments  # the stubs lack the length of a list
    parameters = (
        _Parameter(a.name, _role(a.type), a.default_value if a.has_default_value() else _MISSING, a.N)
        for a in arguments
    )
    return OpSignature(op_name(overload), tuple(parameters))


def _role(type_: Any) -> str:
    while type_.kind() == "OptionalType":
        type_ = type_.getElementType()
    if type_.kind() != "ListType":
        return {"TensorType": "tensor", "FloatType": "float"}.get(type_.kind(), "literal")
    element = type_.getElementType()
    return "tensors" if _role(element) == "tensor" else "list"


@cache
def op_name(overload: Any) -> str:
    """Return the IR's name of an overload: `default` left out."""
    return str(overload).removesuffix(".default")


def bind(
    op: OpSignature, args: Any, kwargs: Any, results: tuple[TensorMeta | None, ...], place: Location | None
) -> Bound:
    """Bind resolved arguments to the signature of `op`.

    Raises:
        UnsupportedError: an argument that the IR cannot say: a generator, a sparse layout, a foreign element type.
    """
    operands: list[Any] = []
    structure: list[int | tuple[int, ...]] = []
    arguments: dict[str, Any] = {}
    given = len(args)
    for index, parameter in enumerate(op.parameters):
        value = args[index] if index < given else kwargs.get(parameter.name, _MISSING)
        if parameter.role == "tensor":
            if value is None or value is _MISSING or isinstance(value, (bool, int, float, complex, Size, Real)):
                structure.append(0)
                if value is not None and value is not _MISSING:
                    arguments[parameter.name] = value
            else:
                structure.append(1)
                operands.append(value)
        elif parameter.role == "tensors":
            entries = () if value is None or value is _MISSING else value
            structure.append(tuple(int(entry is not None) for entry in entries))
            operands += [entry for entry in entries if entry is not None]
        elif value is not _MISSING and value != parameter.default:
            if parameter.name in PLACEMENT_ARGUMENTS:
                _check_placement(op.name, parameter.name, value, place)
                continue
            literal = _literal(_as_declared(value, parameter), place)
            if literal is not None or parameter.default is not None:
                arguments[parameter.name] = literal
    while structure and structure[-1] == 0:
        structure.pop()
    plain = all(entry == 1 for entry in structure)
    return Bound(op.name, tuple(operands), arguments, results, None if plain else tuple(structure))


def _check_placement(name: str, argument: str, value: Any, place: Location | None) -> None:
    if argument == "generator" and value is not None:
        raise UnsupportedError(
            f"{name} draws from its own generator; use the default one, which every rank seeds", place
        )
    if argument == "layout" and value not in (None, torch.strided):
        raise UnsupportedError(f"{name} makes a tensor of layout {value}; expected torch.strided", place)


def _as_declared(value: Any, parameter: _Parameter) -> Any:
    """Return `value` as its type in the schema: one number stands for a list of equal ones, an int for a float."""
    if parameter.role == "list" and parameter.count and isinstance(value, (int, Size)):
        return (value,) * parameter.count
    return apply("float", value) if parameter.role == "float" and isinstance(value, (int, Size)) else value


def _literal(value: Any, place: Location | None) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(_literal(entry, place) for entry in value)
    if value is None or isinstance(value, (bool, int, float, complex, str, Size, Real)):
        return value
    if isinstance(value, torch.dtype):
        return dtype_of(value, "an argument", place)
    if isinstance(value, torch.memory_format):
        return None if value is torch.preserve_format else str(value).removeprefix("torch.")
    raise UnsupportedError(
        f"an argument is a {type(value).__name__}; expected a tensor, a number, a string, a list of these, "
        "or an element type",
        place,
    )


def dtype_of(dtype: torch.dtype, what: str, place: Location | None) -> DType:
    """Return the IR's element type; raise UnsupportedError, naming `what` has it, if there is none."""
    if dtype not in DTYPES_OF_TORCH:
        known = ", ".join(str(known).removeprefix("torch.") for known in DTYPES_OF_TORCH)
        raise UnsupportedError(
            f"{what} has element type {str(dtype).removeprefix('torch.')}; expected one of {known}", place
        )
    return DTYPES_OF_TORCH[dtype]
