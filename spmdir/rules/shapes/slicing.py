"""Slices and padding along dimensions."""

from __future__ import annotations

import math

from spmdir.rules.shapes.factor import Dims
from spmdir.rules.shapes.layout_builder import LayoutBuilder


def sliced(layout: LayoutBuilder, operand: str, argument: str, start: str, end: str, step: str) -> Dims:
    """Return the dimensions with the sliced one separate and replaced, unless all of it stays."""
    dims, shape = list(layout.dims(operand)), layout.shape(operand)
    at = layout.dimension(argument, len(dims))
    step_size = layout.argument(step) or 1
    if not dims or not isinstance(step_size, int) or step_size < 1:
        layout.fail(f"rank {len(dims)} and step {step_size!r} give no slice; expected dimensions and a step from 1 on")
    begin, until, _ = slice(layout.argument(start), layout.argument(end)).indices(shape[at])
    _replace(layout, dims, argument, at, max(0, -(-(until - begin) // step_size)))
    return tuple(dims)


def narrowed(layout: LayoutBuilder, operand: str, argument: str, start: str, length: str) -> Dims:
    """Return the dimensions as `sliced` does."""
    dims = list(layout.dims(operand))
    (size,) = layout.integers(length)
    _replace(layout, dims, argument, layout.dimension(argument, len(dims)), size)
    return tuple(dims)


def _replace(layout: LayoutBuilder, dims: list[tuple[int, ...]], argument: str, at: int, size: int) -> None:
    """Put an unsharded dimension of `size` elements in the place of a separate one."""
    if size == math.prod(layout.sizes[f] or 0 for f in dims[at]):
        return
    if size:
        layout.separate(argument, at, dims[at])
    else:
        layout.keep_unsharded(dims[at])
    dims[at] = (layout.factor(f"w{at}", size, unsharded=True),)


def padded(layout: LayoutBuilder, operand: str, argument: str) -> Dims:
    """Return the dimensions with padded ones separate and replaced; `argument` lists pairs, last dimension first."""
    dims, shape, pad = layout.dims(operand), layout.shape(operand), layout.integers(argument)
    if len(pad) % 2 or len(pad) > 2 * len(dims):
        layout.fail(f"argument '{argument}' is {list(pad)}; expected two numbers for each of the last dimensions")
    out = list(dims)
    for pair in reversed(range(len(pad) // 2)):
        low, high = pad[2 * pair : 2 * pair + 2]
        position = len(dims) - 1 - pair
        if low or high:
            if low < 0 or high < 0:
                layout.keep_unsharded(dims[position])
            else:
                layout.separate(argument, position, dims[position])
            out[position] = (layout.factor(f"w{position}", shape[position] + low + high, unsharded=True),)
    return tuple(out)


def keep_equal(layout: LayoutBuilder, operand: str) -> Dims:
    """Return the dimensions: those that keep their size stay, others are unsharded before and after."""
    dims, shape = layout.dims(operand), layout.shape(operand)
    result = layout.result_shape()
    if result is None:
        layout.fail("the shape of the result cannot be inferred")
    layout.same_rank(dims, result)
    out = []
    for position, size in enumerate(result):
        if size == shape[position]:
            out.append(dims[position])
        else:
            layout.keep_unsharded(dims[position])
            out.append((layout.factor(f"w{position}", size, unsharded=True),))
    return tuple(out)
