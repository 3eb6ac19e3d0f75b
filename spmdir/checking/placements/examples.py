"""Examples of tensors: every number of ranks with even, uneven, empty and too small shapes, and all element types."""

from __future__ import annotations

import math
from collections.abc import Iterator

import attrs

from spmdir.checking.placements.comparison import is_mapped
from spmdir.checking.placements.law import Example
from spmdir.core.dtype import BF16, COMPLEX_F64, F16, F32, F64, I1, I8, I32, I64, UI8, DType
from spmdir.core.errors import SpmdirError, UnsupportedError
from spmdir.core.placement.base import Placement

COUNTS = (1, 2, 3, 4)
SHAPES = (
    (), (0,), (1,), (2,), (5,), (8,), (12,), (31,), (4, 6), (5, 7), (1, 3), (0, 3), (3, 0), (12, 1), (2, 3, 4),
    (8, 1, 5),
)  # fmt: skip
DTYPES = (F64, F32, F16, BF16, I64, I32, I8, UI8, I1, COMPLEX_F64)
FLOATS = (F64, F32, F16, BF16)
SCALES = {F64: (1e4, 1e30, 1e-30), F32: (1e4, 1e30, 1e-30), F16: (1e3, 1e-3), BF16: (1e4, 1e30, 1e-30)}


def layouts(placement: Placement) -> Iterator[Example]:
    """Yield numbers of ranks and shapes that a placement takes, without element types."""
    numbers = _numbers(placement)
    for count in dict.fromkeys((*COUNTS, *(len(n) for n in tuples(placement) if n))):
        for shape in _shapes(placement, numbers):
            if takes(placement, shape, count):
                yield Example(count, shape)


def tensors(placement: Placement) -> Iterator[Example]:
    """Yield `layouts` with an element type that the placement holds: each in turn, and all for one even shape."""
    held = [dtype for dtype in DTYPES if placement.supports(dtype)]
    for at, example in enumerate(layouts(placement) if held else ()):
        chosen = held if math.prod(example.shape or ()) >= 24 else held[at % len(held) :][:1]
        for dtype in chosen:
            yield attrs.evolve(example, dtype=dtype, values=ordinary(placement, dtype))


def specials(placement: Placement) -> Iterator[Example]:
    """`layouts` of floating elements with NaN, infinities and negative zeros."""
    held = [dtype for dtype in FLOATS if placement.supports(dtype)]
    for at, example in enumerate(layouts(placement) if held else ()):
        yield attrs.evolve(example, dtype=held[at % len(held)], values="special")


def magnitudes(placement: Placement) -> Iterator[Example]:
    """Yield tensors of large, small, sparse, cancelling and linearly dependent values, on two ranks and on three."""
    held = [dtype for dtype in FLOATS if placement.supports(dtype)]
    for count in (2, 3):
        taken = [example for example in layouts(placement) if example.count == count]
        taken.sort(key=lambda example: (len(example.shape or ()) == 2, math.prod(example.shape or ())))
        for example, dtype in ((example, dtype) for example in taken[-1:] for dtype in held):
            usual = attrs.evolve(example, dtype=dtype, values=ordinary(placement, dtype))
            yield from (attrs.evolve(usual, scale=scale) for scale in SCALES[dtype])
            yield from (attrs.evolve(usual, values=values) for values in ("sparse", "low-rank"))
            yield attrs.evolve(usual, values="zero", noise_scale=0)
            if placement.trait == "partial":
                yield attrs.evolve(usual, noise_scale=0)
            if placement.trait == "partial" and not is_mapped(placement):
                yield attrs.evolve(usual, noise_scale=1e3)


def ordinary(placement: Placement, dtype: DType) -> str:
    """Return the values that a placement holds: random ones, or positive ones if it rejects negative ones."""
    example = Example(2, (8,) * ((placement.dim or 0) + 1), dtype)
    try:
        placement.distribute(example.tensor(), 2, example.noise())
    except UnsupportedError:
        return "positive"
    except Exception:
        # It is a law's business to say so.
        return "random"
    return "random"


def even_sizes(placement: Placement, count: int) -> Iterator[int]:
    """Yield sizes of the sharded dimension that `count` divides, several times over."""
    numbers = [n for n in _integers(placement) if n > 1]
    found = (24 * count * math.prod(numbers), 48 * count * math.prod(numbers), *map(sum, tuples(placement)))
    rank = (placement.dim or 0) + 1
    yield from (size for size in dict.fromkeys(found) if takes(placement, (size,) * rank, count))


def _shapes(placement: Placement, numbers: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    dim = placement.dim
    shapes = [shape for shape in SHAPES if dim is None or len(shape) > dim]
    if dim is None:
        yield from shapes
        return
    if not shapes:
        shapes = [(2,) * (dim + 1), (5,) * (dim + 1)]
    fitted = ((*shape[:dim], number, *shape[dim + 1 :]) for number in numbers for shape in shapes[-4:])
    yield from dict.fromkeys((*shapes, *fitted))


def _numbers(placement: Placement) -> tuple[int, ...]:
    """Return sizes that the fields of a placement suggest."""
    return tuple(dict.fromkeys((*map(sum, tuples(placement)), *(n for n in _integers(placement) if 1 < n < 100))))


def tuples(placement: Placement) -> list[tuple[int, ...]]:
    """Return the values of its fields that have a number for each rank, or for something."""
    return [value for value in _fields(placement) if isinstance(value, tuple)]


def _integers(placement: Placement) -> list[int]:
    return [value for value in _fields(placement)[1:] if isinstance(value, int)]


def _fields(placement: Placement) -> list[object]:
    """Return the values of the fields, `dim` first if it has one."""
    values = attrs.asdict(placement, recurse=False)  # pyright: ignore[reportArgumentType]
    return [values.pop("dim", None), *values.values()]


def takes(placement: Placement, shape: tuple[int, ...], count: int) -> bool:
    """Return whether `count` ranks can hold a tensor of `shape` so."""
    try:
        placement.check(shape, count)
    except SpmdirError:
        return False
    return True
