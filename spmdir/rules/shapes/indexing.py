"""Dimensions that give way to those of an index."""

from __future__ import annotations

from spmdir.rules.shapes.factor import Dims
from spmdir.rules.shapes.layout_builder import LayoutBuilder


def index(layout: LayoutBuilder, operand: str, indices: str) -> Dims:
    """Return the dimensions of `operand[indices]`: those of the indices replace the indexed ones, or go first."""
    slot = layout.binding.tensors[indices]
    assert isinstance(slot, tuple)
    if any(layout.operands[i].dtype.is_bool for i in slot if i is not None):
        layout.fail("a boolean index gives a shape that depends on the data; use where or masked_fill")
    at = [p for p, index in enumerate(slot) if index is not None]
    dims = layout.dims(operand)
    if len(slot) > len(dims):
        layout.fail(f"{len(slot)} indices given for a tensor of rank {len(dims)}")
    for position in at:
        layout.separate(indices, position, dims[position])
    inserted = tuple((f,) for f in layout.refer("*i"))
    rest = [d for p, d in enumerate(dims) if p not in at]
    adjacent = at and at[-1] - at[0] == len(at) - 1
    front = at[0] if adjacent else 0
    return (*rest[:front], *inserted, *rest[front:])


def take(layout: LayoutBuilder, operand: str, argument: str) -> Dims:
    """Return the dimensions of `operand` with the one in `argument` replaced by that of an index `*i`."""
    dims = list(layout.dims(operand))
    if not dims:
        return ()
    dims[layout.dimension(argument, len(dims))] = layout.refer("*i")
    return tuple(dims)
