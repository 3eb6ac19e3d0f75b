"""The placements of the ops of an expansion on one mesh axis, and where partial values are reduced between them."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Mapping
from typing import Protocol

import attrs

from spmdir.core.placement.base import ShardPlacement
from spmdir.core.placement.call import Call
from spmdir.core.placement.standard import Partial, Placement, R
from spmdir.core.placement.tensor import TensorMeta
from spmdir.rules.local.expansion import Expansion, Value
from spmdir.rules.shapes.factor import Dims
from spmdir.rules.strategies.strategy import ShardCounts, Strategy


@attrs.frozen
class Reduced:
    """A value inside an expansion that is reduced before use.

    Attributes:
        value, meta, op: which one, its type, and its partial reduction.
        dims: per dimension, the factors of the expanded op that make it up.
    """

    value: Value
    meta: TensorMeta
    op: str
    dims: Dims


@attrs.frozen
class ExpansionLayout:
    """The placements of an expansion on one mesh axis.

    Attributes:
        strategies: per op, the one it uses; its operands are as used, its results as made.
        results: of the expanded op.
        reductions: what is reduced between being made and being used.
    """

    strategies: tuple[Strategy, ...]
    results: tuple[Placement, ...]
    reductions: tuple[Reduced, ...]


LayOut = Callable[[int, int, ShardCounts, tuple[Placement, ...]], ExpansionLayout | None]
"""(factor, number of ranks, how other axes shard, placements of the operands) → the layout of the op's expansion."""


class InnerRule(Protocol):
    """The rule of an op inside an expansion."""

    @property
    def operand_dims(self) -> tuple[Dims, ...]: ...

    @property
    def result_dims(self) -> tuple[Dims | None, ...]: ...

    def strategies(
        self, count: int, sharded: ShardCounts = ..., placements: tuple[Placement, ...] = ()
    ) -> tuple[Strategy, ...]:
        """Return its strategies on an axis of `count` ranks."""
        ...

    def expansion_layout(
        self, factor: int, count: int, sharded: ShardCounts, operands: tuple[Placement, ...]
    ) -> ExpansionLayout | None:
        """Return the layout of its own expansion."""
        ...


def lay_out(
    dims: tuple[Dims, ...],
    expansion: Expansion,
    rule_of: Callable[[Call], InnerRule | None],
    operands: tuple[Placement, ...],
    count: int,
    sharded: ShardCounts,
) -> ExpansionLayout | None:
    """Return the layout of `expansion` on an axis of `count` ranks for `operands`.

    A partial value is reduced at the first op that has no strategy for it, and a replicated one is sliced where its
    user takes shards, which costs nothing; what is returned stays as made. None if an op has no strategy even so.

    Args:
        dims: per operand of the expanded op, the factors of its dimensions.
    """
    labels: dict[Value, Dims] = {Value("operand", i): one for i, one in enumerate(dims)}
    where: dict[Value, Placement] = {Value("operand", i): p for i, p in enumerate(operands)}
    made: dict[Value, Placement] = dict(where)
    strategies: list[Strategy] = []
    reductions: list[Reduced] = []
    for number, op in enumerate(expansion.ops):
        inner = rule_of(op.call)
        if inner is None:
            return None
        outer: dict[int, int] = {}
        for value, inner_dims in zip(op.operands, inner.operand_dims, strict=True):
            for mine, theirs in zip(inner_dims, labels[value], strict=True):
                outer.update(zip(mine, theirs, strict=False))
        within = sharded.seen_from(outer)
        occurring = (*operands, *(where[v] for v in op.operands))
        strategy, reduced = _choose(inner.strategies(count, within, occurring), op.operands, where)
        if strategy is None:
            return None
        for value in reduced:
            meta = expansion.ops[value.index].call.results[value.result]
            if meta is None or value.source != "op":
                return None
            reductions.append(Reduced(value, meta, where[value].op or "", labels[value]))
            where[value] = R
        if strategy.rewrite == "expand":
            nested = inner.expansion_layout(strategy.factors[0], count, within, strategy.operands)
            reductions += [attrs.evolve(r, dims=_named(r.dims, outer)) for r in nested.reductions] if nested else []
        strategies.append(strategy)
        for result, placement in enumerate(strategy.results):
            value = Value("op", number, result)
            labels[value] = _named(inner.result_dims[result] or (), outer)
            where[value] = made[value] = placement
    results = tuple(R if v is None else made[v] for v in expansion.results)
    return ExpansionLayout(tuple(strategies), results, tuple(reductions))


def _choose(
    strategies: tuple[Strategy, ...], operands: tuple[Value, ...], where: Mapping[Value, Placement]
) -> tuple[Strategy | None, tuple[Value, ...]]:
    """Return a strategy for operands placed as in `where`, and the fewest partial ones to reduce first.

    Of as many, late ones are reduced. A strategy that takes the operands as they are placed comes before one that
    slices replicated operands.
    """
    partial = [v for v in dict.fromkeys(reversed(operands)) if isinstance(where[v], Partial)]
    for size in range(len(partial) + 1):
        for reduced in itertools.combinations(partial, size):
            placed = tuple(R if v in reduced else where[v] for v in operands)
            for takes in (operator.eq, _slices):
                found = next((s for s in strategies if all(map(takes, placed, s.operands))), None)
                if found is not None:
                    return found, reduced
    return None, ()


def _slices(placed: Placement, wanted: Placement) -> bool:
    return placed == wanted or (placed == R and isinstance(wanted, ShardPlacement))


def _named(dims: Dims, outer: Mapping[int, int]) -> Dims:
    """Return `dims` of an inner op in the factors of the expanded op, as far as it has them."""
    return tuple(tuple(outer[f] for f in d if f in outer) for d in dims)
