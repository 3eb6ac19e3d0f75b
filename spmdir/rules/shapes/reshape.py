"""Find the common factors of two shapes, for views that split and join dimensions.

For example, `4x6 → 24` has factors r0 = 4 and r1 = 6: `[r0, r1] → [(r0 r1)]`. For `4x6 → 8x3`, gcd(4, 8) = 4 is r0, and
gcd(6, 2) = 2 is r1, which leaves r2 = 3: `[r0, (r1 r2)] → [(r0 r1), r2]`. Dimensions without a common major factor,
as in `2x3 → 3x2`, are unsharded.

The functions without an underscore are dimension maps, see `dimension_maps.py`. Their arguments are names of parameters
in the rule.
"""

from __future__ import annotations

import math

from spmdir.rules.shapes.factor import Dims
from spmdir.rules.shapes.layout_builder import LayoutBuilder


def reshape(layout: LayoutBuilder, operand: str, argument: str) -> Dims:
    """Return the dimensions of `operand` in the shape that `argument` lists, where -1 stands for one unknown size."""
    return _reshape_to(layout, operand, layout.integers(argument))


def reshape_like(layout: LayoutBuilder, operand: str, like: str) -> Dims:
    """Return the dimensions of `operand` reshaped to the shape of `like`, and give `like` the same factors."""
    dims = _reshape_to(layout, operand, layout.shape(like))
    layout.set_dims(like, dims)
    return dims


def flatten(layout: LayoutBuilder, operand: str, *ends: str) -> Dims:
    """Return the dimensions with those from the first to the second of `ends` joined; without ends, all joined."""
    shape = layout.shape(operand) or (1,)
    start, end = (layout.dimension(name, len(shape)) for name in ends) if ends else (0, len(shape) - 1)
    return _reshape_to(layout, operand, (*shape[:start], math.prod(shape[start : end + 1]), *shape[end + 1 :]))


def unflatten(layout: LayoutBuilder, operand: str, dim: str, argument: str) -> Dims:
    """Return the dimensions with `dim` split into the sizes that `argument` lists, where one may be -1."""
    shape = layout.shape(operand)
    position, sizes = layout.dimension(dim, len(shape)), layout.integers(argument)
    # -1 follows from this dimension alone: if another one is empty, the number of elements does not determine it.
    if sizes.count(-1) == 1:
        known_product = math.prod(size for size in sizes if size != -1)
        sizes = tuple(shape[position] // max(known_product, 1) if size == -1 else size for size in sizes)
    dims = _reshape_to(layout, operand, (*shape[:position], *sizes, *shape[position + 1 :]))
    # The parts must be unsharded, because their sizes are an argument that local sizes do not replace.
    layout.keep_unsharded(factor for factors in dims[position : position + len(sizes)] for factor in factors)
    return dims


def _reshape_to(layout: LayoutBuilder, operand: str, requested_shape: tuple[int, ...]) -> Dims:
    """Return the dimensions after a reshape of `operand`, and split those of `operand` into the same factors.

    Factors that are major on both sides are shared. All others are unsharded.

    Args:
        requested_shape: the shape of the result, where -1 stands for one unknown size.
    """
    source = layout.shape(operand)
    target = _target_shape(layout, source, requested_shape)
    dims: tuple[list[list[int]], ...] = ([[] for _ in source], [[] for _ in target])
    if 0 in source:
        for dims_of_shape, shape in zip(dims, (source, target), strict=True):
            for dim, size in enumerate(shape):
                dims_of_shape[dim].append(layout.factor(_new_name(layout), size, unsharded=True))
    else:
        _append_common_factors(layout, source, target, dims)
    layout.set_dims(operand, tuple(map(tuple, dims[0])))
    return tuple(map(tuple, dims[1]))


def _target_shape(layout: LayoutBuilder, shape: tuple[int, ...], requested_shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return `requested_shape` with -1 replaced by the size that follows from the result, or else from `shape`.

    Raises:
        RuleError: a size is invalid, the numbers of elements differ, or the result has another shape.
    """
    if requested_shape.count(-1) > 1 or any(size < -1 for size in requested_shape):
        layout.fail(f"invalid shape {list(requested_shape)}; expected non-negative sizes, and at most one -1")
    sizes = result_sizes(layout, requested_shape)
    if -1 in sizes:
        known_product = math.prod(size for size in sizes if size != -1)
        sizes = tuple(math.prod(shape) // max(known_product, 1) if size == -1 else size for size in sizes)
    if math.prod(sizes) != math.prod(shape):
        count = math.prod(shape)
        layout.fail(f"{count} elements cannot be viewed as shape {list(sizes)}; expected a shape with {count} elements")
    return sizes


def result_sizes(layout: LayoutBuilder, requested_shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of the result, which must match the requested one, where -1 matches any size.

    If the result is to be inferred, return `requested_shape` itself.
    """
    result = layout.result_shape()
    if result is None:
        return requested_shape
    if len(result) != len(requested_shape) or any(
        requested not in (-1, size) for requested, size in zip(requested_shape, result, strict=True)
    ):
        layout.fail(f"the result has shape {list(result)}; expected {list(requested_shape)}, as the arguments specify")
    return result


def _append_common_factors(
    layout: LayoutBuilder, source: tuple[int, ...], target: tuple[int, ...], dims: tuple[list[list[int]], ...]
) -> None:
    """Divide the sizes of both shapes into common factors, major first, and append the factors to `dims`.

    The next factor is the greatest common divisor of what remains of the first dimension on both sides. For example,
    the shapes (6, 4) and (3, 8) begin with gcd(6, 3) = 3. Then 2 and 8 remain, whose gcd is 2, and then 4 and 4. So the
    factors are (3 2) (4) and (3) (2 4).

    Args:
        dims: the factors of each dimension of `source`, and of `target`.
    """
    # Side 0 is the source, side 1 the target.
    remaining_sizes = [list(source), list(target)]  # the sizes divided by the factors so far
    next_dims = [0, 0]  # the first dimension of each side of which some size remains
    while True:
        for side in (0, 1):
            while next_dims[side] < len(remaining_sizes[side]) and remaining_sizes[side][next_dims[side]] == 1:
                next_dims[side] += 1
        if next_dims[0] == len(source) or next_dims[1] == len(target):
            return
        common = math.gcd(remaining_sizes[0][next_dims[0]], remaining_sizes[1][next_dims[1]])
        if common == 1:
            _skip_unsharded_block(layout, remaining_sizes, next_dims, dims)
            return
        factor = layout.factor(_new_name(layout), common)
        for side in (0, 1):
            dims[side][next_dims[side]].append(factor)
            remaining_sizes[side][next_dims[side]] //= common


def _skip_unsharded_block(
    layout: LayoutBuilder, remaining_sizes: list[list[int]], next_dims: list[int], dims: tuple[list[list[int]], ...]
) -> None:
    """Skip dimensions without a common major factor until both sides have equally many elements; then continue.

    The skipped dimensions get unsharded factors of their own. For example, of the remaining sizes `2x3x5` and `3x2x5`,
    the first two dimensions are skipped on both sides, which are 6 elements; the common factor 5 follows.

    Args:
        remaining_sizes, next_dims, dims: see `_append_common_factors`.
    """
    products = [1, 1]  # the number of elements in the skipped dimensions of each side
    ends = list(next_dims)
    while products[0] != products[1] or products[0] == 1:  # at first both are 1
        side = 0 if products[0] <= products[1] else 1
        products[side] *= remaining_sizes[side][ends[side]]
        ends[side] += 1
    for side in (0, 1):
        for dim in range(next_dims[side], ends[side]):
            dims[side][dim].append(layout.factor(_new_name(layout), remaining_sizes[side][dim], unsharded=True))
            remaining_sizes[side][dim] = 1
    source, target = tuple(remaining_sizes[0]), tuple(remaining_sizes[1])
    _append_common_factors(layout, source, target, dims)


def _new_name(layout: LayoutBuilder) -> str:
    """Return the next unused name of a factor of a reshape: r0, r1, …"""
    return f"r{sum(name[0] == 'r' for name in layout.names)}"
