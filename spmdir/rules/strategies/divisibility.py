"""Which factors of a call an axis can shard, where other axes shard some already."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable

from spmdir.core.limits import RING
from spmdir.core.placement.base import ShardPlacement, shard_lengths
from spmdir.core.placement.standard import Placement, Shard
from spmdir.rules.language.syntax_tree import TextStrategy
from spmdir.rules.local.suitability import asks_for_range, serving
from spmdir.rules.shapes.instance import RuleInstance
from spmdir.rules.strategies.obstacle import Obstacle, Place
from spmdir.rules.strategies.plugin_placements import suits
from spmdir.rules.strategies.strategy import ShardCounts


def unshardable(rule: RuleInstance, index: int, count: int, sharded: ShardCounts, least: int = 0) -> Obstacle | None:
    """Return why `count` ranks, and those of other axes, cannot shard the factor by S; None if they can.

    Args:
        sharded: how other axes shard the factors.
        least: the elements that every rank must have, if the factor does not ask for more.
    """
    factor, total = rule.factors[index], count * sharded.of(index)
    reason = incompatible(rule, index, sharded) or _incompatible_with_plugins(rule, index, sharded)
    if reason:
        return reason
    majors = rule.majors.get(index)
    if majors and any(sharded.of(f) != rule.factors[f].size for f in majors):
        return Obstacle("a factor before it in the same dimension is not sharded to single elements")
    if factor.size % total and rule.neighbours(index):
        return Obstacle("{} elements in {} shards are uneven, and it shares a dimension", (factor.size, total))
    if factor.aligned and factor.size * rule.call.operands[0].dtype.itemsize % (16 * total):
        return _said(rule, index, "aligned", "shards would not be multiples of 16 bytes")
    if total > RING.most and any(s.ring for n in factor.clauses for s in rule.rule.clauses[n].body):
        return _said(rule, index, "local", "its ring would have more ranks than it may")
    least = max(least, factor.least_elements)
    if not least:
        return None
    if index in sharded.by_plugins:
        return lacking(rule, index, Shard(0), count, sharded, least)
    shard = -(-factor.size // total)
    if index in sharded.all_axes:
        has_enough = factor.size % total == 0 and shard >= least
    else:
        has_enough = factor.size - (total - 1) * shard >= least
    return None if has_enough else too_small(factor.size, total, least)


_FEWER_THAN_2 = Obstacle("it has fewer than 2 elements")


def too_small(size: int, count: int, least: int) -> Obstacle:
    """Return the reason that not each of `count` ranks has `least` of `size` elements."""
    return Obstacle("of {} elements not each of {} ranks has at least {}", (size, count, int(least)))


def _said(rule: RuleInstance, index: int, kind: str, message: str) -> Obstacle:
    """Return the reason `message`, which the clause of that kind about the factor gives."""
    return Obstacle(message, (), Place(rule, (kind,), index))


def incompatible(rule: RuleInstance, index: int, sharded: ShardCounts) -> Obstacle | None:
    """Return why the factor cannot be sharded at all, by any placement, beside what other axes shard."""
    factor = rule.factors[index]
    if factor.size <= 1:
        return _FEWER_THAN_2
    if factor.kind == "unsharded":
        return _said(rule, index, "unsharded", "it is unsharded")
    if factor.clauses and sharded.all_axes:
        others = [rule.factors[f].clauses for f in sharded.all_axes if f != index and f not in sharded.by_texts]
        if factor.rewrite and any(clauses and set(clauses).isdisjoint(factor.clauses) for clauses in others):
            return Obstacle("another axis shards a factor by another rewrite of the op")
        alone = set(factor.alone)
        if alone and any(clauses and set(factor.clauses) & set(clauses) <= alone for clauses in others):
            return _said(rule, index, factor.rewrite or "", "its rewrite is for one factor at a time")
    if sharded.by_texts and not _beside_texts(rule, index, sharded):
        return Obstacle("another axis has a strategy that it does not go beside")
    if index in rule.repeated:
        return Obstacle("it makes up two dimensions of a tensor")
    return None


def _beside_texts(rule: RuleInstance, index: int, sharded: ShardCounts) -> bool:
    """Return whether the factor can be sharded as the rule says beside strategies that are written as text."""
    texts, factor = sharded.by_texts, rule.factors[index]
    if any(factor.name in text.whole for text in texts.values()):
        return False
    if index in texts or not rule.neighbours(index).isdisjoint(texts) or factor.rewrite == "expand":
        return False
    return factor.rewrite is None or not any(text.body for text in texts.values())


def amiss_beside(
    rule: RuleInstance, factors: Collection[int], text: TextStrategy, sharded: ShardCounts, splits: bool
) -> Obstacle | None:
    """Return why `text`, which shards `factors`, is not right beside what other axes shard; None if it is.

    They must be other factors, of other dimensions. At most one axis replaces the op, by a form that does not ask for
    one range of what the others shard by plug-ins. Several axes may go by one strategy, as one axis.

    Args:
        splits: whether the states that `text` leaves are the same on an axis and on sub-axes of it.
    """
    for other in sharded.all_axes:
        if splits and other in factors and sharded.by_texts.get(other) == text and not rule.neighbours(other):
            continue
        name = rule.factors[other].name
        if name in text.whole:
            return Obstacle("another axis shards '{}', which it needs whole", (name,))
        if other in factors or not rule.neighbours(other).isdisjoint(factors):
            return Obstacle("another axis shards '{}', of the same dimension", (name,))
        declared, rewrite = sharded.by_texts.get(other), rule.factors[other].rewrite
        if declared is not None:
            rewrite = "local" if declared.body else None
            reads = any(asks_for_range(rule, declared.body, factor) for factor in factors)
        else:
            reads = rewrite == "local" and not serving(rule, [other], factors)
        if rewrite == "expand" or (rewrite and text.body):
            return Obstacle("another axis, which shards '{}', rewrites the op", (name,))
        if reads or (other in sharded.by_plugins and asks_for_range(rule, text.body, other)):
            return Obstacle("a local form asks for one range, and a plug-in placement shards the factor")
    return None


def rewrite_beside(rule: RuleInstance, index: int, sharded: ShardCounts, scattered: bool) -> str | Obstacle:
    """Return "local" or "expand" if the factor is sharded so beside what other axes shard, "" if it needs no rewrite.

    The reason if no rewrite of the rule serves all of them. A dimension that an axis shards by a plug-in counts as
    scattered.

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
    if not numbers:
        return _said(rule, index, "local", "its local form is for shards that are one range each")
    kind = rule.rule.clauses[numbers[-1]].kind
    if kind == "expand" and scattered and index in sharded.all_axes:
        return Obstacle("the op would expand, and another axis shards the factor too")
    if kind == "expand" and any(rule.factors[f].rewrite for f in others):
        return Obstacle("the op would expand, and another axis rewrites it")
    return kind


def lacking(
    rule: RuleInstance, index: int, placement: Placement, count: int, sharded: ShardCounts, least: int
) -> Obstacle | None:
    """Return the reason if a rank has fewer than `least` elements of the factor, which `placement` shards beside other
    axes.

    In which order axes nest is not known here; every one that fits the placements must do.
    """
    size, plain = rule.factors[index].size, sharded.by_s(index)
    if size % plain:
        return Obstacle("{} elements in {} shards by other axes are uneven", (size, plain))
    shards = [(placement, count), *sharded.by_plugins.get(index, ()), *([(Shard(0), plain)] if plain > 1 else [])]
    lengths = [found for order in itertools.permutations(shards) if (found := _lengths(size, order))]
    if not lengths:
        return Obstacle("no order of the axes fits the placements")
    return None if all(min(found) >= least for found in lengths) else too_small(size, count * sharded.of(index), least)


def _lengths(size: int, nested: Iterable[tuple[Placement, int]]) -> frozenset[int] | None:
    """Return the lengths of shards by (placement, ranks), major first; None if a placement does not fit one."""
    extents = frozenset([size])
    for placement, count in nested:
        assert isinstance(placement, ShardPlacement)
        if not all(suits(placement, extent, count) for extent in extents):
            return None
        extents = frozenset(own for extent in extents for own in shard_lengths(((placement, count),), extent))
    return extents


def _incompatible_with_plugins(rule: RuleInstance, index: int, sharded: ShardCounts) -> Obstacle | None:
    """Return why S of the factor is incompatible with what other axes shard by plug-in placements."""
    others = sharded.by_plugins
    if not others:
        return None
    factor = rule.factors[index]
    if index in others and (factor.aligned or rule.neighbours(index)):
        return Obstacle("another axis shards it by a plug-in placement")
    if any(f in others for f in rule.majors.get(index, ())):
        return Obstacle("another axis shards a factor before it by a plug-in placement")
    found = rewrite_beside(rule, index, sharded, scattered=False)
    return found if isinstance(found, Obstacle) else None
