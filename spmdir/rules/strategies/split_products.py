"""Strategies that split a matrix product into the steps of a ring: each rank sends a block while it multiplies another.

`OpRule.strategies` does not list them. The pass `split-matmul` gives them to the ops that it marks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from spmdir.core.limits import RING
from spmdir.core.placement.standard import Partial, Placement, R, Shard
from spmdir.rules.shapes.instance import RuleInstance
from spmdir.rules.strategies.strategy import ShardCounts, Strategy

SPLIT = "split"
"""The rewrite of a strategy that splits a product."""

_SUM = Partial("sum")


def may_be_split(rule: RuleInstance) -> bool:
    """Return whether the op is a matrix product with one result."""
    return rule.contracts and len(rule.call.results) == 1


def split_strategies(
    rule: RuleInstance, count: int, sharded: ShardCounts, strategies: Iterable[Strategy]
) -> Iterator[Strategy]:
    """Yield the strategies that split a matrix product into blocks of one factor, one block for each of `count` ranks.

    Each combines two of `strategies` without a rewrite, for a factor of the product and a block factor. For
    `m k, k n -> m n` with block factor `m`:
    - factor `n`: `(S(m), S(n)) -> S(n)` gathers the first operand, whose blocks move round the ring.
    - factor `k`: `(S(k), S(k)) -> S(m)` scatters the result, whose partial sums move round the ring.

    The new strategy has both factors, the block factor last.

    Args:
        sharded: how other axes shard factors. An axis that also shards the block factor must be outside this axis.
    """
    if not may_be_split(rule) or not 1 < count <= RING.most:
        return
    plain_strategies = [strategy for strategy in strategies if _shards_one_factor_by_s(strategy)]
    for blocks in plain_strategies:
        if not _has_blocks(rule, blocks, count, sharded):
            continue
        for product in plain_strategies:
            if product is not blocks and (split := _split_strategy(product, blocks)) is not None:
                yield split


def _shards_one_factor_by_s(strategy: Strategy) -> bool:
    """Return whether a strategy only shards one factor by S: it rewrites nothing, and is not written as text."""
    is_changed = strategy.rewrite or strategy.text or strategy.factor_placements
    return len(strategy.factors) == 1 and not is_changed


def _has_blocks(rule: RuleInstance, strategy: Strategy, count: int, sharded: ShardCounts) -> bool:
    """Return whether the factor of `strategy` shares no dimension, has even shards, and shards the result."""
    (factor,) = strategy.factors
    is_separate = factor not in sharded.by_plugins and factor not in sharded.by_texts and not rule.neighbours(factor)
    is_even = rule.factors[factor].size % (count * sharded.of(factor)) == 0
    return is_separate and is_even and isinstance(strategy.results[0], Shard)


def _split_strategy(product: Strategy, blocks: Strategy) -> Strategy | None:
    """Return `product` with one operand gathered, or the result scattered, by `blocks`; None if neither is possible.

    For example, `(R, S(1)) -> (S(1))` for `n` and blocks `(S(0), R) -> (S(0))` for `m` give `(S(0), S(1)) -> (S(1))`.
    """
    factors = (*product.factors, *blocks.factors)
    if product.results == (_SUM,):
        return Strategy(product.operands, blocks.results, factors, SPLIT)
    operands: list[Placement] = []
    gathered_count = 0
    for placement, block_placement in zip(product.operands, blocks.operands, strict=True):
        operands.append(block_placement if placement == R else placement)
        gathered_count += placement == R and block_placement != R
    return Strategy(tuple(operands), product.results, factors, SPLIT) if gathered_count == 1 else None
