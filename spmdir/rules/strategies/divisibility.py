"""Decide whether a mesh axis can shard a factor, given the factors that other axes shard."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable

from spmdir.core.limits import RING
from spmdir.core.placement.base import placement_type
from spmdir.core.placement.shards import ShardPlacement, shard_lengths
from spmdir.core.placement.standard import Placement, Shard
from spmdir.rules.language.syntax_tree import TextStrategy
from spmdir.rules.local.suitability import needs_one_range, usable_clauses
from spmdir.rules.shapes.instance import RuleInstance
from spmdir.rules.strategies.obstacle import ClauseLocation, Obstacle
from spmdir.rules.strategies.plugin_placements import can_shard
from spmdir.rules.strategies.strategy import ShardCounts


def unshardable(rule: RuleInstance, index: int, count: int, sharded: ShardCounts, least: int = 0) -> Obstacle | None:
    """Return why an axis of `count` ranks cannot shard the factor by S; None if it can.

    Args:
        index: the factor.
        sharded: how other axes shard the factors.
        least: the number of elements that every rank must have. The factor may require more.
    """
    factor, shard_count = rule.factors[index], count * sharded.of(index)
    reason = incompatible(rule, index, sharded) or _incompatible_with_plugins(rule, index, sharded)
    if reason:
        return reason
    majors = rule.majors.get(index)
    if majors and any(sharded.of(major) != rule.factors[major].size for major in majors):
        return Obstacle("a major factor of the same dimension is not sharded down to single elements")
    if factor.size % shard_count and rule.neighbours(index):
        return Obstacle(
            "{} elements cannot be sharded evenly over {} ranks, and the factor shares a dimension with another one",
            (factor.size, shard_count),
        )
    if factor.aligned and factor.size * rule.call.operands[0].dtype.itemsize % (16 * shard_count):
        return _clause_obstacle(rule, index, "aligned", "shards would not be multiples of 16 bytes")
    bodies = [rule.rule.clauses[number].body for number in factor.clauses]
    if shard_count > RING.most and any(statement.ring for body in bodies for statement in body):
        return _clause_obstacle(rule, index, "local", "its ring would have too many ranks")
    least = max(least, factor.least_elements)
    if not least:
        return None
    if index in sharded.by_plugins:  # the shard sizes depend on the nesting order, which is not decided yet
        return shortage(rule, index, Shard(0), count, sharded, least)
    shard_size = -(-factor.size // shard_count)
    if index in sharded.all_axes:  # an uneven shard of one axis may be too small for the other
        has_enough = factor.size % shard_count == 0 and shard_size >= least
    else:  # the last shard is the smallest
        has_enough = factor.size - (shard_count - 1) * shard_size >= least
    return None if has_enough else too_few_elements(factor.size, shard_count, least)


_FEWER_THAN_2 = Obstacle("it has fewer than 2 elements")


def too_few_elements(size: int, count: int, least: int) -> Obstacle:
    """Return the reason for a dimension of `size` elements that leaves a rank with fewer than `least`."""
    return Obstacle("{} elements over {} ranks leave a rank with fewer than {}", (size, count, int(least)))


def _clause_obstacle(rule: RuleInstance, index: int, kind: str, message: str) -> Obstacle:
    """Return the reason `message` with the location of the clause of this kind for the factor."""
    return Obstacle(message, (), ClauseLocation(rule, (kind,), index))


def incompatible(rule: RuleInstance, index: int, sharded: ShardCounts) -> Obstacle | None:
    """Return why no placement can shard the factor, given the shards on the other axes; None if a placement can.

    Reasons are its size, its clauses, a rewrite that another axis requires, text strategies of other axes, and a tensor
    with the factor in two dimensions. `unshardable` checks whether each rank has enough elements.
    """
    factor = rule.factors[index]
    if factor.size <= 1:
        return _FEWER_THAN_2
    if factor.kind == "unsharded":
        return _clause_obstacle(rule, index, "unsharded", "the rule does not allow sharding it")
    if factor.clauses and sharded.all_axes:
        others = [other for other in sharded.all_axes if other != index and other not in sharded.by_texts]
        clauses_of_others = [set(rule.factors[other].clauses) for other in others if rule.factors[other].clauses]
        # For each other factor that a clause rewrites: the clauses that rewrite the op for both factors.
        common_clauses = [clauses.intersection(factor.clauses) for clauses in clauses_of_others]
        if factor.rewrite and not all(common_clauses):  # an empty set: no clause supports both
            return Obstacle("another axis shards a factor that requires a different rewrite of the op")
        # `alone` has the clauses whose rewrite supports one sharded factor only.
        if factor.alone and any(clauses.issubset(factor.alone) for clauses in common_clauses):
            return _clause_obstacle(rule, index, factor.rewrite or "", "its rewrite supports one sharded factor only")
    if sharded.by_texts and not _is_compatible_with_texts(rule, index, sharded):
        return Obstacle("another axis uses a strategy written as text that excludes it")
    if index in rule.repeated:
        return Obstacle("it occurs in two dimensions of a tensor")
    return None


def _is_compatible_with_texts(rule: RuleInstance, index: int, sharded: ShardCounts) -> bool:
    """Return whether factor `index` can be sharded by S if other axes use text strategies.

    The text strategies must not shard this factor or a factor of the same dimension, and must not require this factor
    unsharded. The rewrite for this factor must not expand the op. If a text strategy has a local form, the rewrite for
    this factor must not be a local form too.
    """
    texts, factor = sharded.by_texts, rule.factors[index]
    if any(factor.name in text.whole for text in texts.values()):
        return False
    shares_dimension = index in texts or not rule.neighbours(index).isdisjoint(texts)
    if shares_dimension or factor.rewrite == "expand":
        return False
    return factor.rewrite is None or not any(text.body for text in texts.values())


def text_conflict(
    rule: RuleInstance, factors: Collection[int], text: TextStrategy, sharded: ShardCounts, splits: bool
) -> Obstacle | None:
    """Return why `text`, which shards `factors`, conflicts with the shards on the other axes; None if it does not.

    - The other axes must shard other factors, of other dimensions. An exception are axes with the same strategy, if an
      axis is equivalent to its sub-axes.
    - They must not shard a factor that the strategy needs unsharded.
    - At most one axis may rewrite the op. Its local form must not require one range of a factor that another axis
      shards by a plug-in placement.

    Args:
        factors: the factors that `text` shards.
        splits: whether the results of `text` are the same on an axis and on its sub-axes.
    """
    for sharded_factor in sharded.all_axes:
        name = rule.factors[sharded_factor].name
        other_text = sharded.by_texts.get(sharded_factor)
        if sharded_factor in factors and other_text:
            is_same_on_sub_axes = splits and other_text == text and not rule.neighbours(sharded_factor)
            if is_same_on_sub_axes or _are_routed(text, other_text):
                continue
        if name in text.whole:
            return Obstacle("another axis shards '{}', which this strategy needs unsharded", (name,))
        if sharded_factor in factors or not rule.neighbours(sharded_factor).isdisjoint(factors):
            return Obstacle("another axis shards '{}' of the same dimension", (name,))
        rewrite = rule.factors[sharded_factor].rewrite
        # `needs_range`: whether the local form of the other axis requires that a rank has one range of `factors`.
        if other_text is not None:
            rewrite = "local" if other_text.body else None
            needs_range = any(needs_one_range(rule, other_text.body, factor) for factor in factors)
        else:
            needs_range = rewrite == "local" and not usable_clauses(rule, [sharded_factor], factors)
        if rewrite == "expand" or (rewrite and text.body):
            return Obstacle("another axis shards '{}' and rewrites the op", (name,))
        if needs_range or (sharded_factor in sharded.by_plugins and needs_one_range(rule, text.body, sharded_factor)):
            return Obstacle("a local form requires shards of one range, but a plug-in placement shards the factor")
    return None


def _are_routed(text: TextStrategy, other: TextStrategy) -> bool:
    """Return whether both texts have routed placements, and at most one of them a local form.

    Then the positions of a rank along one axis are data for the other axis, so the axes do not conflict.
    """

    def has_routed_placement(strategy: TextStrategy) -> bool:
        terms = (*strategy.operands, *strategy.results)
        return any(not term.is_any_shard and placement_type(term.name).is_routed for term in terms)

    return has_routed_placement(text) and has_routed_placement(other) and not (text.body and other.body)


def compatible_rewrite(rule: RuleInstance, index: int, sharded: ShardCounts, scattered: bool) -> str | Obstacle:
    """Return how sharding the factor rewrites the op: "local", "expand", or "" if it does not.

    The rewrite must support the factor and the factors that other axes shard. If no clause of the rule does, the reason
    is returned. A factor that another axis shards by a plug-in placement is treated as scattered.

    Args:
        index: the factor.
        scattered: whether a rank may have several ranges of the factor.
    """
    by_plugins, clauses = sharded.by_plugins, rule.factors[index].clauses
    if not clauses and not scattered:
        return ""
    factors = {index, *(factor for factor in sharded.all_axes if factor not in sharded.by_texts)}
    clause_indices = usable_clauses(rule, factors, {*by_plugins, *((index,) if scattered else ())})
    is_rewritten_for_others = bool(clause_indices) and not clauses
    if clause_indices is None or is_rewritten_for_others:  # the strategies of the other axes have the rewrite
        return ""
    if not clause_indices:
        return _clause_obstacle(rule, index, "local", "its local form requires shards of one range")
    kind = rule.rule.clauses[clause_indices[-1]].kind
    if kind == "expand" and scattered and index in sharded.all_axes:
        return Obstacle("the op would expand, but another axis shards the factor too")
    if kind == "expand" and any(rule.factors[factor].rewrite for factor in by_plugins):
        return Obstacle("the op would expand, but another axis rewrites it")
    return kind


def shortage(
    rule: RuleInstance, index: int, placement: Placement, count: int, sharded: ShardCounts, least: int
) -> Obstacle | None:
    """Return the reason if a rank may have fewer than `least` elements of a factor that several axes shard, else None.

    The nesting order of the axes is not decided yet, so every order that suits the placements must leave enough. For
    example, if S shards 8 elements over 4 ranks and `placement` over 2, both orders are checked: 4 x 2 and 2 x 4.

    Args:
        placement: the placement of the factor on the axis of `count` ranks.
    """
    size, s_shard_count = rule.factors[index].size, sharded.by_s(index)
    if size % s_shard_count:
        return Obstacle("{} elements cannot be sharded evenly over {} ranks of other axes", (size, s_shard_count))
    shards = [(placement, count), *sharded.by_plugins.get(index, ())]
    if s_shard_count > 1:
        shards.append((Shard(0), s_shard_count))
    lengths_of_orders = [_shard_lengths(size, order) for order in itertools.permutations(shards)]
    suitable_lengths = [lengths for lengths in lengths_of_orders if lengths is not None]
    if not suitable_lengths:
        return Obstacle("no nesting order of the axes suits the placements")
    if all(min(lengths) >= least for lengths in suitable_lengths):
        return None
    return too_few_elements(size, count * sharded.of(index), least)


def _shard_lengths(size: int, nested: Iterable[tuple[Placement, int]]) -> frozenset[int] | None:
    """Return the lengths of all shards of `size` elements; None if a placement rejects a length.

    For example, 10 elements by S over 4 ranks have lengths 3 and 1; by another S over 2 ranks these become 2, 1 and 0.

    Args:
        nested: (placement, number of ranks) of each axis, outermost first.
    """
    lengths = frozenset([size])
    for placement, count in nested:
        assert isinstance(placement, ShardPlacement)
        if not all(can_shard(placement, extent, count) for extent in lengths):
            return None
        lengths = frozenset(length for extent in lengths for length in shard_lengths(((placement, count),), extent))
    return lengths


def _incompatible_with_plugins(rule: RuleInstance, index: int, sharded: ShardCounts) -> Obstacle | None:
    """Return why S of the factor conflicts with plug-in placements on other axes; None if it does not."""
    by_plugins = sharded.by_plugins
    if not by_plugins:
        return None
    factor = rule.factors[index]
    if index in by_plugins and (factor.aligned or rule.neighbours(index)):
        return Obstacle("another axis shards it by a plug-in placement")
    if any(major in by_plugins for major in rule.majors.get(index, ())):
        return Obstacle("another axis shards a major factor of the same dimension by a plug-in placement")
    rewrite = compatible_rewrite(rule, index, sharded, scattered=False)
    return rewrite if isinstance(rewrite, Obstacle) else None
