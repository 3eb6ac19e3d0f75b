"""Pack several tensors into one: concatenate them along a last dimension, as bytes if their element types differ.

This module uses tensors only through their methods, so it needs no tensor library.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from spmdir.core.dtype import UI8, DType

Types = Sequence[tuple[tuple[int, ...], DType]]
"""Shape and element type of each tensor."""

_METHODS = {
    "f64": "double", "f32": "float", "f16": "half", "bf16": "bfloat16", "i64": "long", "i32": "int", "i16": "short",
    "i8": "char", "ui8": "byte", "i1": "bool", "complex<f64>": "cdouble", "complex<f32>": "cfloat",
}  # fmt: skip
"""Name of an element type → the method that converts a tensor to it."""

_TENSOR_TYPES = {"f8E4M3FN": "torch.Float8_e4m3fnTensor", "f8E5M2": "torch.Float8_e5m2Tensor"}
"""Name of an element type without such a method → what `type` of a tensor calls it."""


def convert_tensor(tensor: Any, dtype: DType) -> Any:
    """Return `tensor` in element type `dtype`."""
    if method := _METHODS.get(dtype.name):
        return getattr(tensor, method)()
    # `type` would move the tensor itself to the CPU.
    return tensor.to(tensor.new_empty(0).type(_TENSOR_TYPES[dtype.name]).dtype)


def packed_type(types: Types, leading: int) -> tuple[tuple[int, ...], DType]:
    """Return shape and element type of the packed tensor for tensors of `types`.

    Args:
        leading: the number of first dimensions, which must be equal in all tensors.

    With 1 leading dimension, f32 tensors of (4, 6) and (4,) become f32 of (4, 7). If the second one is f64, they become
    bytes of (4, 32).
    """
    dtypes = {dtype for _, dtype in types}
    is_mixed = len(dtypes) > 1
    size = sum(math.prod(shape[leading:]) * (dtype.itemsize if is_mixed else 1) for shape, dtype in types)
    return (*types[0][0][:leading], size), UI8 if is_mixed else dtypes.pop()


def pack(parts: Sequence[Any], leading: int) -> Any:
    """Return `parts` as one tensor. Its dimensions are the first `leading` dimensions of each part, and one more.

    If the element types of parts differ, its elements are the bytes of their elements. For example, with 1 leading
    dimension, parts of the shapes (4, 6) and (4,) are packed as (4, 7): each row has 6 elements and then 1.
    """
    flat = [part.reshape((*part.shape[:leading], math.prod(part.shape[leading:]))) for part in parts]
    if len({part.dtype for part in parts}) > 1:
        flat = [part.contiguous().view(part.new_empty(0).byte().dtype) for part in flat]
    packed = flat[0].new_empty((*flat[0].shape[:leading], sum(part.shape[-1] for part in flat)))
    offset = 0
    for part in flat:
        packed.narrow(leading, offset, part.shape[-1]).copy_(part)
        offset += part.shape[-1]
    return packed


def unpack(packed: Any, types: Types, leading: int) -> list[Any]:
    """Return the tensors of `types` that `packed` contains: the inverse of `pack`."""
    is_mixed, parts, offset = len({dtype for _, dtype in types}) > 1, [], 0
    for shape, dtype in types:
        size = math.prod(shape[leading:]) * (dtype.itemsize if is_mixed else 1)
        part = packed.narrow(leading, offset, size)
        offset += size
        if is_mixed:
            part = part.contiguous().view(convert_tensor(packed.new_empty(0), dtype).dtype)
        parts.append(part.reshape((*packed.shape[:leading], *shape[leading:])))
    return parts
