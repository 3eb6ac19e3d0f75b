"""Choose shapes and numbers of ranks that a placement accepts: usual ones, `sample_shapes`, or random ones."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from random import Random

import attrs

from spmdir.checking.placements.law import Example
from spmdir.core.errors import SpmdirError
from spmdir.core.placement.base import Placement

Shape = tuple[int, ...]
"""The sizes of a tensor."""

COUNTS = (1, 2, 3, 4)
"""The numbers of ranks for all shapes."""

MORE_COUNTS = (5, 6, 7, 8)
"""The numbers of ranks for SHAPES_OF_MORE_COUNTS shapes each."""

SHAPES_OF_MORE_COUNTS = 3
"""The number of shapes for each of MORE_COUNTS."""

SHAPES = (
    (), (0,), (1,), (2,), (5,), (8,), (12,), (31,), (3, 2), (4, 6), (5, 7), (1, 3), (0, 3), (3, 0), (12, 1), (2, 3, 4),
    (8, 1, 5), (2, 3, 5, 4), (1, 8, 6, 4), (3, 64), (32, 128),
)  # fmt: skip
"""The usual shapes."""

LARGE = 5001
"""The size of a large dimension. From 2 to 8 ranks, only 3 divide it evenly. It exceeds a page of 4096 elements."""

MIN_SHAPES = 4
"""If fewer nonempty shapes are accepted, random shapes are drawn."""

MAX_DRAWS = 20_000
"""The largest number of random shapes that are drawn."""

MAX_DRAWN_LAYOUTS = 24
"""The largest number of accepted random shapes."""

MAX_DRAWN_ELEMENTS = 1 << 13
"""The largest number of elements of a random shape."""

DRAWN_SIZES = (1, 2, 3, 4, 5, 6, 8, 12, 16, 32, 64, 128)
"""The sizes of dimensions of random shapes."""

MAX_DRAWN_DIMENSIONS = 4
"""The largest number of dimensions of random shapes, if the placement does not require more."""


def layouts(placement: Placement) -> tuple[Example, ...]:
    """Return examples with shapes and numbers of ranks that a placement accepts, without element types."""
    try:
        return _layouts(placement)
    except TypeError:  # the placement is not hashable, which a law checks
        return _layouts.__wrapped__(placement)


@lru_cache(maxsize=64)
def _layouts(placement: Placement) -> tuple[Example, ...]:
    """Return the result of `layouts`: usual shapes on usual and on more ranks, and random ones if few are accepted."""
    shapes = [*dict.fromkeys((*placement.sample_shapes, *_usual_shapes(placement)))]
    tuple_lengths = [len(numbers) for numbers in tuple_fields(placement) if numbers]
    candidates = [(count, shape) for count in dict.fromkeys((*COUNTS, *tuple_lengths)) for shape in shapes]
    layouts = [(count, shape) for count, shape in candidates if accepts(placement, shape, count)]
    for count in MORE_COUNTS:
        accepted = sorted((shape for shape in shapes if accepts(placement, shape, count)), key=math.prod)
        for index in range(min(SHAPES_OF_MORE_COUNTS, len(accepted))):
            # Spread evenly from the largest shape down: of 12 shapes those at -1, -5 and -9.
            layouts.append((count, accepted[-1 - index * len(accepted) // SHAPES_OF_MORE_COUNTS]))
    if len({shape for _, shape in layouts if math.prod(shape)}) < MIN_SHAPES:
        layouts += _draw_layouts(
            placement, sorted({*COUNTS, *MORE_COUNTS, *tuple_lengths, *_rank_counts_in_fields(placement)})
        )
    return tuple(Example(count, shape) for count, shape in dict.fromkeys(layouts))


def usual_counts(placement: Placement) -> list[int]:
    """Return the two smallest accepted numbers of ranks above 1, usually 2 and 3. If there are none, return [1]."""
    return sorted({example.ranks for example in layouts(placement) if example.ranks > 1})[:2] or [1]


def large_layouts(placement: Placement) -> Iterator[Example]:
    """Yield accepted shapes with a dimension of LARGE elements, on 3 and on 4 ranks."""
    rank = max(1, (placement.dim or 0) + 1)
    dims = range(2) if placement.dim is None else (placement.dim,)
    shapes = [(2,) * dim + (LARGE,) + (2,) * (rank - dim - 1) for dim in dims]
    yield from (Example(count, shape) for count in (3, 4) for shape in shapes if accepts(placement, shape, count))


def _usual_shapes(placement: Placement) -> Iterator[Shape]:
    """Yield the usual shapes that have the dimension of the placement, and some of them with sizes from its fields.

    For a dimension that none of the usual shapes has, shapes with as many dimensions as necessary replace them.
    """
    dim, sizes = placement.dim, _sizes_in_fields(placement)
    shapes = [shape for shape in SHAPES if dim is None or len(shape) > dim]
    if dim is None:
        yield from shapes
        return
    if not shapes:
        shapes = [(2,) * (dim + 1), (5,) * (dim + 1)]
    yield from shapes
    for size in sizes:
        yield from ((*shape[:dim], size, *shape[dim + 1 :]) for shape in shapes[-4:])


def _draw_layouts(placement: Placement, counts: list[int]) -> list[tuple[int, Shape]]:
    """Draw up to MAX_DRAWN_LAYOUTS (ranks, shape) that the placement accepts. Each call draws the same ones."""
    random, accepted = Random(type(placement).__name__), []
    # Sizes from the fields are drawn more often, because they are more often accepted.
    sizes = (*DRAWN_SIZES, *3 * _sizes_in_fields(placement))
    min_rank = 0 if placement.dim is None else placement.dim + 1
    for _ in range(MAX_DRAWS):
        count, rank = random.choice(counts), random.randint(min_rank, max(min_rank, MAX_DRAWN_DIMENSIONS))
        shape = tuple(random.choice(sizes) for _ in range(rank))
        if math.prod(shape) <= MAX_DRAWN_ELEMENTS and accepts(placement, shape, count):
            accepted.append((count, shape))
            if len(accepted) == MAX_DRAWN_LAYOUTS:
                break
    return accepted


def _sizes_in_fields(placement: Placement) -> tuple[int, ...]:
    """Return sizes of dimensions that the fields of a placement suggest: sums of tuples, and integers."""
    sums = map(sum, tuple_fields(placement))
    return tuple(dict.fromkeys((*sums, *(number for number in integer_fields(placement) if 1 < number < 1000))))


def _rank_counts_in_fields(placement: Placement) -> Iterator[int]:
    """Yield numbers of ranks that the fields of a placement suggest: each integer, and twice the integer, up to 16."""
    for number in integer_fields(placement):
        yield from (count for count in (number, 2 * number) if 1 <= count <= 16)


def tuple_fields(placement: Placement) -> list[tuple[int, ...]]:
    """Return the values of the fields of a placement that are tuples."""
    return [value for value in _fields(placement) if isinstance(value, tuple)]


def integer_fields(placement: Placement) -> list[int]:
    """Return the values of the fields of a placement that are integers, without `dim`."""
    return [value for value in _fields(placement)[1:] if type(value) is int]


def _fields(placement: Placement) -> list[object]:
    """Return the values of the fields, `dim` first if it has one."""
    values = attrs.asdict(placement, recurse=False)  # pyright: ignore[reportArgumentType]
    return [values.pop("dim", None), *values.values()]


def accepts(placement: Placement, shape: Shape, count: int) -> bool:
    """Return whether the placement accepts a tensor of `shape` on `count` ranks."""
    try:
        placement.check(shape, count)
    except SpmdirError:
        return False
    return True
