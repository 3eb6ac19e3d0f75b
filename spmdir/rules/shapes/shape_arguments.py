"""Dimension maps for shapes from an argument, or from some dimensions of an operand.

See `dimension_maps.py`. `operand`, `argument` and the like are names of parameters in the rule.
"""

from __future__ import annotations

from collections.abc import Callable

from spmdir.rules.shapes.factor import Dims
from spmdir.rules.shapes.layout_builder import LayoutBuilder
from spmdir.rules.shapes.reshape import result_sizes


def new(layout: LayoutBuilder, argument: str) -> Dims:
    """Return the dimensions of a new tensor of the shape in `argument`: one factor for each dimension."""
    sizes = result_sizes(layout, layout.integers(argument))
    return tuple((layout.factor(f"n{dim}", size),) for dim, size in enumerate(sizes))


def drawn(layout: LayoutBuilder, argument: str) -> Dims:
    """Return the dimensions of random numbers, which are unsharded because a rank cannot draw a part of them."""
    dims = new(layout, argument)
    layout.keep_unsharded(factor for factors in dims for factor in factors)
    return dims


def drawn_like(layout: LayoutBuilder, operand: str) -> Dims:
    """Return the dimensions of random numbers in the shape of `operand`; they are unsharded."""
    return tuple((layout.factor(f"n{dim}", size, unsharded=True),) for dim, size in enumerate(layout.shape(operand)))


def unused(layout: LayoutBuilder) -> Dims:
    """Return the dimensions of a result that is not computed: unsharded, or by default one without elements."""
    shape = layout.result_shape(len(layout.result_dims)) or (0,)
    return tuple((layout.factor("none", size, unsharded=True),) for size in shape)


def front(dropped: int) -> Callable[[LayoutBuilder, str], Dims]:
    """Return a map to the dimensions of an operand without the last `dropped`."""

    def build(layout: LayoutBuilder, operand: str) -> Dims:
        dims = layout.dims(operand)
        return dims[: len(dims) - dropped]

    return build


def leading(layout: LayoutBuilder, operand: str, argument: str) -> Dims:
    """Return the dimensions of `operand`, but with size 1 for the last n, where `argument` is a list of n integers.

    For example, a layer norm of an operand [b, s, d] with normalized_shape=[d] returns means of [b, s, 1].
    """
    dims, count = layout.dims(operand), len(layout.integers(argument))
    return (*dims[: max(0, len(dims) - count)], *((),) * count)


def trailing(layout: LayoutBuilder, operand: str, argument: str) -> Dims:
    """Return the last dimensions of `operand`, as many as `argument` lists."""
    dims, count = layout.dims(operand), len(layout.integers(argument))
    return dims[max(0, len(dims) - count) :]


def reduced(layout: LayoutBuilder, *arguments: str) -> Dims:
    """Return the dimensions of a loss: a scalar, or without a reduction those of `*` or of an operand.

    Args:
        arguments: optionally the name of an operand, then the name of the argument with torch's reduction mode, where
            0 means no reduction.
    """
    *operand, reduction = arguments
    if layout.argument(reduction) != 0:
        return ()
    return layout.dims(operand[0]) if operand else tuple((factor,) for factor in layout.refer("*"))
