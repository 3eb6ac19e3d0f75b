"""Variadic dimensions such as `*b`, `*-dim` and `*~dim`: how many they are, and of what sizes."""

from __future__ import annotations

import math

import attrs

from spmdir.rules.language.syntax_tree import Parameter, Pattern, Term
from spmdir.rules.shapes.layout_builder import LayoutBuilder


@attrs.frozen
class _Seen:
    """The sizes that a variadic term matches in one operand or result."""

    term: Term
    sizes: tuple[int, ...]
    of_result: bool


def add_variadic(layout: LayoutBuilder, operands: list[tuple[int, Parameter]]) -> None:
    """Add the factors of variadic dimensions. Plain operands decide, then those with a modifier, then results."""
    tensors = [(p.pattern or (), layout.operands[i].shape, f"operand '{p.name}'", False) for i, p in operands]
    for index in range(len(layout.results or ())):
        shape = layout.result_shape(index)
        if shape is not None:
            tensors.append((layout.result_pattern(index), shape, f"result {index}", True))
    seen = [
        _Seen(term, sizes, of_result)
        for pattern, shape, what, of_result in tensors
        if not is_mapped(pattern)
        for term, sizes in split_shape(layout, pattern, shape, what)
        if term.kind == "variadic"
    ]
    seen.sort(key=lambda one: (one.of_result, one.term.modifier != ""))
    for name in dict.fromkeys(one.term.names[0] for one in seen):
        sizes = _common_sizes(layout, name, [one for one in seen if one.term.names[0] == name])
        layout.variadic[name] = [layout.factor(f"{name or 'd'}{i}", size) for i, size in enumerate(sizes)]


def _common_sizes(layout: LayoutBuilder, name: str, seen: list[_Seen]) -> list[int | None]:
    """Return the sizes of `*name`, where an operand of size 1 broadcasts; None for one that is only separate."""
    sizes: list[int | None] = [None] * _rank(layout, seen)
    for one in seen:
        for position, size in _places(layout, one.term, one.sizes, len(sizes)):
            separate = one.term.modifier == "~" and position in layout.positions(one.term.argument, len(sizes))
            known = sizes[position]
            if separate or (one.term.modifier != "" and known is not None):
                continue
            if known is None or (known == 1 and not one.of_result):
                sizes[position] = size
            elif size not in (1, known) and not one.of_result:
                layout.fail(f"operands disagree in dimension {position - len(sizes)} of *{name}: {known} and {size}")
    return sizes


def _rank(layout: LayoutBuilder, seen: list[_Seen]) -> int:
    full = [one for one in seen if one.term.modifier != "-"]
    if full:
        operands = [one for one in full if not one.of_result]
        return max(len(one.sizes) for one in operands or full)
    value = layout.argument(seen[0].term.argument)
    return len(seen[0].sizes) + (len(value) if isinstance(value, tuple) else 1)


def _places(layout: LayoutBuilder, term: Term, shape: tuple[int, ...], rank: int) -> list[tuple[int, int]]:
    """Return (position among the variadic dimensions, size) of each that `term` matches, kept ones of size 1 left
    out."""
    if len(shape) > rank:
        layout.fail(f"{len(shape)} dimensions given where `{term}` has {rank}")
    if term.modifier != "-":
        return list(enumerate(shape, rank - len(shape)))
    dropped = layout.positions(term.argument, rank)
    if len(shape) == rank and layout.argument("keepdim"):
        return [(p, size) for p, size in enumerate(shape) if p not in dropped]
    kept = [p for p in range(rank) if p not in dropped]
    if len(kept) != len(shape):
        layout.fail(f"{len(shape)} dimensions given where `{term}` leaves {len(kept)}")
    return list(zip(kept, shape, strict=True))


def match_variadic(
    layout: LayoutBuilder, term: Term, shape: tuple[int, ...], what: str, operand: bool
) -> list[tuple[int, ...]]:
    base = layout.variadic[term.names[0]]
    if term.modifier == "-":
        places = dict(_places(layout, term, shape, len(base)))
        kept = len(shape) == len(base) and bool(layout.argument("keepdim"))
        order = range(len(base)) if kept else places
        return [check_dims(layout, (base[p],), places[p], what) if p in places else () for p in order]
    if not operand and len(shape) != len(base):
        layout.fail(f"{what} has rank {len(shape)} where `{term}` has {len(base)}")
    dims: list[tuple[int, ...]] = []
    chosen = layout.positions(term.argument, len(base)) if term.modifier == "~" else ()
    for position, size in _places(layout, term, shape, len(base)):
        factor = base[position]
        if position in chosen:
            dims.append((layout.separate_factor(term.argument, position, size),))
        elif size == layout.sizes[factor]:
            dims.append((factor,))
        elif size == 1 and operand and term.modifier == "":
            dims.append(())
        elif term.modifier == "~":
            layout.keep_unsharded([factor])
            dims.append((layout.factor(f"~{layout.names[factor]}", size, unsharded=True),))
        else:
            layout.fail(f"{what} has size {size} where {layout.names[factor]} = {layout.sizes[factor]} is expected")
    return dims


def split_shape(
    layout: LayoutBuilder, pattern: Pattern, shape: tuple[int, ...], what: str
) -> list[tuple[Term, tuple[int, ...]]]:
    """Return each term of `pattern` with the sizes it matches."""
    free = len(shape) - sum(t.kind != "variadic" for t in pattern)
    variadic = sum(t.kind == "variadic" for t in pattern)
    if free < 0 or (free and not variadic):
        layout.fail(
            f"{what} has rank {len(shape)}; expected the dimensions `{' '.join(map(str, pattern)) or 'scalar'}`"
        )
    found, at = [], 0
    for term in pattern:
        length = free if term.kind == "variadic" else 1
        found.append((term, shape[at : at + length]))
        at += length
    return found


def check_dims(
    layout: LayoutBuilder, dims: tuple[int, ...], size: int, what: str, broadcast: bool = False
) -> tuple[int, ...]:
    """Return `dims` if they make up `size`; nothing if a dimension of size 1 broadcasts against them."""
    product = math.prod(layout.sizes[f] or 0 for f in dims)
    if broadcast and size == 1 and product != 1:
        return ()
    if product != size:
        names = " ".join(layout.names[f] for f in dims) or "1"
        layout.fail(f"{what} has a dimension of size {size} where {names} = {product} is expected")
    return dims


def is_mapped(pattern: Pattern | None) -> bool:
    return any(term.kind == "map" for term in pattern or ())
