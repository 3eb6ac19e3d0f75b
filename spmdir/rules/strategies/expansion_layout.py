"""Lays the ops of an expansion out on a mesh axis."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs

from spmdir.core.placement.base import ShardPlacement
from spmdir.core.placement.standard import Partial, Placement, R
from spmdir.rules.local.expansion import Expansion, Placed, Reduced, Value
from spmdir.rules.strategies.strategy import Strategy

if TYPE_CHECKING:
    from spmdir.rules.op_rule import OpRule
    from spmdir.rules.shapes.layout import Dims


def place(
    owner: OpRule, expansion: Expansion, operands: tuple[Placement, ...], count: int, divided: Mapping[int, int]
) -> Placed | None:
    """Lay the pieces out on an axis of `count` ranks for operands placed like `operands`.

    A pending value is reduced at the first piece that has no strategy for it, and a replicated one is cut into the
    pieces that its user takes, which costs nothing; what is returned stays as made. None if a piece has no strategy
    even so.
    """
    labels: dict[Value, Dims] = {Value("operand", i): dims for i, dims in enumerate(owner.operand_dims)}
    where: dict[Value, Placement] = {Value("operand", i): p for i, p in enumerate(operands)}
    made: dict[Value, Placement] = dict(where)
    rows: list[Strategy] = []
    reductions: list[Reduced] = []
    for number, piece in enumerate(expansion.pieces):
        inner = owner.rules.instantiate(piece.call)
        if inner is None:
            return None
        outer: dict[int, int] = {}
        for value, dims in zip(piece.operands, inner.operand_dims, strict=True):
            for mine, theirs in zip(dims, labels[value], strict=True):
                outer.update(zip(mine, theirs, strict=False))
        within = {f: divided[t] for f, t in outer.items() if t in divided}
        within.update({~f: divided[~t] for f, t in outer.items() if ~t in divided})
        occurring = (*operands, *(where[v] for v in piece.operands))
        row, reduced = _row(inner.strategies(count, within, occurring), piece.operands, where)
        if row is None:
            return None
        for value in reduced:
            meta = expansion.pieces[value.index].call.results[value.result]
            if meta is None or value.source != "piece":
                return None
            reductions.append(Reduced(value, meta, where[value].op or "", labels[value]))
            where[value] = R
        if row.rewrite == "expand" and row.factor is not None:
            nested = inner.placed(row.factor, count, within, row.operands)
            reductions += [attrs.evolve(r, dims=_named(r.dims, outer)) for r in nested.reductions] if nested else []
        rows.append(row)
        for result, placement in enumerate(row.results):
            value = Value("piece", number, result)
            labels[value] = _named(inner.result_dims[result] or (), outer)
            where[value] = made[value] = placement
    results = tuple(R if v is None else made[v] for v in expansion.results)
    return Placed(tuple(rows), results, tuple(reductions))


def _row(
    rows: tuple[Strategy, ...], operands: tuple[Value, ...], where: Mapping[Value, Placement]
) -> tuple[Strategy | None, tuple[Value, ...]]:
    """The strategy for operands placed as `where` says, and the fewest pending ones to reduce first, later rather.

    One that takes the operands as they lie comes before one that cuts replicated operands.
    """
    pending = [v for v in dict.fromkeys(reversed(operands)) if isinstance(where[v], Partial)]
    for size in range(len(pending) + 1):
        for reduced in itertools.combinations(pending, size):
            held = tuple(R if v in reduced else where[v] for v in operands)
            for takes in (operator.eq, _cuts):
                row = next((row for row in rows if all(map(takes, held, row.operands))), None)
                if row is not None:
                    return row, reduced
    return None, ()


def _cuts(held: Placement, wanted: Placement) -> bool:
    return held == wanted or (held == R and isinstance(wanted, ShardPlacement))


def _named(dims: Dims, outer: Mapping[int, int]) -> Dims:
    """`dims` of a piece in the factors of the expanded op, as far as it has them."""
    return tuple(tuple(outer[f] for f in d if f in outer) for d in dims)
