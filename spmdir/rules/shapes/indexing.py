"""Dimension maps of indexing, in which dimensions of the index replace those of the operand."""

from __future__ import annotations

from spmdir.rules.shapes.factor import Dims
from spmdir.rules.shapes.layout_builder import LayoutBuilder


def index(layout: LayoutBuilder, operand: str, indices: str) -> Dims:
    """Return the dimensions of `operand[indices]`: those of the index tensors replace the indexed dimensions.

    As in torch, they come first if the indexed dimensions are not adjacent.
    """
    slot = layout.binding.tensors[indices]
    assert isinstance(slot, tuple)
    if any(layout.operands[i].dtype.is_bool for i in slot if i is not None):
        layout.fail("the result of a boolean index has a shape that depends on the data; use where or masked_fill")
    indexed_positions = [p for p, index in enumerate(slot) if index is not None]
    dims = layout.dims(operand)
    if len(slot) > len(dims):
        layout.fail(f"{len(slot)} indices for a tensor of rank {len(dims)}; expected at most {len(dims)}")
    for position in indexed_positions:
        layout.separate(indices, position, dims[position])
    inserted = tuple((f,) for f in layout.refer("*i"))
    other_dims = [d for p, d in enumerate(dims) if p not in indexed_positions]
    are_adjacent = indexed_positions and indexed_positions[-1] - indexed_positions[0] == len(indexed_positions) - 1
    insertion_position = indexed_positions[0] if are_adjacent else 0
    return (*other_dims[:insertion_position], *inserted, *other_dims[insertion_position:])


def take(layout: LayoutBuilder, operand: str, argument: str) -> Dims:
    """Return the dimensions of `operand` with the one of `argument` replaced by those of an index, `*i`."""
    dims = list(layout.dims(operand))
    if not dims:
        return ()
    dims[layout.dimension(argument, len(dims))] = layout.refer("*i")
    return tuple(dims)
