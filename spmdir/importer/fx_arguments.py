"""Bind an fx call to its torch schema: tensor operands, their structure, and literal arguments by name."""

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
"""Arguments that choose the device and memory of a result, not its elements. The program of a rank has its own."""


@attrs.frozen
class BoundCall:
    """A call of a torch op.

    Attributes:
        name: the name of the op in the IR.
        operands: the values of the tensor arguments, flat.
        arguments: name in the schema → literal or symbolic size, if it differs from the default.
        results: shape and element type of each result; None for a result that is not a tensor.
        structure: the structure of the operands, as in `call.Call`.
    """

    name: str
    operands: tuple[Any, ...]
    arguments: dict[str, Any]
    results: tuple[TensorMeta | None, ...]
    structure: Structure | None


@attrs.frozen
class _Parameter:
    """A parameter in the schema of an op.

    Attributes:
        role: "tensor", "tensors", "float", "list" or "literal".
        default: the default value; `_MISSING` if there is none.
        count: the length of a list of a fixed length, such as 2 for `int[2]`.
    """

    name: str
    role: str
    default: Any
    count: int | None


_MISSING = object()


@attrs.frozen
class OpSignature:
    """The name and parameters of a torch op."""

    name: str
    parameters: tuple[_Parameter, ...]


@cache
def op_signature(overload: Any) -> OpSignature:
    """Return the signature of a torch op from its schema."""
    arguments: Any = schema_of(overload).arguments  # the stubs lack the length of a list
    parameters = []
    for argument in arguments:
        default = argument.default_value if argument.has_default_value() else _MISSING
        parameters.append(_Parameter(argument.name, _parameter_role(argument.type), default, argument.N))
    return OpSignature(op_name(overload), tuple(parameters))


def _parameter_role(type_: Any) -> str:
    """Return the role of a parameter, see `_Parameter`, whose type in the schema is `type_`."""
    while type_.kind() == "OptionalType":
        type_ = type_.getElementType()
    if type_.kind() != "ListType":
        return {"TensorType": "tensor", "FloatType": "float"}.get(type_.kind(), "literal")
    element = type_.getElementType()
    return "tensors" if _parameter_role(element) == "tensor" else "list"


@cache
def op_name(overload: Any) -> str:
    """Return the name of an overload in the IR, without `.default`."""
    return str(overload).removesuffix(".default")


def bind_arguments(
    op: OpSignature, args: Any, kwargs: Any, results: tuple[TensorMeta | None, ...], location: Location | None
) -> BoundCall:
    """Bind arguments, with values in place of nodes, to the signature of `op`.

    Literals that equal the default are omitted. A number in place of a tensor is a literal. Arguments in
    `PLACEMENT_ARGUMENTS` are checked and dropped.

    Args:
        results: see `BoundCall`.
        location: the location of errors.

    Raises:
        UnsupportedError: the IR cannot express an argument: a generator, a sparse layout, an unknown element type.
    """
    operands: list[Any] = []
    # For each tensor argument: 1 for a tensor, 0 if there is none, and a tuple of these for a list of tensors.
    structure: list[int | tuple[int, ...]] = []
    arguments: dict[str, Any] = {}
    positional_count = len(args)
    for index, parameter in enumerate(op.parameters):
        value = args[index] if index < positional_count else kwargs.get(parameter.name, _MISSING)
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
                _check_placement(op.name, parameter.name, value, location)
                continue
            literal = _to_literal(_coerce(value, parameter), location)
            if literal is not None or parameter.default is not None:
                arguments[parameter.name] = literal
    # Missing tensors at the end are implied. If all tensors are present, the structure is implied too.
    while structure and structure[-1] == 0:
        structure.pop()
    is_flat = all(entry == 1 for entry in structure)
    return BoundCall(op.name, tuple(operands), arguments, results, None if is_flat else tuple(structure))


def _check_placement(name: str, argument: str, value: Any, location: Location | None) -> None:
    """Raise UnsupportedError for a generator or a layout that programs cannot have."""
    if argument == "generator" and value is not None:
        raise UnsupportedError(
            f"{name} draws from a custom generator; expected the default generator, which spmdir seeds on each rank: "
            "omit the argument",
            location,
        )
    if argument == "layout" and value not in (None, torch.strided):
        raise UnsupportedError(
            f"{name} creates a tensor of layout {value}; expected torch.strided: omit the layout", location
        )


def _coerce(value: Any, parameter: _Parameter) -> Any:
    """Convert a number to the type of its parameter: to a list of equal numbers for `int[2]`, an int to a float."""
    if parameter.role == "list" and parameter.count and isinstance(value, (int, Size)):
        return (value,) * parameter.count
    return apply("float", value) if parameter.role == "float" and isinstance(value, (int, Size)) else value


def _to_literal(value: Any, location: Location | None) -> Any:
    """Return an argument as a literal of the IR. Lists become tuples, and the default memory format becomes None.

    Raises:
        UnsupportedError: the IR has no literal for the argument.
    """
    if isinstance(value, (list, tuple)):
        return tuple(_to_literal(entry, location) for entry in value)
    if value is None or isinstance(value, (bool, int, float, complex, str, Size, Real)):
        return value
    if isinstance(value, torch.dtype):
        return convert_dtype(value, "an argument", location)
    if isinstance(value, torch.memory_format):
        return None if value is torch.preserve_format else str(value).removeprefix("torch.")
    raise UnsupportedError(
        f"an argument is a {type(value).__name__}; expected a tensor, a number, a string, a list of these, "
        "or an element type",
        location,
    )


def convert_dtype(dtype: torch.dtype, owner: str, location: Location | None) -> DType:
    """Return the element type of the IR for a torch dtype.

    Args:
        owner: the value that has the dtype, for the error.

    Raises:
        UnsupportedError: the IR does not have the dtype.
    """
    if dtype not in DTYPES_OF_TORCH:
        supported = ", ".join(str(torch_dtype).removeprefix("torch.") for torch_dtype in DTYPES_OF_TORCH)
        raise UnsupportedError(
            f"{owner} has element type {str(dtype).removeprefix('torch.')}; expected one of {supported}", location
        )
    return DTYPES_OF_TORCH[dtype]
