"""Dimension maps that concatenate, stack and repeat tensors."""

from __future__ import annotations

import math

from spmdir.rules.shapes.factor import Dims
from spmdir.rules.shapes.layout_builder import LayoutBuilder


def concatenated(layout: LayoutBuilder, operands: str, argument: str) -> Dims:
    """Return the dimensions of concatenated tensors. The joined one is separate. Empty vectors fit all tensors."""
    numbers = layout.binding.operands(operands)
    empty = [i for i in numbers if layout.operands[i].shape == (0,)]
    reference = next((i for i in numbers if i not in empty), numbers[0])
    shape = layout.operands[reference].shape
    joined = layout.dimension(argument, len(shape))
    if not shape:
        layout.fail("tensors without dimensions cannot be concatenated; stack them")
    other_dims = [
        layout.refer(f"d{p}") or (layout.letter(f"d{p}", size, None),) for p, size in enumerate(shape) if p != joined
    ]
    if layout.operand is None:
        total = sum(layout.operands[i].shape[joined] for i in numbers if i not in empty or reference in empty)
        along = layout.factor(f"w{joined}", total, unsharded=True)
    else:
        own_shape = layout.operands[layout.operand].shape
        if layout.operand in empty and reference not in empty:
            return ((layout.factor("none", 0, unsharded=True),),)
        if len(own_shape) != len(shape) or any(
            s != t for p, (s, t) in enumerate(zip(own_shape, shape, strict=True)) if p != joined
        ):
            layout.fail(
                f"tensors of shapes {list(shape)} and {list(own_shape)} cannot be joined along dimension {joined}"
            )
        along = layout.factor(f"~{argument}", own_shape[joined])
        layout.separate(argument, layout.operand, (along,))
    return (*other_dims[:joined], (along,), *other_dims[joined:])


def join(layout: LayoutBuilder, operands: str, argument: str) -> Dims:
    """Return the dimensions of tensors stacked along a new one."""
    dims = list(layout.operand_dims[layout.binding.operands(operands)[0]])
    count = len(layout.binding.operands(operands))
    dims.insert(layout.dimension(argument, len(dims) + 1), (layout.factor("w", count, unsharded=True),))
    return tuple(dims)


def grid(layout: LayoutBuilder, operands: str, *indexing: str) -> Dims:
    """Return the dimension of an operand; for the result those of all operands, the first two swapped for "xy"."""
    numbers = layout.binding.operands(operands)
    dims = [(layout.letter(f"g{k}", math.prod(layout.operands[i].shape), None),) for k, i in enumerate(numbers)]
    if layout.operand is not None:
        return (dims[numbers.index(layout.operand)],) if layout.operands[layout.operand].shape else ()
    if indexing and layout.argument(indexing[0]) == "xy":
        dims[:2] = dims[1::-1]
    return tuple(dims)


def repeat(layout: LayoutBuilder, operand: str, argument: str) -> Dims:
    return _repeated(layout, operand, argument, layout.integers(argument))


def tiled(layout: LayoutBuilder, operand: str, argument: str) -> Dims:
    """Return the dimensions as `repeat` does, with leading missing counts of 1."""
    repeats = layout.integers(argument)
    return _repeated(layout, operand, argument, (1,) * (len(layout.shape(operand)) - len(repeats)) + repeats)


def _repeated(layout: LayoutBuilder, operand: str, argument: str, repeats: tuple[int, ...]) -> Dims:
    dims, shape = layout.dims(operand), layout.shape(operand)
    if len(repeats) < len(shape) or any(count < 0 for count in repeats):
        layout.fail(f"argument '{argument}' is {list(repeats)}; expected a count for each dimension of {list(shape)}")
    lead = len(repeats) - len(shape)
    out = []
    for position, count in enumerate(repeats):
        old = position - lead
        if old >= 0 and count == 1:
            out.append(dims[old])
        else:
            if old >= 0:
                layout.keep_unsharded(dims[old])
            out.append((layout.factor(f"w{position}", count * (shape[old] if old >= 0 else 1), unsharded=True),))
    return tuple(out)


def interleave(layout: LayoutBuilder, operand: str, repeats: str, argument: str) -> Dims:
    """Return the dimensions with the elements of one repeated in place; without `argument`, all are joined first."""
    dims = layout.dims(operand)
    count = layout.integer(repeats)
    if count < 0:
        layout.fail(f"argument '{repeats}' is {count}; expected a non-negative number of repeats")
    times = (layout.factor("w", count, unsharded=True),)
    if layout.argument(argument) is None:
        return (tuple(factor for dim in dims for factor in dim) + times,)
    repeated_dim = layout.dimension(argument, len(dims))
    return tuple((*dim, *times) if position == repeated_dim else dim for position, dim in enumerate(dims)) or (times,)
