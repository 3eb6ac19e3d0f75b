"""Dimensions cut and padded."""

from __future__ import annotations

import math

from spmdir.rules.shapes.factor import Dims
from spmdir.rules.shapes.layout_builder import LayoutBuilder


def sliced(layout: LayoutBuilder, operand: str, argument: str, start: str, end: str, step: str) -> Dims:
    """The dimension that is cut stands apart and gives way to another one, unless all of it stays."""
    dims, shape = list(layout.dims(operand)), layout.shape(operand)
    at = layout.dimension(argument, len(dims))
    step_size = layout.argument(step) or 1
    if not dims or not isinstance(step_size, int) or step_size < 1:
        layout.fail(f"rank {len(dims)} and step {step_size!r} give no slice; expected dimensions and a step from 1 on")
    begin, until, _ = slice(layout.argument(start), layout.argument(end)).indices(shape[at])
    _cut(layout, dims, argument, at, max(0, -(-(until - begin) // step_size)))
    return tuple(dims)


def narrowed(layout: LayoutBuilder, operand: str, argument: str, start: str, length: str) -> Dims:
    """As `sliced`."""
    dims = list(layout.dims(operand))
    (size,) = layout.integers(length)
    _cut(layout, dims, argument, layout.dimension(argument, len(dims)), size)
    return tuple(dims)


def _cut(layout: LayoutBuilder, dims: list[tuple[int, ...]], argument: str, at: int, size: int) -> None:
    """Put a whole dimension of `size` elements where one that stands apart was."""
    if size == math.prod(layout.sizes[f] or 0 for f in dims[at]):
        return
    if size:
        layout.separate(argument, at, dims[at])
    else:
        layout.keep_unsharded(dims[at])
    dims[at] = (layout.factor(f"w{at}", size, unsharded=True),)


def padded(layout: LayoutBuilder, operand: str, argument: str) -> Dims:
    """Dimensions with padding stand apart and give way; `argument` lists pairs from the last dimension on."""
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
    """Dimensions that keep their size stay; the others are whole before and after (slice, narrow)."""
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
