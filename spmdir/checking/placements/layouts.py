"""Numbers of ranks and shapes that a placement takes: usual ones, those that it names, or those that a search finds."""

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

COUNTS = (1, 2, 3, 4)
"""Numbers of ranks that are tried with every shape."""

MORE_COUNTS = (5, 6, 7, 8)
"""Numbers of ranks that are tried with SOME shapes each."""

SOME = 3

SHAPES = (
    (), (0,), (1,), (2,), (5,), (8,), (12,), (31,), (3, 2), (4, 6), (5, 7), (1, 3), (0, 3), (3, 0), (12, 1), (2, 3, 4),
    (8, 1, 5), (2, 3, 5, 4), (1, 8, 6, 4), (3, 64), (32, 128),
)  # fmt: skip

LARGE = 5001
"""Size of a dimension that no number of ranks from 2 to 8 divides but 3, and that is above a page of 4096 elements."""

ENOUGH = 4
"""A search is made where fewer shapes with elements are taken."""

TRIED = 20_000
"""Shapes that a search tries."""

FOUND = 24
"""Shapes that a search gives at most."""

MOST_ELEMENTS = 1 << 13

SIZES = (1, 2, 3, 4, 5, 6, 8, 12, 16, 32, 64, 128)

MOST_DIMENSIONS = 4


def layouts(placement: Placement) -> tuple[Example, ...]:
    """Return numbers of ranks and shapes that a placement takes, without element types, none of them large."""
    try:
        return _layouts(placement)
    except TypeError:  # it has no hash, which a law says
        return _layouts.__wrapped__(placement)


@lru_cache(maxsize=64)
def _layouts(placement: Placement) -> tuple[Example, ...]:
    shapes = [*dict.fromkeys((*placement.sample_shapes, *_usual_shapes(placement)))]
    named = [len(numbers) for numbers in tuples(placement) if numbers]
    every = [(count, shape) for count in dict.fromkeys((*COUNTS, *named)) for shape in shapes]
    taken = [(count, shape) for count, shape in every if takes(placement, shape, count)]
    for count in MORE_COUNTS:
        more = [(count, shape) for shape in shapes if takes(placement, shape, count)]
        more.sort(key=lambda each: math.prod(each[1]))
        taken += [more[-1 - at * len(more) // SOME] for at in range(min(SOME, len(more)))]
    if len({shape for _, shape in taken if math.prod(shape)}) < ENOUGH:
        taken += _found(placement, sorted({*COUNTS, *MORE_COUNTS, *named, *_multiples(placement)}))
    return tuple(Example(count, shape) for count, shape in dict.fromkeys(taken))


def usual_counts(placement: Placement) -> list[int]:
    """Return the two least numbers of ranks above 1 that a placement takes, as a rule 2 and 3; [1] if it takes none."""
    return sorted({example.ranks for example in layouts(placement) if example.ranks > 1})[:2] or [1]


def large_layouts(placement: Placement) -> Iterator[Example]:
    """Yield shapes with a dimension of LARGE elements that a placement takes, on three ranks and on four."""
    rank = max(1, (placement.dim or 0) + 1)
    dims = range(2) if placement.dim is None else (placement.dim,)
    shapes = [(2,) * dim + (LARGE,) + (2,) * (rank - dim - 1) for dim in dims]
    yield from (Example(count, shape) for count in (3, 4) for shape in shapes if takes(placement, shape, count))


def _usual_shapes(placement: Placement) -> Iterator[Shape]:
    dim, numbers = placement.dim, _numbers(placement)
    shapes = [shape for shape in SHAPES if dim is None or len(shape) > dim]
    if dim is None:
        yield from shapes
        return
    if not shapes:
        shapes = [(2,) * (dim + 1), (5,) * (dim + 1)]
    yield from (*shapes, *((*shape[:dim], number, *shape[dim + 1 :]) for number in numbers for shape in shapes[-4:]))


def _found(placement: Placement, counts: list[int]) -> list[tuple[int, Shape]]:
    """Return numbers of ranks and shapes that are drawn and that the placement takes; the same ones each time."""
    random, found = Random(type(placement).__name__), []
    sizes = (*SIZES, *3 * _numbers(placement))
    lowest = 0 if placement.dim is None else placement.dim + 1
    for _ in range(TRIED):
        count, rank = random.choice(counts), random.randint(lowest, max(lowest, MOST_DIMENSIONS))
        shape = tuple(random.choice(sizes) for _ in range(rank))
        if math.prod(shape) <= MOST_ELEMENTS and takes(placement, shape, count):
            found.append((count, shape))
            if len(found) == FOUND:
                break
    return found


def _numbers(placement: Placement) -> tuple[int, ...]:
    """Return sizes that the fields of a placement suggest."""
    return tuple(dict.fromkeys((*map(sum, tuples(placement)), *(n for n in integers(placement) if 1 < n < 1000))))


def _multiples(placement: Placement) -> Iterator[int]:
    """Yield numbers of ranks that the fields of a placement suggest."""
    yield from (n * times for n in integers(placement) for times in (1, 2) if 1 <= n * times <= 16)


def tuples(placement: Placement) -> list[tuple[int, ...]]:
    """Return the values of its fields that have a number for each rank, or for something."""
    return [value for value in _fields(placement) if isinstance(value, tuple)]


def integers(placement: Placement) -> list[int]:
    """Return the values of its fields that are integers, without `dim`."""
    return [value for value in _fields(placement)[1:] if type(value) is int]


def _fields(placement: Placement) -> list[object]:
    """Return the values of the fields, `dim` first if it has one."""
    values = attrs.asdict(placement, recurse=False)  # pyright: ignore[reportArgumentType]
    return [values.pop("dim", None), *values.values()]


def takes(placement: Placement, shape: Shape, count: int) -> bool:
    """Return whether `count` ranks can hold a tensor of `shape` so."""
    try:
        placement.check(shape, count)
    except SpmdirError:
        return False
    return True
