"""Strategies that split a matrix product into the steps of a ring, so that a block is sent while one is multiplied.

They are no part of what the search lists: an op has one only where it is marked, as `split-matmul` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from spmdir.core.limits import RING
from spmdir.core.placement.standard import Partial, R, Shard
from spmdir.rules.shapes.instance import RuleInstance
from spmdir.rules.strategies.strategy import ShardCounts, Strategy

SPLIT = "split"
"""The rewrite of a strategy that splits a product."""

_SUM = Partial("sum")


def may_be_split(rule: RuleInstance) -> bool:
    """Return whether the op is one matrix product, its only result, rather than an op that also computes others."""
    return rule.contracts and len(rule.call.results) == 1


def split_strategies(
    rule: RuleInstance, count: int, sharded: ShardCounts, listed: Iterable[Strategy]
) -> Iterator[Strategy]:
    """Yield the strategies by which `count` ranks take a matrix product in steps, block by block of one factor.

    Each joins two of the `listed` ones, of factors that the op needs no rewrite for. With `n` and the block factor `m`
    of `m k, k n -> m n`, `(S(m), S(n)) -> S(n)` gathers the operand, whose blocks go round; with `k` and `m`,
    `(S(k), S(k)) -> S(m)` scatters the sums of the result, which go round. The factors are these two, `m` last.

    Args:
        sharded: how other axes shard factors; those that shard `m` too must be outside the one that gathers it.
    """
    if not may_be_split(rule) or not 1 < count <= RING.most:
        return
    plain = [one for one in listed if len(one.factors) == 1 and not one.rewrite and not one.text]
    plain = [one for one in plain if not one.factor_placements]
    for blocks in plain:
        if not _has_blocks(rule, blocks, count, sharded):
            continue
        for other in plain:
            if other is not blocks and (found := _joined(other, blocks)) is not None:
                yield found


def _has_blocks(rule: RuleInstance, strategy: Strategy, count: int, sharded: ShardCounts) -> bool:
    """Return whether the factor of `strategy` makes up dimensions alone, of which each rank has as much."""
    (factor,) = strategy.factors
    alone = factor not in sharded.by_plugins and factor not in sharded.by_texts and not rule.neighbours(factor)
    even = rule.factors[factor].size % (count * sharded.of(factor)) == 0
    return alone and even and isinstance(strategy.results[0], Shard)


def _joined(other: Strategy, blocks: Strategy) -> Strategy | None:
    """Return `other`, which gathers an operand, or scatters the result, by `blocks`; None if there is nothing to."""
    factors = (*other.factors, *blocks.factors)
    if other.results == (_SUM,):
        return Strategy(other.operands, blocks.results, factors, SPLIT)
    pairs = list(zip(other.operands, blocks.operands, strict=True))
    if sum(own == R != block for own, block in pairs) != 1:
        return None
    return Strategy(tuple(block if own == R else own for own, block in pairs), other.results, factors, SPLIT)
