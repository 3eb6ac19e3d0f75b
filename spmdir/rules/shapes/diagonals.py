"""Views that take elements in strides: diagonals and windows, and what they were taken from."""

from __future__ import annotations

import math

from spmdir.rules.shapes.factor import Dims
from spmdir.rules.shapes.layout_builder import LayoutBuilder


def diagonal(layout: LayoutBuilder, operand: str, offset: str, first: str, second: str) -> Dims:
    """Return the dimensions of a diagonal: those it is taken along are unsharded, and so is its own, the last one."""
    dims, shape = layout.dims(operand), layout.shape(operand)
    at = [layout.dimension(name, len(dims)) for name in (first, second)]
    if at[0] == at[1]:
        layout.fail(f"there is no diagonal of one dimension, nor one without dimensions: {list(shape)}")
    layout.keep_unsharded(f for p in at for f in dims[p])
    (shift,) = layout.integers(offset)
    length = max(0, min(shape[at[0]] + min(shift, 0), shape[at[1]] - max(shift, 0)))
    return (*(d for p, d in enumerate(dims) if p not in at), (layout.factor("w", length, unsharded=True),))


def undiagonal(layout: LayoutBuilder, operand: str, sizes: str, first: str, second: str) -> Dims:
    """Return the dimensions of the tensor, of shape `sizes`, whose diagonal `operand` is."""
    dims, shape = layout.dims(operand), layout.integers(sizes)
    at = sorted(layout.dimension(name, len(shape)) for name in (first, second))
    if len(dims) + 1 != len(shape) or at[0] == at[1]:
        layout.fail(f"a tensor of rank {len(dims)} is not a diagonal of one of shape {list(shape)}")
    return _unfolded(layout, dims, {position: shape[position] for position in at})


def _unfolded(layout: LayoutBuilder, dims: Dims, sizes: dict[int, int]) -> Dims:
    """Return `dims` with two unsharded dimensions of `sizes` (position → size) in place of the last one."""
    layout.keep_unsharded(dims[-1])
    out = list(dims[:-1])
    for position, size in sorted(sizes.items()):
        out.insert(position, (layout.factor(f"w{position}", size, unsharded=True),))
    return tuple(out)


def embedded(layout: LayoutBuilder, operand: str, offset: str, first: str, second: str) -> Dims:
    """Return the dimensions with two unsharded ones in place of the last, which is their diagonal."""
    dims, shape = layout.dims(operand), layout.shape(operand)
    if not dims:
        layout.fail("a tensor without dimensions is not a diagonal")
    at = [layout.dimension(name, len(dims) + 1) for name in (first, second)]
    size = shape[-1] + abs(layout.integers(offset)[0])
    return _unfolded(layout, dims, dict.fromkeys(at, size))


def windows(layout: LayoutBuilder, operand: str, dimension: str, length: str, step: str) -> Dims:
    """Return a dimension of windows, unsharded unless they tile the dimension, with that of their elements last."""
    dims, shape = list(layout.dims(operand)), layout.shape(operand)
    (size,), (stride,) = layout.integers(length), layout.integers(step)
    at = layout.dimension(dimension, len(dims))
    extent = shape[at] if dims else 1
    if not 0 <= size <= extent or stride < 1:
        layout.fail(f"no windows of {size} elements in steps of {stride} fit {extent} elements")
    tiles = bool(dims) and size == stride and size > 0 and extent % size == 0
    count = layout.factor(f"w{at}", (extent - size) // stride + 1, unsharded=not tiles)
    inner = layout.factor("e", size, unsharded=True)
    if not dims:
        return ((inner,),)
    if tiles:
        old = list(dims)
        old[at] = (count, inner)
        layout.set_dims(operand, tuple(old))
    else:
        layout.keep_unsharded(dims[at])
    dims[at] = (count,)
    return (*dims, (inner,))


def unwindowed(layout: LayoutBuilder, operand: str, sizes: str, argument: str, length: str, step: str) -> Dims:
    """Return the dimensions of the tensor, of shape `sizes`, whose windows `operand` contains, as in `windows`."""
    dims, shape = list(layout.dims(operand)), layout.integers(sizes)
    if len(dims) != len(shape) + 1 or not shape:
        layout.fail(f"a tensor of rank {len(dims)} cannot be windows of one of shape {list(shape)}")
    at = layout.dimension(argument, len(shape))
    if layout.integers(length) == layout.integers(step) and math.prod(layout.shape(operand)) == math.prod(shape):
        layout.keep_unsharded(dims[-1])
        return (*dims[:at], (*dims[at], *dims[-1]), *dims[at + 1 : -1])
    layout.keep_unsharded((*dims[at], *dims[-1]))
    dims[at] = (layout.factor(f"w{at}", shape[at], unsharded=True),)
    return tuple(dims[:-1])
