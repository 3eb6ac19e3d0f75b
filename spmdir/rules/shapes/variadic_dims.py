"""Match variadic dimensions such as `*b`, `*-dim` and `*~dim`: find their number and sizes."""

from __future__ import annotations

import math

import attrs

from spmdir.rules.language.syntax_tree import Parameter, Pattern, Term
from spmdir.rules.shapes.layout_builder import LayoutBuilder


@attrs.frozen
class _Match:
    """The sizes that a variadic term matches in one operand or result."""

    term: Term
    sizes: tuple[int, ...]
    of_result: bool


def add_variadic(layout: LayoutBuilder, operands: list[tuple[int, Parameter]]) -> None:
    """Add the factors of variadic dimensions, with the sizes that operands and results have in common.

    The sizes come from terms without a modifier in operands, else from terms with a modifier, else from results.
    Tensors whose dimensions a map computes are left out.
    """
    tensors = [
        (parameter.pattern or (), layout.operands[index].shape, f"operand '{parameter.name}'", False)
        for index, parameter in operands
    ]
    for index in range(len(layout.results or ())):
        shape = layout.result_shape(index)
        if shape is not None:
            tensors.append((layout.result_pattern(index), shape, f"result {index}", True))
    matches = [
        _Match(term, sizes, of_result)
        for pattern, shape, description, of_result in tensors
        if not is_mapped(pattern)
        for term, sizes in split_shape(layout, pattern, shape, description)
        if term.kind == "variadic"
    ]
    matches.sort(key=lambda match: (match.of_result, match.term.modifier != ""))
    for name in dict.fromkeys(match.term.names[0] for match in matches):
        sizes = _common_sizes(layout, name, [match for match in matches if match.term.names[0] == name])
        layout.variadic[name] = [layout.factor(f"{name or 'd'}{position}", size) for position, size in enumerate(sizes)]


def _common_sizes(layout: LayoutBuilder, name: str, matches: list[_Match]) -> list[int | None]:
    """Return the sizes of `*name`; operands of size 1 broadcast. None for a dimension that is always separate.

    For example, operands `*b` of shapes (4, 1) and (3,) give [4, 3].

    Args:
        matches: the terms of `*name` in operands, then in results; in each, those without a modifier first.
    """
    sizes: list[int | None] = [None] * _rank(layout, matches)
    for match in matches:
        for position, size in _positioned_sizes(layout, match.term, match.sizes, len(sizes)):
            is_separate = match.term.modifier == "~" and position in layout.positions(match.term.argument, len(sizes))
            earlier_size = sizes[position]
            is_known = earlier_size is not None
            if is_separate or (match.term.modifier != "" and is_known):
                continue  # plain terms come first, and only these must agree
            if earlier_size is None or (earlier_size == 1 and not match.of_result):
                sizes[position] = size
            elif size not in (1, earlier_size) and not match.of_result:
                layout.fail(
                    f"operands disagree in dimension {position - len(sizes)} of *{name}: {earlier_size} and {size}; "
                    "expected equal sizes, or 1"
                )
    return sizes


def _rank(layout: LayoutBuilder, matches: list[_Match]) -> int:
    """Return the number of variadic dimensions.

    It is the largest number that a term without `-` matches in an operand, or else in a result. If all terms are
    reduced, it is the number of remaining dimensions plus the number of reduced ones.

    Args:
        matches: see `_common_sizes`.
    """
    unreduced_matches = [match for match in matches if match.term.modifier != "-"]
    if unreduced_matches:
        operands = [match for match in unreduced_matches if not match.of_result]
        return max(len(match.sizes) for match in operands or unreduced_matches)
    reduced_dims = layout.argument(matches[0].term.argument)
    return len(matches[0].sizes) + (len(reduced_dims) if isinstance(reduced_dims, tuple) else 1)


def _positioned_sizes(layout: LayoutBuilder, term: Term, shape: tuple[int, ...], rank: int) -> list[tuple[int, int]]:
    """Return (position, size) of each variadic dimension that `term` matches.

    As in broadcasting, the last dimensions correspond. For example, with `rank` 3, `*b` on the sizes (4, 5) gives
    [(1, 4), (2, 5)]. For `*b-dim` with dim = 1, the sizes (4, 5) are those of the positions 0 and 2. Reduced dimensions
    that `keepdim` keeps with size 1 are left out.

    Args:
        shape: the sizes that `term` matches.
        rank: the number of variadic dimensions.
    """
    if len(shape) > rank:
        layout.fail(f"found {len(shape)} dimensions for `{term}`; expected at most {rank}")
    if term.modifier != "-":
        return list(enumerate(shape, rank - len(shape)))
    reduced_positions = layout.positions(term.argument, rank)
    if len(shape) == rank and layout.argument("keepdim"):
        return [(position, size) for position, size in enumerate(shape) if position not in reduced_positions]
    kept_positions = [position for position in range(rank) if position not in reduced_positions]
    if len(kept_positions) != len(shape):
        layout.fail(f"found {len(shape)} dimensions for `{term}`; expected {len(kept_positions)}")
    return list(zip(kept_positions, shape, strict=True))


def match_variadic(
    layout: LayoutBuilder, term: Term, shape: tuple[int, ...], description: str, of_operand: bool
) -> list[tuple[int, ...]]:
    """Return the factors of each dimension that the variadic `term` matches.

    For example, `*b` has the factors b0 of 4 and b1 of 3. Then an operand of shape (3,) has the dimensions [b1], and
    one of shape (4, 1) has [b0, ()]. A result `*b-dim` of shape (3,), where dim = 0 is reduced, has [b1].

    Args:
        shape: the sizes that `term` matches.
        description: the name of the tensor, for errors.
        of_operand: whether the tensor is an operand, whose dimensions of size 1 broadcast.
    """
    variadic_factors = layout.variadic[term.names[0]]
    if term.modifier == "-":
        sizes = dict(_positioned_sizes(layout, term, shape, len(variadic_factors)))
        keeps_dims = len(shape) == len(variadic_factors) and bool(layout.argument("keepdim"))
        reduced_dims: list[tuple[int, ...]] = []
        for position, factor in enumerate(variadic_factors):
            if position in sizes:
                reduced_dims.append(check_dims(layout, (factor,), sizes[position], description))
            elif keeps_dims:
                reduced_dims.append(())  # a reduced dimension, of size 1
        return reduced_dims
    if not of_operand and len(shape) != len(variadic_factors):
        layout.fail(f"{description} has {len(shape)} dimensions for `{term}`; expected {len(variadic_factors)}")
    dims: list[tuple[int, ...]] = []
    separate_positions = layout.positions(term.argument, len(variadic_factors)) if term.modifier == "~" else ()
    for position, size in _positioned_sizes(layout, term, shape, len(variadic_factors)):
        factor = variadic_factors[position]
        if position in separate_positions:
            dims.append((layout.separate_factor(term.argument, position, size),))
        elif size == layout.sizes[factor]:
            dims.append((factor,))
        elif size == 1 and of_operand and term.modifier == "":
            dims.append(())
        elif term.modifier == "~":
            layout.keep_unsharded([factor])
            dims.append((layout.factor(f"~{layout.names[factor]}", size, unsharded=True),))
        else:
            layout.fail(f"{description} has size {size} for {layout.names[factor]}; expected {layout.sizes[factor]}")
    return dims


def split_shape(
    layout: LayoutBuilder, pattern: Pattern, shape: tuple[int, ...], description: str
) -> list[tuple[Term, tuple[int, ...]]]:
    """Return each term of `pattern` with the sizes that it matches.

    For example, `*b m k` on the shape (2, 3, 4, 5) gives `*b` with (2, 3), `m` with (4,) and `k` with (5,).

    Args:
        description: the name of the tensor, for errors.
    """
    variadic_length = len(shape) - sum(term.kind != "variadic" for term in pattern)
    variadic_count = sum(term.kind == "variadic" for term in pattern)
    if variadic_length < 0 or (variadic_length and not variadic_count):
        layout.fail(
            f"{description} has rank {len(shape)}; expected the dimensions `{' '.join(map(str, pattern)) or 'scalar'}`"
        )
    terms, start = [], 0
    for term in pattern:
        length = variadic_length if term.kind == "variadic" else 1
        terms.append((term, shape[start : start + length]))
        start += length
    return terms


def check_dims(
    layout: LayoutBuilder, factors: tuple[int, ...], size: int, description: str, broadcast: bool = False
) -> tuple[int, ...]:
    """Return the factors of a dimension of `size`: `factors` if their product is `size`, else raise RuleError.

    Args:
        description: the name of the tensor, for errors.
        broadcast: whether a dimension of size 1 may broadcast; it has no factors.
    """
    product = math.prod(layout.sizes[factor] or 0 for factor in factors)
    if broadcast and size == 1 and product != 1:
        return ()
    if product != size:
        names = " ".join(layout.names[factor] for factor in factors) or "1"
        layout.fail(f"{description} has a dimension of size {size}; expected {names} = {product}")
    return factors


def is_mapped(pattern: Pattern | None) -> bool:
    """Return whether a dimension map computes the dimensions of `pattern`."""
    return any(term.kind == "map" for term in pattern or ())
