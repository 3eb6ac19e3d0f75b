"""Which factors of a call an axis can shard, where other axes shard some already."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable

from spmdir.core.placement.base import ShardPlacement, shard_lengths
from spmdir.core.placement.standard import Placement, Shard
from spmdir.rules.instance import RuleInstance
from spmdir.rules.language.syntax_tree import TextStrategy
from spmdir.rules.local.suitability import asks_for_range, serving
from spmdir.rules.strategies.plugin_placements import suits
from spmdir.rules.strategies.strategy import ShardCounts


def shardable(rule: RuleInstance, index: int, count: int, sharded: ShardCounts, least: int = 0) -> bool:
    """Return whether `count` ranks, and those of other axes, can shard the factor by S.

    Args:
        sharded: how other axes shard the factors.
        least: the elements that every rank must have, if the factor does not ask for more.
    """
    factor, total = rule.factors[index], count * sharded.of(index)
    if not compatible(rule, index, sharded) or not _compatible_with_plugins(rule, index, sharded):
        return False
    if any(sharded.of(f) != rule.factors[f].size for f in rule.majors.get(index, ())):
        return False
    if factor.size % total and rule.neighbours(index):
        return False
    if factor.aligned and factor.size * rule.call.operands[0].dtype.itemsize % (16 * total):
        return False
    least = max(least, factor.least_elements)
    if not least:
        return True
    if index in sharded.by_plugins:
        return leaves_enough(rule, index, Shard(0), count, sharded, least)
    shard = -(-factor.size // total)
    if index in sharded.all_axes:
        return factor.size % total == 0 and shard >= least
    return factor.size - (total - 1) * shard >= least


def compatible(rule: RuleInstance, index: int, sharded: ShardCounts) -> bool:
    """Return whether the factor can be sharded at all, by any placement, beside what other axes shard."""
    factor = rule.factors[index]
    if factor.size <= 1 or factor.kind == "unsharded":
        return False
    others = [rule.factors[f].clauses for f in sharded.all_axes if f != index and f not in sharded.by_texts]
    if factor.rewrite and any(clauses and set(clauses).isdisjoint(factor.clauses) for clauses in others):
        return False
    if factor.alone and any(set(factor.clauses) & set(clauses) for clauses in others):
        return False
    if sharded.by_texts and not _beside_texts(rule, index, sharded):
        return False
    return all(sum(index in factors for factors in dims) <= 1 for dims in rule.all_dims)


def _beside_texts(rule: RuleInstance, index: int, sharded: ShardCounts) -> bool:
    """Return whether the factor can be sharded as the rule says beside strategies that are written as text."""
    texts, factor = sharded.by_texts, rule.factors[index]
    if index in texts or not rule.neighbours(index).isdisjoint(texts) or factor.rewrite == "expand":
        return False
    return factor.rewrite is None or not any(text.body for text in texts.values())


def beside_others(
    rule: RuleInstance, factors: Collection[int], text: TextStrategy, sharded: ShardCounts, splits: bool
) -> bool:
    """Return whether `text`, which shards `factors`, is right beside what other axes shard.

    They must be other factors, of other dimensions. At most one axis replaces the op, by a form that does not ask for
    one range of what the others shard by plug-ins. Several axes may go by one strategy, as one axis.

    Args:
        splits: whether the states that `text` leaves are the same on an axis and on sub-axes of it.
    """
    for other in sharded.all_axes:
        if splits and other in factors and sharded.by_texts.get(other) == text and not rule.neighbours(other):
            continue
        if other in factors or not rule.neighbours(other).isdisjoint(factors):
            return False
        declared, rewrite = sharded.by_texts.get(other), rule.factors[other].rewrite
        if declared is not None:
            if text.body and declared.body:
                return False
            rewrite = "local" if declared.body else None
            reads = any(asks_for_range(rule, declared.body, factor) for factor in factors)
        else:
            reads = rewrite == "local" and not serving(rule, [other], factors)
        if rewrite == "expand" or (rewrite and text.body) or reads:
            return False
        if other in sharded.by_plugins and asks_for_range(rule, text.body, other):
            return False
    return True


def rewrite_beside(rule: RuleInstance, index: int, sharded: ShardCounts, scattered: bool) -> str | None:
    """Return "local" or "expand" if the factor is sharded so beside what other axes shard, "" if it needs no rewrite.

    None if no rewrite of the rule serves all of them. A dimension that an axis shards by a plug-in counts as scattered.

    Args:
        scattered: whether ranks may have several ranges of it.
    """
    others, rewritten = sharded.by_plugins, rule.factors[index].clauses
    if not rewritten and not scattered:
        return ""
    factors = {index, *(f for f in sharded.all_axes if f not in sharded.by_texts)}
    numbers = serving(rule, factors, {*others, *((index,) if scattered else ())})
    if numbers is None or (numbers and not rewritten):
        return ""
    kind = rule.rule.clauses[numbers[-1]].kind if numbers else None
    nested = scattered and index in sharded.all_axes
    return None if kind == "expand" and (nested or any(rule.factors[f].rewrite for f in others)) else kind


def leaves_enough(
    rule: RuleInstance, index: int, placement: Placement, count: int, sharded: ShardCounts, least: int
) -> bool:
    """Return whether every rank has `least` elements of the factor, which `placement` shards beside other axes.

    In which order axes nest is not known here; every one that fits the placements must do.
    """
    size, plain = rule.factors[index].size, sharded.by_s(index)
    if size % plain:
        return False
    shards = [(placement, count), *sharded.by_plugins.get(index, ()), *([(Shard(0), plain)] if plain > 1 else [])]
    lengths = [found for order in itertools.permutations(shards) if (found := _lengths(size, order))]
    return bool(lengths) and all(min(found) >= least for found in lengths)


def _lengths(size: int, nested: Iterable[tuple[Placement, int]]) -> frozenset[int] | None:
    """Return the lengths of shards by (placement, ranks), major first; None if a placement does not fit one."""
    extents = frozenset([size])
    for placement, count in nested:
        assert isinstance(placement, ShardPlacement)
        if not all(suits(placement, extent, count) for extent in extents):
            return None
        extents = frozenset(own for extent in extents for own in shard_lengths(((placement, count),), extent))
    return extents


def _compatible_with_plugins(rule: RuleInstance, index: int, sharded: ShardCounts) -> bool:
    """Return whether S of the factor is compatible with what other axes shard by plug-in placements."""
    others = sharded.by_plugins
    if not others:
        return True
    factor = rule.factors[index]
    if index in others and (factor.aligned or rule.neighbours(index)):
        return False
    if any(f in others for f in rule.majors.get(index, ())):
        return False
    return rewrite_beside(rule, index, sharded, scattered=False) is not None
