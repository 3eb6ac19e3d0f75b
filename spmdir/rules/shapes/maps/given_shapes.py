"""Shapes that are given by an argument or are those of an operand in part."""

from __future__ import annotations

from collections.abc import Callable

from spmdir.rules.shapes.factor import Dims
from spmdir.rules.shapes.layout_builder import LayoutBuilder
from spmdir.rules.shapes.maps.reshape import result_sizes


def new(layout: LayoutBuilder, argument: str) -> Dims:
    """A tensor made from nothing: every dimension is a factor of its own."""
    return tuple((layout.factor(f"n{i}", s),) for i, s in enumerate(result_sizes(layout, layout.integers(argument))))


def drawn(layout: LayoutBuilder, argument: str) -> Dims:
    """A tensor of random numbers: no rank can draw a part of it."""
    dims = new(layout, argument)
    layout.keep_unsharded(f for d in dims for f in d)
    return dims


def drawn_like(layout: LayoutBuilder, operand: str) -> Dims:
    """Random numbers in the shape of `operand`, whole whatever divides that."""
    return tuple((layout.factor(f"n{i}", size, unsharded=True),) for i, size in enumerate(layout.shape(operand)))


def unused(layout: LayoutBuilder) -> Dims:
    """What an op gives in place of a tensor that it has no use for: one that holds nothing. Whole if it does."""
    shape = layout.result_shape(len(layout.result_dims)) or (0,)
    return tuple((layout.factor("none", size, unsharded=True),) for size in shape)


def front(dropped: int) -> Callable[[LayoutBuilder, str], Dims]:
    """All dimensions of a tensor but the last `dropped`."""

    def build(layout: LayoutBuilder, operand: str) -> Dims:
        dims = layout.dims(operand)
        return dims[: len(dims) - dropped]

    return build


def leading(layout: LayoutBuilder, operand: str, argument: str) -> Dims:
    """The dimensions of `operand` with size 1 for those that `trailing` gives."""
    dims, count = layout.dims(operand), len(layout.integers(argument))
    return (*dims[: max(0, len(dims) - count)], *((),) * count)


def trailing(layout: LayoutBuilder, operand: str, argument: str) -> Dims:
    """The last dimensions of `operand`, as many as `argument` lists."""
    dims, count = layout.dims(operand), len(layout.integers(argument))
    return dims[max(0, len(dims) - count) :]


def reduced(layout: LayoutBuilder, *arguments: str) -> Dims:
    """What a loss gives, by its `reduction` (0 none, 1 mean, 2 sum): all of `*`, or of an operand, or one number."""
    *operand, reduction = arguments
    if layout.argument(reduction) != 0:
        return ()
    return layout.dims(operand[0]) if operand else tuple((f,) for f in layout.refer("*"))
