"""Choose placements for the ops of an expansion on one mesh axis, and the partial values to reduce between them."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Mapping
from typing import Protocol

import attrs

from spmdir.core.placement.call import Call
from spmdir.core.placement.shards import ShardPlacement
from spmdir.core.placement.standard import Partial, Placement, R
from spmdir.core.placement.tensor import TensorMeta
from spmdir.rules.local.expansion import Expansion, Value
from spmdir.rules.shapes.factor import Dims
from spmdir.rules.strategies.strategy import ShardCounts, Strategy


@attrs.frozen
class InternalReduction:
    """A partial value inside an expansion that is reduced before its first use.

    Attributes:
        value: the value.
        meta: its type.
        op: its reduction.
        dims: the factors of the expanded op in each dimension.
    """

    value: Value
    meta: TensorMeta
    op: str
    dims: Dims


@attrs.frozen
class ExpansionLayout:
    """The placements of an expansion on one mesh axis.

    Attributes:
        strategies: the strategy of each op. Its operands have the placements after reductions and slices.
        results: the placements of the results of the expanded op.
        reductions: the partial values that are reduced before their first use.
    """

    strategies: tuple[Strategy, ...]
    results: tuple[Placement, ...]
    reductions: tuple[InternalReduction, ...]


LayOutExpansion = Callable[[int, int, ShardCounts, tuple[Placement, ...]], ExpansionLayout | None]
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
        """Return the strategies of the op on an axis of `count` ranks."""
        ...

    def expansion_layout(
        self, factor: int, count: int, sharded: ShardCounts, operands: tuple[Placement, ...]
    ) -> ExpansionLayout | None:
        """Return the layout of the expansion of this op."""
        ...


def lay_out(
    dims: tuple[Dims, ...],
    expansion: Expansion,
    rule_of: Callable[[Call], InnerRule | None],
    operands: tuple[Placement, ...],
    count: int,
    sharded: ShardCounts,
) -> ExpansionLayout | None:
    """Return the layout of `expansion` on an axis of `count` ranks; None if an op has no strategy.

    The ops are visited in order, and each gets a strategy for the placements of its operands. A partial value is
    reduced before the first op that has no strategy for it. A replicated value is sliced where its user requires
    shards, which costs nothing. Returned values keep the placement in which they were produced.

    For example, the expansion `s = sum(x, 0); y = exp(s)` with x in S(0) has the strategies `(S(0)) -> (P(sum))` and
    `(R) -> (R)`. exp has no strategy for P(sum), so s is an internal reduction.

    Args:
        dims: for each operand of the expanded op, the factors of its dimensions.
        rule_of: returns the rule of a call; None if the op has no rule.
        operands: the placements of the operands of the expanded op.
        sharded: how other axes shard the factors of the expanded op.
    """
    # The dimensions of a value consist of factors of the expanded op. Its placement changes when it is reduced.
    dims_of_value: dict[Value, Dims] = {
        Value("operand", index): operand_dims for index, operand_dims in enumerate(dims)
    }
    placements: dict[Value, Placement] = {
        Value("operand", index): placement for index, placement in enumerate(operands)
    }
    produced_placements: dict[Value, Placement] = dict(placements)
    strategies: list[Strategy] = []
    reductions: list[InternalReduction] = []
    for op_index, op in enumerate(expansion.ops):
        inner_rule = rule_of(op.call)
        if inner_rule is None:
            return None
        outer_factors: dict[int, int] = {}  # factor of the inner op → factor of the expanded op
        for value, inner_dims in zip(op.operands, inner_rule.operand_dims, strict=True):
            for inner_factors, factors in zip(inner_dims, dims_of_value[value], strict=True):
                # The lengths differ if only one rule gives a factor to a dimension of size 1.
                outer_factors.update(zip(inner_factors, factors, strict=False))
        inner_sharded = sharded.for_inner_op(outer_factors)
        occurring_placements = (*operands, *(placements[value] for value in op.operands))
        strategy, reduced = _choose_strategy(
            inner_rule.strategies(count, inner_sharded, occurring_placements), op.operands, placements
        )
        if strategy is None:
            return None
        for value in reduced:
            if value.source != "op":  # an operand of the expanded op cannot be reduced inside the expansion
                return None
            meta = expansion.ops[value.index].call.results[value.result]
            if meta is None:
                return None
            reductions.append(InternalReduction(value, meta, placements[value].op or "", dims_of_value[value]))
            placements[value] = R
        if strategy.rewrite == "expand":
            nested = inner_rule.expansion_layout(strategy.factors[0], count, inner_sharded, strategy.operands)
            for reduction in nested.reductions if nested else ():
                reductions.append(attrs.evolve(reduction, dims=_outer_dims(reduction.dims, outer_factors)))
        strategies.append(strategy)
        for result, placement in enumerate(strategy.results):
            value = Value("op", op_index, result)
            dims_of_value[value] = _outer_dims(inner_rule.result_dims[result] or (), outer_factors)
            placements[value] = produced_placements[value] = placement
    results = tuple(R if value is None else produced_placements[value] for value in expansion.results)
    return ExpansionLayout(tuple(strategies), results, tuple(reductions))


def _choose_strategy(
    strategies: tuple[Strategy, ...], operands: tuple[Value, ...], placements: Mapping[Value, Placement]
) -> tuple[Strategy | None, tuple[Value, ...]]:
    """Return a strategy, and the fewest partial operands to reduce before it; (None, ()) if there is no strategy.

    Among sets of equal size, the set with later operands is chosen. Strategies that slice no operand go first. For
    example, for `mul` of two partial operands, the second is reduced, and the strategy is `(P(sum), R) -> (P(sum))`.

    Args:
        placements: the placement of each value so far.
    """
    partial_operands = [value for value in dict.fromkeys(reversed(operands)) if isinstance(placements[value], Partial)]
    for size in range(len(partial_operands) + 1):
        for reduced in itertools.combinations(partial_operands, size):
            operand_placements = tuple(R if value in reduced else placements[value] for value in operands)
            for matches in (operator.eq, _slices):
                for strategy in strategies:
                    if all(map(matches, operand_placements, strategy.operands)):
                        return strategy, reduced
    return None, ()


def _slices(placement: Placement, required_placement: Placement) -> bool:
    """Return whether a value with `placement` has the required one, or gets it by slicing the replicated value."""
    return placement == required_placement or (placement == R and isinstance(required_placement, ShardPlacement))


def _outer_dims(dims: Dims, outer_factors: Mapping[int, int]) -> Dims:
    """Return the dimensions of an inner op as factors of the expanded op; factors that it lacks are dropped."""
    return tuple(tuple(outer_factors[factor] for factor in factors if factor in outer_factors) for factors in dims)
