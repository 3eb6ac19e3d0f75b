"""Tensors put together, or one with itself, along a dimension."""

from __future__ import annotations

import math

from spmdir.rules.shapes.factor import Dims
from spmdir.rules.shapes.layout_builder import LayoutBuilder


def concatenated(layout: LayoutBuilder, operands: str, argument: str) -> Dims:
    """Return the dimensions of tensors joined along a separate one; torch lets vectors of no elements join any."""
    numbers = layout.binding.operands(operands)
    empty = [i for i in numbers if layout.operands[i].shape == (0,)]
    first = next((i for i in numbers if i not in empty), numbers[0])
    shape = layout.operands[first].shape
    at = layout.dimension(argument, len(shape))
    if not shape:
        layout.fail("tensors without dimensions cannot be concatenated; stack them")
    rest = [layout.refer(f"d{p}") or (layout.letter(f"d{p}", size, None),) for p, size in enumerate(shape) if p != at]
    if layout.operand is None:
        total = sum(layout.operands[i].shape[at] for i in numbers if i not in empty or first in empty)
        along = layout.factor(f"w{at}", total, unsharded=True)
    else:
        mine = layout.operands[layout.operand].shape
        if layout.operand in empty and first not in empty:
            return ((layout.factor("none", 0, unsharded=True),),)
        if len(mine) != len(shape) or any(s != t for p, (s, t) in enumerate(zip(mine, shape, strict=True)) if p != at):
            layout.fail(f"tensors of shapes {list(shape)} and {list(mine)} cannot be joined along dimension {at}")
        along = layout.factor(f"~{argument}", mine[at])
        layout.separate(argument, layout.operand, (along,))
    return (*rest[:at], (along,), *rest[at:])


def join(layout: LayoutBuilder, operands: str, argument: str) -> Dims:
    """Return the dimensions of tensors stacked along a new one."""
    dims = list(layout.operand_dims[layout.binding.operands(operands)[0]])
    count = len(layout.binding.operands(operands))
    dims.insert(layout.dimension(argument, len(dims) + 1), (layout.factor("w", count, unsharded=True),))
    return tuple(dims)


def grid(layout: LayoutBuilder, operands: str, *indexing: str) -> Dims:
    """Return the one dimension of a tensor; for the result those of all tensors, the first two swapped for "xy"."""
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
    """Return the dimensions as `repeat` does, where counts that are missing in front are 1."""
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
    """Return each element of a dimension repeated in place; all dimensions as one if `argument` names none."""
    dims = layout.dims(operand)
    (count,) = layout.integers(repeats)
    if count < 0:
        layout.fail(f"argument '{repeats}' is {count}; expected how often each element comes")
    times = (layout.factor("w", count, unsharded=True),)
    if layout.argument(argument) is None:
        return (tuple(factor for dim in dims for factor in dim) + times,)
    at = layout.dimension(argument, len(dims))
    return tuple((*dim, *times) if position == at else dim for position, dim in enumerate(dims)) or (times,)
