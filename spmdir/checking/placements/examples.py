"""Examples of tensors: the layouts that a placement takes, with element types and values."""

from __future__ import annotations

import math
from collections.abc import Iterator

import attrs

from spmdir.checking.placements.comparison import is_mapped
from spmdir.checking.placements.law import Example
from spmdir.checking.placements.layouts import accepts, integers, large_layouts, layouts, tuples, usual_counts
from spmdir.core.dtype import BF16, COMPLEX_F64, F16, F32, F64, I1, I8, I32, I64, UI8, DType
from spmdir.core.errors import UnsupportedError
from spmdir.core.placement.base import Placement
from spmdir.torch_interop.dtypes import TORCH_DTYPES

DTYPES = (F64, F32, F16, BF16, I64, I32, I8, UI8, I1, COMPLEX_F64)
FLOATS = (F64, F32, F16, BF16)

SCALES = {
    F64: (1e4, 1e30, 1e-30),
    F32: (1e4, 1e30, 1e-30),
    F16: (1e3, 1e-3),
    BF16: (1e4, 1e30, 1e-30),
    I64: (2.0**50,),
    I32: (2.0**20,),
}
"""Element type → by how much its usual values are multiplied. Integers are up to 2**56 and 2**26 then: beyond what f64
and f32 can represent, and small enough for a sum of partial values."""


def held_types(placement: Placement) -> list[DType]:
    """Return the element types that a placement holds: the usual ones, or others if it holds none of these."""
    usual = [dtype for dtype in DTYPES if placement.supports(dtype)]
    return usual or [dtype for dtype in TORCH_DTYPES if placement.supports(dtype)]


def tensors(placement: Placement) -> Iterator[Example]:
    """Yield layouts with an element type that the placement holds: each in turn, for tensors of middle size all."""
    held = held_types(placement)
    for at, example in enumerate((*layouts(placement), *large_layouts(placement)) if held else ()):
        chosen = held if 24 <= math.prod(example.shape or ()) <= 1000 else held[at % len(held) :][:1]
        for dtype in chosen:
            yield attrs.evolve(example, dtype=dtype, values=ordinary(placement, dtype))


def specials(placement: Placement) -> Iterator[Example]:
    """`layouts` of floating elements with NaN, infinities and negative zeros."""
    held = [dtype for dtype in FLOATS if placement.supports(dtype)]
    for at, example in enumerate(layouts(placement) if held else ()):
        yield attrs.evolve(example, dtype=held[at % len(held)], values="special")


def magnitudes(placement: Placement) -> Iterator[Example]:
    """Yield tensors of large, small, sparse, cancelling and linearly dependent values, on two numbers of ranks."""
    for count in usual_counts(placement):
        taken = [example for example in layouts(placement) if example.count == count]
        taken.sort(key=lambda example: (len(example.shape or ()) == 2, math.prod(example.shape or ())))
        for example, dtype in ((example, dtype) for example in taken[-1:] for dtype in scaled_types(placement)):
            usual = attrs.evolve(example, dtype=dtype, values=ordinary(placement, dtype))
            yield from (attrs.evolve(usual, scale=scale) for scale in SCALES[dtype])
            if dtype not in FLOATS:
                continue
            yield from (attrs.evolve(usual, values=values) for values in ("sparse", "low-rank"))
            yield attrs.evolve(usual, values="zero", noise_scale=0)
            if placement.trait == "partial":
                yield attrs.evolve(usual, noise_scale=0)
            if placement.trait == "partial" and not is_mapped(placement):
                yield attrs.evolve(usual, noise_scale=1e3)


def scaled_types(placement: Placement) -> list[DType]:
    """Return the element types that a placement holds and of which there are large values."""
    return [dtype for dtype in SCALES if placement.supports(dtype)]


def ordinary(placement: Placement, dtype: DType) -> str:
    """Return the values that a placement holds: random ones, or positive ones if it rejects negative ones."""
    taken = [one for one in layouts(placement) if one.ranks > 1 and math.prod(one.shape or ()) <= 1000]
    largest = max(
        taken, key=lambda one: math.prod(one.shape or ()), default=Example(2, (8,) * ((placement.dim or 0) + 1))
    )
    example = attrs.evolve(largest, dtype=dtype)
    try:
        placement.distribute(example.tensor(), example.ranks, example.noise())
    except UnsupportedError:
        return "positive"
    except Exception:
        # It is a law's business to say so.
        return "random"
    return "random"


def even_sizes(placement: Placement, count: int) -> Iterator[int]:
    """Yield sizes of the sharded dimension that `count` divides, several times over."""
    numbers = [n for n in integers(placement) if n > 1]
    found = (24 * count * math.prod(numbers), 48 * count * math.prod(numbers), *map(sum, tuples(placement)))
    rank = (placement.dim or 0) + 1
    yield from (size for size in dict.fromkeys(found) if accepts(placement, (size,) * rank, count))
