"""Dimension maps of slices and padding.

See `dimension_maps.py`. `operand`, `argument` and the like are names of parameters in the rule.
"""

from __future__ import annotations

import math

from spmdir.rules.shapes.factor import Dims
from spmdir.rules.shapes.layout_builder import LayoutBuilder


def sliced(layout: LayoutBuilder, operand: str, argument: str, start: str, end: str, step: str) -> Dims:
    """Return the dimensions of the result of a slice of `operand`.

    A slice of all elements has the dimensions of `operand`. Otherwise the sliced dimension of the result has a new
    factor that cannot be sharded. The factors of the sliced dimension of `operand` can only be sharded if a clause
    names them, as `~argument`.
    """
    dims, shape = list(layout.dims(operand)), layout.shape(operand)
    dim = layout.dimension(argument, len(dims))
    step_size = layout.argument(step) or 1
    if not dims or not isinstance(step_size, int) or step_size < 1:
        layout.fail(
            f"invalid slice with step {step_size!r} of rank {len(dims)}; expected a step of at least 1, and dimensions"
        )
    bounds = [None if layout.argument(name) is None else layout.integer(name) for name in (start, end)]
    # The number of elements is (until - begin) / step, rounded up.
    begin, until, _ = slice(*bounds).indices(shape[dim])
    _replace(layout, dims, argument, dim, max(0, -(-(until - begin) // step_size)))
    return tuple(dims)


def narrowed(layout: LayoutBuilder, operand: str, argument: str, start: str, length: str) -> Dims:
    """Return the dimensions of a slice of `length` elements, as `sliced` does. The factors do not depend on `start`."""
    dims = list(layout.dims(operand))
    _replace(layout, dims, argument, layout.dimension(argument, len(dims)), layout.integer(length))
    return tuple(dims)


def _replace(layout: LayoutBuilder, dims: list[tuple[int, ...]], argument: str, dim: int, size: int) -> None:
    """Replace dimension `dim` of `dims` by a dimension of `size` elements that cannot be sharded.

    The replaced factors can only be sharded by a clause that names them, as `~argument`; if the slice has no elements,
    they cannot be sharded at all. If the size of the dimension does not change, nothing changes.
    """
    if size == math.prod(layout.sizes[factor] or 0 for factor in dims[dim]):
        return
    if size:
        layout.separate(argument, dim, dims[dim])
    else:
        layout.keep_unsharded(dims[dim])
    dims[dim] = (layout.factor(f"w{dim}", size, unsharded=True),)


def padded(layout: LayoutBuilder, operand: str, argument: str) -> Dims:
    """Return the dimensions after padding. Padded dimensions of `operand` are separate, those of the result unsharded.

    With the padding (1, 2) of the last dimension, [a, b] becomes [a, w1]; w1 is unsharded and has 3 more elements.

    Args:
        argument: the argument with (before, after) for each padded dimension, last dimension first.
    """
    dims, shape, pad = layout.dims(operand), layout.shape(operand), layout.integers(argument)
    if len(pad) % 2 or len(pad) > 2 * len(dims):
        layout.fail(f"argument '{argument}' is {list(pad)}; expected two numbers for each of the last dimensions")
    result_dims = list(dims)
    for pair_index in reversed(range(len(pad) // 2)):
        low, high = pad[2 * pair_index : 2 * pair_index + 2]
        position = len(dims) - 1 - pair_index
        if low or high:
            if low < 0 or high < 0:
                layout.keep_unsharded(dims[position])
            else:
                layout.separate(argument, position, dims[position])
            result_dims[position] = (layout.factor(f"w{position}", shape[position] + low + high, unsharded=True),)
    return tuple(result_dims)


def keep_equal(layout: LayoutBuilder, operand: str) -> Dims:
    """Return the dimensions of a result with the rank of `operand`. Those whose size changes are unsharded in both.

    Raises:
        RuleError: the shape of the result is to be inferred, or it has another rank.
    """
    dims, shape = layout.dims(operand), layout.shape(operand)
    result = layout.result_shape()
    if result is None:
        layout.fail("the operands do not give the shape of the result; expected a result type in the call: write it")
    layout.same_rank(dims, result)
    result_dims = []
    for position, size in enumerate(result):
        if size == shape[position]:
            result_dims.append(dims[position])
        else:
            layout.keep_unsharded(dims[position])
            result_dims.append((layout.factor(f"w{position}", size, unsharded=True),))
    return tuple(result_dims)
