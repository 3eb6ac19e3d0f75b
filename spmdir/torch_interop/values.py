"""Element types and literals of the IR as torch's own."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from spmdir.core.call import DType, Literal, Local
from spmdir.core.errors import UnsupportedError

TORCH_DTYPES: dict[str, torch.dtype] = {
    "f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16,
    "f8E4M3FN": torch.float8_e4m3fn, "f8E5M2": torch.float8_e5m2,
    "i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "ui8": torch.uint8,
    "i1": torch.bool, "complex<f32>": torch.complex64, "complex<f64>": torch.complex128,
}  # fmt: skip
"""Element type of the IR → torch's."""

DTYPE_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}
"""The inverse."""

_NAMED_BY_STRINGS = ("MemoryFormat", "Layout")


@cache
def schema(op: torch._ops.OpOverload) -> tuple[tuple[str, str, bool], ...]:
    """(name, type, keyword only) of each argument of `op`."""
    return tuple((a.name, str(a.real_type), a.kwarg_only) for a in op._schema.arguments)


def torch_literal(value: Literal, type_: str, evaluate: Any) -> Any:
    """A literal of the IR as an argument of schema type `type_`; `evaluate` gives per-rank integers their value."""
    if isinstance(value, tuple):
        return [torch_literal(item, type_, evaluate) for item in value]
    if isinstance(value, Local):
        return evaluate(value)
    if isinstance(value, DType):
        return TORCH_DTYPES[value.name]
    if isinstance(value, str) and any(kind in type_ for kind in _NAMED_BY_STRINGS):
        named = getattr(torch, value.removeprefix("torch."), None)
        if not isinstance(named, (torch.memory_format, torch.layout)):
            raise UnsupportedError(f"'{value}' is no {type_} of torch, such as contiguous_format or strided")
        return named
    return value


def torch_constant(data: str, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    """The tensor of an `spmd.constant`: row-major little-endian bytes as hexadecimal text."""
    if not data:
        return torch.empty(shape, dtype=TORCH_DTYPES[dtype])
    return torch.frombuffer(bytearray.fromhex(data), dtype=TORCH_DTYPES[dtype]).reshape(shape)
