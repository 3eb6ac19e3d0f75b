"""Which factors of a call an axis can shard, where other axes shard some already."""

from __future__ import annotations

from collections.abc import Collection

from spmdir.rules.instance import RuleInstance
from spmdir.rules.language.syntax_tree import TextStrategy
from spmdir.rules.local.suitability import asks_for_range, serving
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


def beside_others(rule: RuleInstance, factors: Collection[int], text: TextStrategy, sharded: ShardCounts) -> bool:
    """Return whether `text`, which shards `factors`, is right beside what other axes shard.

    They must be other factors, of other dimensions. At most one axis replaces the op, by a form that does not ask for
    one range of what the others shard by plug-ins.
    """
    for other in sharded.all_axes:
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
    return None if kind == "expand" and any(rule.factors[f].rewrite for f in others) else kind


def _compatible_with_plugins(rule: RuleInstance, index: int, sharded: ShardCounts) -> bool:
    """Return whether S of the factor is compatible with what other axes shard by plug-in placements."""
    others = sharded.by_plugins
    if not others:
        return True
    factor = rule.factors[index]
    if index in others and (factor.rewrite or factor.aligned or factor.least_elements or rule.neighbours(index)):
        return False
    if any(f in others for f in rule.majors.get(index, ())):
        return False
    return rewrite_beside(rule, index, sharded, scattered=False) is not None
