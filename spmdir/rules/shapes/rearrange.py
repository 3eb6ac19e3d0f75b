"""Dimension maps that reorder dimensions, or add, remove and expand dimensions of size 1.

See `dimension_maps.py`. `operand`, `argument` and the like are names of parameters in the rule.
"""

from __future__ import annotations

from spmdir.rules.shapes.factor import Dims
from spmdir.rules.shapes.layout_builder import LayoutBuilder


def permute(layout: LayoutBuilder, operand: str, argument: str) -> Dims:
    """Return the dimensions in the order that `argument` lists."""
    dims = layout.dims(operand)
    return tuple(dims[dim] for dim in layout.dimensions(argument, len(dims)))


def transpose(layout: LayoutBuilder, operand: str, dim0: str, dim1: str) -> Dims:
    """Return the dimensions with `dim0` and `dim1` swapped; a scalar is unchanged."""
    dims = list(layout.dims(operand))
    if dims:
        first, second = layout.dimension(dim0, len(dims)), layout.dimension(dim1, len(dims))
        dims[first], dims[second] = dims[second], dims[first]
    return tuple(dims)


def reverse(layout: LayoutBuilder, operand: str) -> Dims:
    """Return the dimensions in reverse order."""
    return layout.dims(operand)[::-1]


def move(layout: LayoutBuilder, operand: str, source: str, destination: str) -> Dims:
    """Return the dimensions after `torch.movedim`: those of `source` are moved to the positions of `destination`.

    The other dimensions keep their order. For example, `[a, b, c]` with source 0 and destination 2 is `[b, c, a]`.
    """
    dims = layout.dims(operand)
    rank = len(dims)
    if not rank:
        return ()
    source_of_position = dict(zip(layout.dimensions(destination, rank), layout.dimensions(source, rank), strict=True))
    unmoved_dims = iter(dim for dim in range(rank) if dim not in source_of_position.values())
    order = [
        source_of_position[position] if position in source_of_position else next(unmoved_dims)
        for position in range(rank)
    ]
    return tuple(dims[dim] for dim in order)


def unsqueeze(layout: LayoutBuilder, operand: str, argument: str) -> Dims:
    """Return the dimensions with a new one of size 1 at the position that `argument` selects."""
    dims = list(layout.dims(operand))
    dims.insert(layout.dimension(argument, len(dims) + 1), ())
    return tuple(dims)


def squeeze(layout: LayoutBuilder, operand: str, *argument: str) -> Dims:
    """Return the dimensions without those of size 1; with `argument`, only those that it lists are removed."""
    dims, shape = layout.dims(operand), layout.shape(operand)
    listed_dims = layout.dimensions(argument[0], len(dims)) if argument and dims else range(len(dims))
    removed_dims = [dim for dim in listed_dims if shape[dim] == 1]
    return tuple(factors for dim, factors in enumerate(dims) if dim not in removed_dims)


def expand(layout: LayoutBuilder, operand: str, argument: str) -> Dims:
    """Return the dimensions expanded to the shape in `argument`, where -1 keeps a size.

    New dimensions in front, and dimensions of size 1 that are expanded, get new factors.
    """
    dims, shape = layout.dims(operand), layout.shape(operand)
    requested_shape = layout.integers(argument)
    new_dim_count = len(requested_shape) - len(shape)
    result_dims = []
    for position, size in enumerate(requested_shape):
        operand_dim = position - new_dim_count
        is_kept = operand_dim >= 0 and size in (-1, shape[operand_dim])
        is_expandable = size >= 0 and (operand_dim < 0 or shape[operand_dim] == 1)
        if new_dim_count < 0 or not (is_kept or is_expandable):
            layout.fail(
                f"the shape {list(shape)} cannot be expanded to {list(requested_shape)}; "
                "expected equal sizes of all dimensions, except those of size 1 and new ones"
            )
        result_dims.append(dims[operand_dim] if is_kept else (layout.factor(f"n{position}", size),))
    return tuple(result_dims)


def rotated(layout: LayoutBuilder, operand: str, times: str, argument: str) -> Dims:
    """Return the dimensions after `times` quarter turns in the plane of two dimensions, as `torch.rot90` does.

    A turn may reverse a dimension, which is then unsharded. An odd number of turns swaps the two.
    """
    dims = list(layout.dims(operand))
    turned_dims = (0, 1) if layout.argument(argument) is None else layout.dimensions(argument, len(dims))
    if len(turned_dims) != 2:
        layout.fail(f"argument '{argument}' is {list(turned_dims)}; expected two dimensions")
    first, second = turned_dims
    turns = layout.integers(times)[0] % 4
    reversed_dims = {0: (), 1: (second,), 2: (first, second), 3: (first,)}[turns]
    layout.keep_unsharded(factor for dim in reversed_dims for factor in dims[dim])
    if turns % 2:
        dims[first], dims[second] = dims[second], dims[first]
    return tuple(dims)
