"""Dimension maps that concatenate, stack and repeat tensors.

See `dimension_maps.py`. `operand`, `argument` and the like are names of parameters in the rule.
"""

from __future__ import annotations

import math

from spmdir.rules.shapes.factor import Dims
from spmdir.rules.shapes.layout_builder import LayoutBuilder


def concatenated(layout: LayoutBuilder, operands: str, argument: str) -> Dims:
    """Return the dimensions of a concatenation of the list `operands`, or of operand `layout.operand` in the list.

    All have the same dimensions except the joined one. In the result, that one is unsharded; in an operand, it is
    separate: `~argument` refers to it. For example, tensors of shapes [4, 2] and [4, 3], joined along 1, have the
    dimensions [d0, ~dim], and their concatenation [d0, w1], where w1 has 5 elements. As in torch, a vector of shape [0]
    can be joined to tensors of any shape.
    """
    operand_indices = layout.binding.operands(operands)
    empty_operands = [operand for operand in operand_indices if layout.operands[operand].shape == (0,)]
    # The first operand that is no such vector determines the other dimensions.
    reference = next((operand for operand in operand_indices if operand not in empty_operands), operand_indices[0])
    shape = layout.operands[reference].shape
    joined_dim = layout.dimension(argument, len(shape))
    if not shape:
        layout.fail("cannot concatenate tensors without dimensions; expected at least one dimension: stack them")
    other_dims = [
        layout.refer(f"d{dim}") or (layout.letter(f"d{dim}", size, None),)
        for dim, size in enumerate(shape)
        if dim != joined_dim
    ]
    if layout.operand is None:
        # If all operands are empty vectors, none is left out.
        joined_operands = [
            operand for operand in operand_indices if operand not in empty_operands or reference in empty_operands
        ]
        joined_size = sum(layout.operands[operand].shape[joined_dim] for operand in joined_operands)
        joined_factor = layout.factor(f"w{joined_dim}", joined_size, unsharded=True)
    else:
        operand_shape = layout.operands[layout.operand].shape
        if layout.operand in empty_operands and reference not in empty_operands:
            return ((layout.factor("none", 0, unsharded=True),),)
        other_sizes = (*shape[:joined_dim], *shape[joined_dim + 1 :])
        if (
            len(operand_shape) != len(shape)
            or (*operand_shape[:joined_dim], *operand_shape[joined_dim + 1 :]) != other_sizes
        ):
            layout.fail(
                f"tensors of shapes {list(shape)} and {list(operand_shape)} cannot be joined along dimension "
                f"{joined_dim}; expected equal sizes of all other dimensions"
            )
        joined_factor = layout.factor(f"~{argument}", operand_shape[joined_dim])
        # Each operand has its own factor, so the index of the operand is the key, in place of a position.
        layout.separate(argument, layout.operand, (joined_factor,))
    return (*other_dims[:joined_dim], (joined_factor,), *other_dims[joined_dim:])


def join(layout: LayoutBuilder, operands: str, argument: str) -> Dims:
    """Return the dimensions of tensors stacked along a new one."""
    dims = list(layout.operand_dims[layout.binding.operands(operands)[0]])
    count = len(layout.binding.operands(operands))
    dims.insert(layout.dimension(argument, len(dims) + 1), (layout.factor("w", count, unsharded=True),))
    return tuple(dims)


def grid(layout: LayoutBuilder, operands: str, *indexing: str) -> Dims:
    """Return the dimensions of `torch.meshgrid`: one for each operand, the first two swapped for the indexing "xy".

    For an operand, return the dimension of this vector; () for a scalar.
    """
    operand_indices = layout.binding.operands(operands)
    sizes = [math.prod(layout.operands[operand].shape) for operand in operand_indices]
    dims = [(layout.letter(f"g{position}", size, None),) for position, size in enumerate(sizes)]
    if layout.operand is not None:
        return (dims[operand_indices.index(layout.operand)],) if layout.operands[layout.operand].shape else ()
    if indexing and layout.argument(indexing[0]) == "xy":
        dims[:2] = dims[1::-1]
    return tuple(dims)


def repeat(layout: LayoutBuilder, operand: str, argument: str) -> Dims:
    """Return the dimensions of `operand` repeated as often as `argument` lists, with new dimensions in front."""
    return _repeated(layout, operand, argument, layout.integers(argument))


def tiled(layout: LayoutBuilder, operand: str, argument: str) -> Dims:
    """Return the dimensions as `repeat` does; leading dimensions for which `argument` lists no count are kept."""
    repeats = layout.integers(argument)
    return _repeated(layout, operand, argument, (1,) * (len(layout.shape(operand)) - len(repeats)) + repeats)


def _repeated(layout: LayoutBuilder, operand: str, argument: str, repeats: tuple[int, ...]) -> Dims:
    """Return the dimensions after `repeats` of each. Repeated and new dimensions are unsharded.

    Args:
        argument: the name of the argument, for errors.
    """
    dims, shape = layout.dims(operand), layout.shape(operand)
    if len(repeats) < len(shape) or any(count < 0 for count in repeats):
        layout.fail(f"argument '{argument}' is {list(repeats)}; expected a count for each dimension of {list(shape)}")
    new_dim_count = len(repeats) - len(shape)
    result_dims = []
    for position, count in enumerate(repeats):
        operand_dim = position - new_dim_count
        if operand_dim < 0:
            result_dims.append((layout.factor(f"w{position}", count, unsharded=True),))
        elif count == 1:
            result_dims.append(dims[operand_dim])
        else:
            layout.keep_unsharded(dims[operand_dim])
            result_dims.append((layout.factor(f"w{position}", count * shape[operand_dim], unsharded=True),))
    return tuple(result_dims)


def interleave(layout: LayoutBuilder, operand: str, repeats: str, argument: str) -> Dims:
    """Return the dimensions after each element of the dimension `argument` was repeated in place.

    For example, [a, b] with 3 repeats of the dimension 1 becomes [a, (b w)], where w has 3 elements and is unsharded.
    Without `argument`, all dimensions are flattened first: [(a b w)].
    """
    dims = layout.dims(operand)
    count = layout.integer(repeats)
    if count < 0:
        layout.fail(f"argument '{repeats}' is {count}; expected a non-negative number of repeats")
    repeat_factor = layout.factor("w", count, unsharded=True)
    if layout.argument(argument) is None:
        flattened_factors = [factor for factors in dims for factor in factors]
        return ((*flattened_factors, repeat_factor),)
    repeated_dim = layout.dimension(argument, len(dims))
    if not dims:
        return ((repeat_factor,),)
    return tuple((*factors, repeat_factor) if dim == repeated_dim else factors for dim, factors in enumerate(dims))
