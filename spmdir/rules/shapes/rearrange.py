"""Dimension maps that reorder dimensions, or add, remove and expand dimensions of size 1."""

from __future__ import annotations

from spmdir.rules.shapes.factor import Dims
from spmdir.rules.shapes.layout_builder import LayoutBuilder


def permute(layout: LayoutBuilder, operand: str, argument: str) -> Dims:
    dims = layout.dims(operand)
    return tuple(dims[d] for d in layout.dimensions(argument, len(dims)))


def transpose(layout: LayoutBuilder, operand: str, dim0: str, dim1: str) -> Dims:
    dims = list(layout.dims(operand))
    if dims:
        a, b = layout.dimension(dim0, len(dims)), layout.dimension(dim1, len(dims))
        dims[a], dims[b] = dims[b], dims[a]
    return tuple(dims)


def reverse(layout: LayoutBuilder, operand: str) -> Dims:
    return layout.dims(operand)[::-1]


def move(layout: LayoutBuilder, operand: str, source: str, destination: str) -> Dims:
    dims = layout.dims(operand)
    rank = len(dims)
    if not rank:
        return ()
    source_of = dict(zip(layout.dimensions(destination, rank), layout.dimensions(source, rank), strict=True))
    other_dims = iter(p for p in range(rank) if p not in source_of.values())
    return tuple(dims[source_of[p] if p in source_of else next(other_dims)] for p in range(rank))


def unsqueeze(layout: LayoutBuilder, operand: str, argument: str) -> Dims:
    dims = list(layout.dims(operand))
    dims.insert(layout.dimension(argument, len(dims) + 1), ())
    return tuple(dims)


def squeeze(layout: LayoutBuilder, operand: str, *argument: str) -> Dims:
    """Return the dimensions without those of size 1; with `argument`, only those that it lists are removed."""
    dims, shape = layout.dims(operand), layout.shape(operand)
    listed_dims = layout.dimensions(argument[0], len(dims)) if argument and dims else range(len(dims))
    return tuple(d for p, d in enumerate(dims) if not (p in listed_dims and shape[p] == 1))


def expand(layout: LayoutBuilder, operand: str, argument: str) -> Dims:
    dims, shape = layout.dims(operand), layout.shape(operand)
    requested_shape = layout.integers(argument)
    new_dim_count = len(requested_shape) - len(shape)
    result_dims = []
    for position, size in enumerate(requested_shape):
        operand_dim = position - new_dim_count
        if (
            new_dim_count < 0
            or size < -1
            or (size == -1 if operand_dim < 0 else size not in (-1, shape[operand_dim]) and shape[operand_dim] != 1)
        ):
            layout.fail(f"the shape {list(shape)} cannot be expanded to {list(requested_shape)}")
        if operand_dim >= 0 and (size in (-1, shape[operand_dim])):
            result_dims.append(dims[operand_dim])
        else:
            result_dims.append((layout.factor(f"n{position}", size),))
    return tuple(result_dims)


def rotated(layout: LayoutBuilder, operand: str, times: str, argument: str) -> Dims:
    """Return the dimensions after `times` quarter turns in the plane of two dimensions, as `torch.rot90` does.

    A turn may reverse a dimension, which is then unsharded. An odd number of turns swaps the two.
    """
    dims = list(layout.dims(operand))
    turned_dims = (0, 1) if layout.argument(argument) is None else layout.dimensions(argument, len(dims))
    if len(turned_dims) != 2:
        layout.fail(f"argument '{argument}' is {list(turned_dims)}; expected two dimensions")
    a, b = turned_dims
    quarters = layout.integers(times)[0] % 4
    reversed_dims = {0: (), 1: (b,), 2: (a, b), 3: (a,)}[quarters]
    layout.keep_unsharded(f for dim in reversed_dims for f in dims[dim])
    if quarters % 2:
        dims[a], dims[b] = dims[b], dims[a]
    return tuple(dims)
