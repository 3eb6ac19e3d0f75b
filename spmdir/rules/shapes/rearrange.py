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
    chosen = layout.dimensions(argument[0], len(dims)) if argument and dims else range(len(dims))
    return tuple(d for p, d in enumerate(dims) if not (p in chosen and shape[p] == 1))


def expand(layout: LayoutBuilder, operand: str, argument: str) -> Dims:
    dims, shape = layout.dims(operand), layout.shape(operand)
    wanted = layout.integers(argument)
    lead = len(wanted) - len(shape)
    out = []
    for position, size in enumerate(wanted):
        old = position - lead
        if lead < 0 or size < -1 or (size == -1 if old < 0 else size not in (-1, shape[old]) and shape[old] != 1):
            layout.fail(f"the shape {list(shape)} cannot be expanded to {list(wanted)}")
        if old >= 0 and (size in (-1, shape[old])):
            out.append(dims[old])
        else:
            out.append((layout.factor(f"n{position}", size),))
    return tuple(out)


def rotated(layout: LayoutBuilder, operand: str, times: str, argument: str) -> Dims:
    """Return the dimensions after quarter turns: reversed dimensions are unsharded; an odd number swaps both."""
    dims = list(layout.dims(operand))
    turned = (0, 1) if layout.argument(argument) is None else layout.dimensions(argument, len(dims))
    if len(turned) != 2:
        layout.fail(f"argument '{argument}' is {list(turned)}; expected two dimensions")
    a, b = turned
    quarters = layout.integers(times)[0] % 4
    layout.keep_unsharded(f for p in ((), (b,), (a, b), (a,))[quarters] for f in dims[p])
    if quarters % 2:
        dims[a], dims[b] = dims[b], dims[a]
    return tuple(dims)
