"""Find the common factors of two shapes, for views that split and join dimensions.

For example, `4x6 → 24` has factors r0 = 4 and r1 = 6: `[r0, r1] → [(r0 r1)]`. For `4x6 → 8x3`, gcd(4, 8) = 4 is r0, and
gcd(6, 2) = 2 is r1, which leaves r2 = 3: `[r0, (r1 r2)] → [(r0 r1), r2]`. Dimensions without a common major factor,
as in `2x3 → 3x2`, are unsharded.
"""

from __future__ import annotations

import math

from spmdir.rules.shapes.factor import Dims
from spmdir.rules.shapes.layout_builder import LayoutBuilder


def reshape(layout: LayoutBuilder, operand: str, argument: str) -> Dims:
    return _reshape_to(layout, operand, layout.integers(argument))


def reshape_like(layout: LayoutBuilder, operand: str, like: str) -> Dims:
    """Return the dimensions of `operand` in the shape of `like`, and give `like` the same dimensions."""
    dims = _reshape_to(layout, operand, layout.shape(like))
    layout.set_dims(like, dims)
    return dims


def flatten(layout: LayoutBuilder, operand: str, *ends: str) -> Dims:
    """Return the dimensions with those from the first to the second of `ends` joined; without ends, all joined."""
    shape = layout.shape(operand) or (1,)
    start, end = (layout.dimension(name, len(shape)) for name in ends) if ends else (0, len(shape) - 1)
    return _reshape_to(layout, operand, (*shape[:start], math.prod(shape[start : end + 1]), *shape[end + 1 :]))


def unflatten(layout: LayoutBuilder, operand: str, dim: str, argument: str) -> Dims:
    shape = layout.shape(operand)
    position, sizes = layout.dimension(dim, len(shape)), layout.integers(argument)
    # -1 follows from this dimension alone: if another one is empty, the number of elements does not determine it.
    parts = math.prod(size for size in sizes if size != -1)
    sizes = tuple(shape[position] // max(parts, 1) if size == -1 and sizes.count(-1) == 1 else size for size in sizes)
    dims = _reshape_to(layout, operand, (*shape[:position], *sizes, *shape[position + 1 :]))
    # The parts must be unsharded, because their sizes are an argument that local sizes do not replace.
    layout.keep_unsharded(f for d in dims[position : position + len(sizes)] for f in d)
    return dims


def _reshape_to(layout: LayoutBuilder, operand: str, wanted: tuple[int, ...]) -> Dims:
    """Return the dimensions after a reshape to `wanted`. Common major factors are shared, all others are unsharded."""
    source = layout.shape(operand)
    target = _target(layout, source, wanted)
    dims: tuple[list[list[int]], ...] = ([[] for _ in source], [[] for _ in target])
    if 0 in source:
        for side, shape in zip(dims, (source, target), strict=True):
            for dim, size in enumerate(shape):
                side[dim].append(layout.factor(_new_name(layout), size, unsharded=True))
    else:
        _common_factors(layout, source, target, dims)
    layout.set_dims(operand, tuple(map(tuple, dims[0])))
    return tuple(map(tuple, dims[1]))


def _target(layout: LayoutBuilder, shape: tuple[int, ...], wanted: tuple[int, ...]) -> tuple[int, ...]:
    """Return the sizes `wanted` with -1 replaced."""
    if wanted.count(-1) > 1 or any(size < -1 for size in wanted):
        layout.fail(f"invalid shape {list(wanted)}; expected non-negative sizes, and at most one -1")
    size = result_sizes(layout, wanted)
    if -1 in size:
        product = math.prod(s for s in size if s != -1)
        size = tuple(math.prod(shape) // max(product, 1) if s == -1 else s for s in size)
    if math.prod(size) != math.prod(shape):
        layout.fail(f"{math.prod(shape)} elements cannot be viewed as shape {list(size)}")
    return size


def result_sizes(layout: LayoutBuilder, wanted: tuple[int, ...]) -> tuple[int, ...]:
    """Return the sizes of the result. They must match `wanted`; -1 matches any. To infer them, return `wanted`."""
    result = layout.result_shape()
    if result is None:
        return wanted
    if len(result) != len(wanted) or any(w not in (-1, g) for w, g in zip(wanted, result, strict=True)):
        layout.fail(f"the result has shape {list(result)}; expected {list(wanted)}, as the arguments specify")
    return result


def _common_factors(
    layout: LayoutBuilder, source: tuple[int, ...], target: tuple[int, ...], dims: tuple[list[list[int]], ...]
) -> None:
    left = [list(source), list(target)]
    next_dims = [0, 0]
    while True:
        for side in (0, 1):
            while next_dims[side] < len(left[side]) and left[side][next_dims[side]] == 1:
                next_dims[side] += 1
        if next_dims[0] == len(source) or next_dims[1] == len(target):
            return
        common = math.gcd(left[0][next_dims[0]], left[1][next_dims[1]])
        if common == 1:
            _unsharded_block(layout, left, next_dims, dims)
            return
        factor = layout.factor(_new_name(layout), common)
        for side in (0, 1):
            dims[side][next_dims[side]].append(factor)
            left[side][next_dims[side]] //= common


def _unsharded_block(
    layout: LayoutBuilder, left: list[list[int]], next_dims: list[int], dims: tuple[list[list[int]], ...]
) -> None:
    """Skip dimensions without a common major factor until both sides have equally many elements; then continue."""
    products = [1, 1]
    ends = list(next_dims)
    while products[0] != products[1] or products[0] == 1:
        side = 0 if products[0] <= products[1] else 1
        products[side] *= left[side][ends[side]]
        ends[side] += 1
    for side in (0, 1):
        for dim in range(next_dims[side], ends[side]):
            dims[side][dim].append(layout.factor(_new_name(layout), left[side][dim], unsharded=True))
            left[side][dim] = 1
    source, target = tuple(left[0]), tuple(left[1])
    _common_factors(layout, source, target, dims)


def _new_name(layout: LayoutBuilder) -> str:
    return f"r{sum(name[0] == 'r' for name in layout.names)}"
