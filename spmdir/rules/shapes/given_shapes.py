"""Shapes that an argument lists, or that are those of an operand in part."""

from __future__ import annotations

from collections.abc import Callable

from spmdir.rules.shapes.factor import Dims
from spmdir.rules.shapes.layout_builder import LayoutBuilder
from spmdir.rules.shapes.reshape import result_sizes


def new(layout: LayoutBuilder, argument: str) -> Dims:
    """Return a tensor made from nothing: every dimension is a factor of its own."""
    return tuple((layout.factor(f"n{i}", s),) for i, s in enumerate(result_sizes(layout, layout.integers(argument))))


def drawn(layout: LayoutBuilder, argument: str) -> Dims:
    """Return a tensor of random numbers: no rank can draw a part of it."""
    dims = new(layout, argument)
    layout.keep_unsharded(f for d in dims for f in d)
    return dims


def drawn_like(layout: LayoutBuilder, operand: str) -> Dims:
    """Return the dimensions of random numbers in the shape of `operand`, unsharded whatever shards that."""
    return tuple((layout.factor(f"n{i}", size, unsharded=True),) for i, size in enumerate(layout.shape(operand)))


def unused(layout: LayoutBuilder) -> Dims:
    """Return the dimensions of a result that is not computed: one without elements, or else unsharded."""
    shape = layout.result_shape(len(layout.result_dims)) or (0,)
    return tuple((layout.factor("none", size, unsharded=True),) for size in shape)


def front(dropped: int) -> Callable[[LayoutBuilder, str], Dims]:
    """Return all dimensions of a tensor but the last `dropped`."""

    def build(layout: LayoutBuilder, operand: str) -> Dims:
        dims = layout.dims(operand)
        return dims[: len(dims) - dropped]

    return build


def leading(layout: LayoutBuilder, operand: str, argument: str) -> Dims:
    """Return the dimensions of `operand` with size 1 for those that `trailing` returns."""
    dims, count = layout.dims(operand), len(layout.integers(argument))
    return (*dims[: max(0, len(dims) - count)], *((),) * count)


def trailing(layout: LayoutBuilder, operand: str, argument: str) -> Dims:
    """Return the last dimensions of `operand`, as many as `argument` lists."""
    dims, count = layout.dims(operand), len(layout.integers(argument))
    return dims[max(0, len(dims) - count) :]


def reduced(layout: LayoutBuilder, *arguments: str) -> Dims:
    """Return the dimensions of a loss: by `reduction`, those of `*` or of an operand (0, none), else a scalar."""
    *operand, reduction = arguments
    if layout.argument(reduction) != 0:
        return ()
    return layout.dims(operand[0]) if operand else tuple((f,) for f in layout.refer("*"))
