"""Choose tensors to check laws on: accepted shapes and numbers of ranks, with element types and values."""

from __future__ import annotations

import math
from collections.abc import Iterator

import attrs

from spmdir.checking.placements.comparison import is_mapped
from spmdir.checking.placements.law import Example
from spmdir.checking.placements.layouts import (
    accepts,
    integer_fields,
    large_layouts,
    layouts,
    tuple_fields,
    usual_counts,
)
from spmdir.core.dtype import BF16, COMPLEX_F64, F16, F32, F64, I1, I8, I32, I64, UI8, DType
from spmdir.core.errors import UnsupportedError
from spmdir.core.placement.base import Placement
from spmdir.torch_interop.dtypes import TORCH_DTYPES

DTYPES = (F64, F32, F16, BF16, I64, I32, I8, UI8, I1, COMPLEX_F64)
"""The usual element types of examples."""

FLOATS = (F64, F32, F16, BF16)
"""The floating-point types among them."""

SCALES = {
    F64: (1e4, 1e30, 1e-30),
    F32: (1e4, 1e30, 1e-30),
    F16: (1e3, 1e-3),
    BF16: (1e4, 1e30, 1e-30),
    I64: (2.0**50,),
    I32: (2.0**20,),
}
"""Element type → factors of its usual values.

Scaled integers are up to 2**56 and 2**26: too large for f64 and f32, but small enough for sums of partial values.
"""


def supported_types(placement: Placement) -> list[DType]:
    """Return the usual element types that a placement supports. If it supports none of them, return others."""
    usual = [dtype for dtype in DTYPES if placement.supports(dtype)]
    return usual or [dtype for dtype in TORCH_DTYPES if placement.supports(dtype)]


def tensor_examples(placement: Placement) -> Iterator[Example]:
    """Yield layouts with supported element types: one type each in turn, all types for tensors of medium size."""
    dtypes = supported_types(placement)
    if not dtypes:
        return
    for index, example in enumerate((*layouts(placement), *large_layouts(placement))):
        is_medium = 24 <= math.prod(example.shape or ()) <= 1000
        dtypes_of_example = dtypes if is_medium else (dtypes[index % len(dtypes)],)
        for dtype in dtypes_of_example:
            yield attrs.evolve(example, dtype=dtype, values=usual_values(placement, dtype))


def special_tensors(placement: Placement) -> Iterator[Example]:
    """Yield layouts of floating-point elements, among them NaN, infinities and negative zeros."""
    dtypes = [dtype for dtype in FLOATS if placement.supports(dtype)]
    if not dtypes:
        return
    for index, example in enumerate(layouts(placement)):
        yield attrs.evolve(example, dtype=dtypes[index % len(dtypes)], values="special")


def magnitude_tensors(placement: Placement) -> Iterator[Example]:
    """Yield tensors of large, small, sparse, cancelling and linearly dependent values, on two numbers of ranks.

    Each has the shape of the largest accepted matrix, or of the largest tensor if no matrix is accepted.
    """
    for count in usual_counts(placement):
        examples = [example for example in layouts(placement) if example.count == count]
        if not examples:
            continue
        examples.sort(key=lambda example: (len(example.shape or ()) == 2, math.prod(example.shape or ())))
        for dtype in scaled_types(placement):
            usual = attrs.evolve(examples[-1], dtype=dtype, values=usual_values(placement, dtype))
            yield from (attrs.evolve(usual, scale=scale) for scale in SCALES[dtype])
            if dtype not in FLOATS:
                continue
            yield from (attrs.evolve(usual, values=values) for values in ("sparse", "low-rank"))
            yield attrs.evolve(usual, values="zero", noise_scale=0)
            # Without noise, most partial values are 0. With large noise, they cancel.
            if placement.trait == "partial":
                yield attrs.evolve(usual, noise_scale=0)
            if placement.trait == "partial" and not is_mapped(placement):
                yield attrs.evolve(usual, noise_scale=1e3)


def scaled_types(placement: Placement) -> list[DType]:
    """Return the element types that a placement supports and that SCALES has factors for."""
    return [dtype for dtype in SCALES if placement.supports(dtype)]


def usual_values(placement: Placement, dtype: DType) -> str:
    """Return the values that a placement can represent: "random", or "positive" if it rejects negative values.

    It is tried on its largest accepted tensor of up to 1000 elements on several ranks.
    """
    layouts_on_ranks = (
        example for example in layouts(placement) if example.ranks > 1 and math.prod(example.shape or ()) <= 1000
    )
    fallback = Example(2, (8,) * ((placement.dim or 0) + 1))
    largest = max(layouts_on_ranks, key=lambda example: math.prod(example.shape or ()), default=fallback)
    example = attrs.evolve(largest, dtype=dtype)
    try:
        placement.distribute(example.tensor(), example.ranks, example.noise())
    except UnsupportedError:
        return "positive"
    except Exception:
        return "random"  # a law reports the error
    return "random"


def even_sizes(placement: Placement, count: int) -> Iterator[int]:
    """Yield accepted sizes of the sharded dimension that are multiples of `count` and of the fields of a placement."""
    factor = count * math.prod(number for number in integer_fields(placement) if number > 1)
    sizes = (24 * factor, 48 * factor, *map(sum, tuple_fields(placement)))
    rank = (placement.dim or 0) + 1
    yield from (size for size in dict.fromkeys(sizes) if accepts(placement, (size,) * rank, count))
