"""Dimensions split and joined: the common factors of two shapes."""

from __future__ import annotations

import math

from spmdir.rules.shapes.factor import Dims
from spmdir.rules.shapes.layout_builder import LayoutBuilder


def reshape(layout: LayoutBuilder, operand: str, argument: str) -> Dims:
    return _reshape_to(layout, operand, layout.integers(argument))


def reshape_like(layout: LayoutBuilder, operand: str, other: str) -> Dims:
    """Return the dimensions of `operand` in the shape of `other`, which gets the same dimensions."""
    dims = _reshape_to(layout, operand, layout.shape(other))
    layout.set_dims(other, dims)
    return dims


def flatten(layout: LayoutBuilder, operand: str, *ends: str) -> Dims:
    """Return the dimensions with those between two `ends` joined; without ends, all joined."""
    shape = layout.shape(operand) or (1,)
    start, end = (layout.dimension(name, len(shape)) for name in ends) if ends else (0, len(shape) - 1)
    return _reshape_to(layout, operand, (*shape[:start], math.prod(shape[start : end + 1]), *shape[end + 1 :]))


def unflatten(layout: LayoutBuilder, operand: str, dim: str, argument: str) -> Dims:
    shape = layout.shape(operand)
    at, sizes = layout.dimension(dim, len(shape)), layout.integers(argument)
    # The one -1 is of this dimension alone: where another one is empty, the elements do not tell it.
    parts = math.prod(size for size in sizes if size != -1)
    sizes = tuple(shape[at] // max(parts, 1) if size == -1 and sizes.count(-1) == 1 else size for size in sizes)
    dims = _reshape_to(layout, operand, (*shape[:at], *sizes, *shape[at + 1 :]))
    # The sizes of the parts are an argument beside those of the result, so no rank can have its own.
    layout.keep_unsharded(f for d in dims[at : at + len(sizes)] for f in d)
    return dims


def _reshape_to(layout: LayoutBuilder, operand: str, wanted: tuple[int, ...]) -> Dims:
    """Return the dimensions after a reshape: common major factors are shared, all others unsharded."""
    source = layout.shape(operand)
    target = _target(layout, source, wanted)
    dims: tuple[list[list[int]], ...] = ([[] for _ in source], [[] for _ in target])
    if 0 in source:
        for side, shape in zip(dims, (source, target), strict=True):
            for dim, size in enumerate(shape):
                side[dim].append(layout.factor(_fresh(layout), size, unsharded=True))
    else:
        _common_factors(layout, source, target, dims)
    layout.set_dims(operand, tuple(map(tuple, dims[0])))
    return tuple(map(tuple, dims[1]))


def _target(layout: LayoutBuilder, shape: tuple[int, ...], wanted: tuple[int, ...]) -> tuple[int, ...]:
    """Return the sizes `wanted` with one -1 worked out."""
    if wanted.count(-1) > 1 or any(size < -1 for size in wanted):
        layout.fail(f"{list(wanted)} is not a shape; expected sizes, of which one may be -1")
    size = result_sizes(layout, wanted)
    if -1 in size:
        rest = math.prod(s for s in size if s != -1)
        size = tuple(math.prod(shape) // max(rest, 1) if s == -1 else s for s in size)
    if math.prod(size) != math.prod(shape):
        layout.fail(f"{math.prod(shape)} elements cannot take the shape {list(size)}")
    return size


def result_sizes(layout: LayoutBuilder, wanted: tuple[int, ...]) -> tuple[int, ...]:
    """Return the sizes of the result, which must be those `wanted`, -1 being any; -1 stays if no result is known."""
    given = layout.result_shape()
    if given is None:
        return wanted
    if len(given) != len(wanted) or any(w not in (-1, g) for w, g in zip(wanted, given, strict=True)):
        layout.fail(f"the result has the shape {list(given)} where the arguments say {list(wanted)}")
    return given


def _common_factors(
    layout: LayoutBuilder, source: tuple[int, ...], target: tuple[int, ...], dims: tuple[list[list[int]], ...]
) -> None:
    left = [list(source), list(target)]
    at = [0, 0]
    while True:
        for side in (0, 1):
            while at[side] < len(left[side]) and left[side][at[side]] == 1:
                at[side] += 1
        if at[0] == len(source) or at[1] == len(target):
            return
        common = math.gcd(left[0][at[0]], left[1][at[1]])
        if common == 1:
            _unsharded_block(layout, left, at, dims)
            return
        factor = layout.factor(_fresh(layout), common)
        for side in (0, 1):
            dims[side][at[side]].append(factor)
            left[side][at[side]] //= common


def _unsharded_block(
    layout: LayoutBuilder, left: list[list[int]], at: list[int], dims: tuple[list[list[int]], ...]
) -> None:
    """Take dimensions, which share no major factor, until both sides have as many elements, then go on."""
    products = [1, 1]
    ends = list(at)
    while products[0] != products[1] or products[0] == 1:
        side = 0 if products[0] <= products[1] else 1
        products[side] *= left[side][ends[side]]
        ends[side] += 1
    for side in (0, 1):
        for dim in range(at[side], ends[side]):
            dims[side][dim].append(layout.factor(_fresh(layout), left[side][dim], unsharded=True))
            left[side][dim] = 1
    source, target = tuple(left[0]), tuple(left[1])
    _common_factors(layout, source, target, dims)


def _fresh(layout: LayoutBuilder) -> str:
    return f"r{sum(name[0] == 'r' for name in layout.names)}"
