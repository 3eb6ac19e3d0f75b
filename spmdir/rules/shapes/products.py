"""Dimension maps of matrix products, einsum equations and attention scores.

See `dimension_maps.py`. `operand`, `argument` and the like are names of parameters in the rule.
"""

from __future__ import annotations

from spmdir.rules.shapes.factor import Dims
from spmdir.rules.shapes.layout_builder import LayoutBuilder


def product(layout: LayoutBuilder, left: str, right: str) -> Dims:
    """Return the dimensions of the product of two matrices, or of a matrix and a vector."""
    return (*layout.dims(left)[:-1], *layout.dims(right)[1:][-1:])


def outer(layout: LayoutBuilder, left: str, right: str) -> Dims:
    """Return the dimensions of an outer product: those of `left`, then those of `right`."""
    return (*layout.dims(left), *layout.dims(right))


def scores(layout: LayoutBuilder, query: str, key: str) -> Dims:
    """Return the dimensions of attention scores: those of the query, with the positions of the key last."""
    return (*layout.dims(query)[:-1], layout.dims(key)[-2])


def subscripts(layout: LayoutBuilder, operands: str, argument: str) -> Dims:
    """Return the dimensions of operand `layout.operand` of an einsum, or of its result: one factor for each letter.

    Letters that the result lacks are separate: `~equation` refers to them. Only equations of the form `ab,bc->ac` are
    supported, without dots.

    Args:
        argument: the parameter with the equation.
    """
    equation = layout.argument(argument)
    joined_terms, _, result = equation.replace(" ", "").partition("->") if isinstance(equation, str) else ("", "", "")
    has_valid_letters = joined_terms.replace(",", "").isalpha() and (not result or result.isalpha())
    if not has_valid_letters or not set(result) <= set(joined_terms):
        layout.fail(f"unsupported equation '{equation}'; expected the form ab,bc->ac")
    operand_indices, terms = layout.binding.operands(operands), joined_terms.split(",")
    if len(terms) != len(operand_indices):
        layout.fail(
            f"equation '{equation}' has {len(terms)} terms for {len(operand_indices)} tensors; "
            "expected one term for each tensor"
        )
    if layout.operand is None:
        return tuple(layout.refer(letter) for letter in result)
    size_of_letter: dict[str, int] = {}
    for index, letters in zip(operand_indices, terms, strict=True):
        shape = layout.operands[index].shape
        if len(letters) != len(shape):
            layout.fail(
                f"'{letters}' in equation '{equation}' has {len(letters)} letters for a tensor of rank {len(shape)}; "
                "expected one letter for each dimension"
            )
        for letter, size in zip(letters, shape, strict=True):
            # Size 1 broadcasts against the other dimensions of its letter.
            if size_of_letter.get(letter, 1) == 1:
                size_of_letter[letter] = size
    dims = []
    for letter in terms[operand_indices.index(layout.operand)]:
        dims.append((layout.letter(letter, size_of_letter[letter], None if letter in result else argument),))
    return tuple(dims)
