"""Dimension maps of indexing, in which dimensions of the index replace those of the operand.

See `dimension_maps.py`. `operand`, `argument` and the like are names of parameters in the rule.
"""

from __future__ import annotations

from spmdir.rules.shapes.factor import Dims
from spmdir.rules.shapes.layout_builder import LayoutBuilder


def index(layout: LayoutBuilder, operand: str, indices: str) -> Dims:
    """Return the dimensions of `operand[indices]`: those of the index tensors replace the indexed dimensions.

    As in torch, they come first if the indexed dimensions are not adjacent. For example, x with dimensions [a, b, c]
    and index tensors with the dimension [i] give [a, i] for `x[:, i, i]`, and [i, b] for `x[i, :, i]`.
    """
    # For each leading dimension of `operand`, the operand that indexes it, or None.
    index_operands = layout.binding.tensors[indices]
    assert isinstance(index_operands, tuple)
    if any(layout.operands[number].dtype.is_bool for number in index_operands if number is not None):
        layout.fail(
            "the result of a boolean index has a shape that depends on the data; expected a fixed shape: use "
            "where or masked_fill"
        )
    indexed_dims = [dim for dim, number in enumerate(index_operands) if number is not None]
    dims = layout.dims(operand)
    if len(index_operands) > len(dims):
        layout.fail(f"{len(index_operands)} indices for a tensor of rank {len(dims)}; expected at most {len(dims)}")
    for dim in indexed_dims:
        layout.separate(indices, dim, dims[dim])
    inserted = tuple((factor,) for factor in layout.refer("*i"))
    other_dims = [factors for dim, factors in enumerate(dims) if dim not in indexed_dims]
    are_adjacent = bool(indexed_dims) and indexed_dims[-1] - indexed_dims[0] == len(indexed_dims) - 1
    insertion_dim = indexed_dims[0] if are_adjacent else 0
    return (*other_dims[:insertion_dim], *inserted, *other_dims[insertion_dim:])


def take(layout: LayoutBuilder, operand: str, argument: str) -> Dims:
    """Return the dimensions of `operand`, where the dimension `argument` is replaced by those of the index, `*i`.

    For `index_select(x, dim=1, index)` with dimensions [a, b, c] of x and [i] of the index, they are [a, i, c].
    A scalar has no dimensions.
    """
    dims = list(layout.dims(operand))
    if not dims:
        return ()
    dims[layout.dimension(argument, len(dims))] = layout.refer("*i")
    return tuple(dims)
