"""Literals and constants of the IR as torch's own."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from spmdir.core.dtype import DType
from spmdir.core.errors import UnsupportedError
from spmdir.core.placement.call import Literal, Local
from spmdir.torch_interop.dtypes import TORCH_DTYPES
from spmdir.torch_interop.ops import OpOverload, schema_of

_NAMED_BY_STRINGS = ("MemoryFormat", "Layout")


@cache
def schema(op: OpOverload) -> tuple[tuple[str, str, bool], ...]:
    """Return (name, type, keyword only) of each argument of `op`."""
    arguments = schema_of(op).arguments
    return tuple((argument.name, str(argument.real_type), argument.kwarg_only) for argument in arguments)


def torch_literal(value: Literal, type_: str, evaluate: Any) -> Any:
    """Return a literal of the IR as an argument of schema type `type_`.

    `evaluate` gives per-rank integers their value.
    """
    if isinstance(value, tuple):
        return [torch_literal(item, type_, evaluate) for item in value]
    if isinstance(value, Local):
        return evaluate(value)
    if isinstance(value, DType):
        return TORCH_DTYPES[value]
    if isinstance(value, str) and any(kind in type_ for kind in _NAMED_BY_STRINGS):
        constant = getattr(torch, value.removeprefix("torch."), None)
        if not isinstance(constant, (torch.memory_format, torch.layout)):
            raise UnsupportedError(
                f"'{value}' is not a {type_} of torch; expected one, such as contiguous_format or strided"
            )
        return constant
    return value


def torch_constant(data: str, shape: tuple[int, ...], dtype: DType) -> torch.Tensor:
    """Return the tensor of an `spmd.constant`: row-major little-endian bytes as hexadecimal text."""
    if not data:
        return torch.empty(shape, dtype=TORCH_DTYPES[dtype])
    return torch.frombuffer(bytearray.fromhex(data), dtype=TORCH_DTYPES[dtype]).reshape(shape)
