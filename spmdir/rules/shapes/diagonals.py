"""Dimension maps of diagonals and windows, and of their inverses.

See `dimension_maps.py`. `operand`, `argument` and the like are names of parameters in the rule.
"""

from __future__ import annotations

import math

from spmdir.rules.shapes.factor import Dims
from spmdir.rules.shapes.layout_builder import LayoutBuilder


def diagonal(layout: LayoutBuilder, operand: str, offset: str, dim1: str, dim2: str) -> Dims:
    """Return the dimensions of a diagonal: those of `operand` without `dim1` and `dim2`, then that of the diagonal.

    The diagonal, `dim1` and `dim2` are unsharded. For example, the diagonal of [a, b, c] in the dimensions 0 and 2 has
    the dimensions [b, w], where w is a new factor.
    """
    dims, shape = layout.dims(operand), layout.shape(operand)
    row_dim, column_dim = (layout.dimension(name, len(dims)) for name in (dim1, dim2))
    if row_dim == column_dim:
        layout.fail(
            f"found one dimension twice for a diagonal of shape {list(shape)}; expected two different dimensions"
        )
    layout.keep_unsharded((*dims[row_dim], *dims[column_dim]))
    shift = layout.integer(offset)
    length = max(0, min(shape[row_dim] + min(shift, 0), shape[column_dim] - max(shift, 0)))
    other_dims = [factors for dim, factors in enumerate(dims) if dim not in (row_dim, column_dim)]
    return (*other_dims, (layout.factor("w", length, unsharded=True),))


def undiagonal(layout: LayoutBuilder, operand: str, sizes: str, dim1: str, dim2: str) -> Dims:
    """Return the dimensions of the tensor of shape `sizes` with diagonal `operand`; the inverse of `diagonal`.

    For example, [b, w] and the dimensions 0 and 2 give [w0, b, w2], where w0 and w2 are new unsharded factors.
    """
    dims, shape = layout.dims(operand), layout.integers(sizes)
    diagonal_dims = sorted(layout.dimension(name, len(shape)) for name in (dim1, dim2))
    if len(dims) + 1 != len(shape) or diagonal_dims[0] == diagonal_dims[1]:
        layout.fail(
            f"a tensor of rank {len(dims)} cannot be a diagonal of a tensor of shape {list(shape)}; "
            f"expected rank {len(shape) - 1}, and two different dimensions"
        )
    return _unfolded(layout, dims, {position: shape[position] for position in diagonal_dims})


def _unfolded(layout: LayoutBuilder, dims: Dims, sizes: dict[int, int]) -> Dims:
    """Return `dims` with its last dimension replaced by unsharded ones of `sizes` (position → size)."""
    layout.keep_unsharded(dims[-1])
    result_dims = list(dims[:-1])
    for position, size in sorted(sizes.items()):
        result_dims.insert(position, (layout.factor(f"w{position}", size, unsharded=True),))
    return tuple(result_dims)


def embedded(layout: LayoutBuilder, operand: str, offset: str, dim1: str, dim2: str) -> Dims:
    """Return the dimensions of a tensor whose diagonal is the last dimension of `operand`.

    `dim1` and `dim2`, which contain the diagonal, are unsharded. For example, [a, b] with a diagonal in the dimensions
    1 and 2 becomes [a, w1, w2]. The size of w1 and of w2 is the size of b plus the absolute offset of the diagonal.
    """
    dims, shape = layout.dims(operand), layout.shape(operand)
    if not dims:
        layout.fail("a tensor without dimensions has no diagonal; expected one or more dimensions")
    diagonal_dims = [layout.dimension(name, len(dims) + 1) for name in (dim1, dim2)]
    size = shape[-1] + abs(layout.integers(offset)[0])
    return _unfolded(layout, dims, dict.fromkeys(diagonal_dims, size))


def windows(layout: LayoutBuilder, operand: str, dimension: str, length: str, step: str) -> Dims:
    """Return the dimensions of windows along one dimension: it becomes the windows, and their elements come last.

    Windows of 5 in steps of 5 of a dimension of 10 are a dimension of 2 windows, and a last dimension of 5 elements.

    Windows that tile the dimension may be sharded: they have no common element. Others are unsharded. The result for a
    scalar has only the dimension of elements.

    Args:
        dimension: the parameter with the dimension.
        length, step: the parameters with the number of elements of a window, and with the distance between windows.
    """
    dims, shape = list(layout.dims(operand)), layout.shape(operand)
    size, stride = layout.integer(length), layout.integer(step)
    dim = layout.dimension(dimension, len(dims))
    extent = shape[dim] if dims else 1
    if not 0 <= size <= extent or stride < 1:
        layout.fail(
            f"windows of {size} elements in steps of {stride} do not fit {extent} elements; "
            f"expected a size from 0 to {extent}, and a step of at least 1"
        )
    tiles = bool(dims) and size == stride and size > 0 and extent % size == 0
    window_factor = layout.factor(f"w{dim}", (extent - size) // stride + 1, unsharded=not tiles)
    element_factor = layout.factor("e", size, unsharded=True)
    if not dims:
        return ((element_factor,),)
    if tiles:
        new_operand_dims = list(dims)
        new_operand_dims[dim] = (window_factor, element_factor)
        layout.set_dims(operand, tuple(new_operand_dims))
    else:
        layout.keep_unsharded(dims[dim])
    dims[dim] = (window_factor,)
    return (*dims, (element_factor,))


def unwindowed(layout: LayoutBuilder, operand: str, sizes: str, argument: str, length: str, step: str) -> Dims:
    """Return the dimensions of the tensor of shape `sizes` with the windows `operand`; the inverse of `windows`.

    If the windows tile the dimension, it consists of the windows and their elements. Otherwise it is unsharded.

    Args:
        argument: the parameter with the dimension of the windows.
        length, step: as for `windows`.
    """
    dims, shape = list(layout.dims(operand)), layout.integers(sizes)
    if len(dims) != len(shape) + 1 or not shape:
        layout.fail(
            f"a tensor of rank {len(dims)} cannot contain windows of a tensor of shape {list(shape)}; "
            f"expected rank {len(shape) + 1}, and at least one dimension to cut"
        )
    dim = layout.dimension(argument, len(shape))
    tile_dimension = layout.integers(length) == layout.integers(step) and math.prod(layout.shape(operand)) == math.prod(
        shape
    )
    if tile_dimension:
        layout.keep_unsharded(dims[-1])
        return (*dims[:dim], (*dims[dim], *dims[-1]), *dims[dim + 1 : -1])
    layout.keep_unsharded((*dims[dim], *dims[-1]))
    dims[dim] = (layout.factor(f"w{dim}", shape[dim], unsharded=True),)
    return tuple(dims[:-1])
