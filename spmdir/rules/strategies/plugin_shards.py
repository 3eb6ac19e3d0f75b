"""Strategies by S with plug-in placements in the place of S, where ranks then have corresponding shards."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache

import attrs

from spmdir.core.intervals import joined, scaled, tiled
from spmdir.core.limits import ENUMERATED
from spmdir.core.placement.base import ShardPlacement, is_contiguous
from spmdir.core.placement.standard import Placement, Shard
from spmdir.rules.shapes.factor import Dims
from spmdir.rules.shapes.instance import RuleInstance
from spmdir.rules.strategies.divisibility import incompatible, lacking, rewrite_beside
from spmdir.rules.strategies.expansion_layout import LayOut
from spmdir.rules.strategies.obstacle import Dropped, Obstacle, Place
from spmdir.rules.strategies.per_axis import factor_strategy
from spmdir.rules.strategies.plugin_placements import at, suits
from spmdir.rules.strategies.strategy import ShardCounts, Strategy


@attrs.frozen
class FactorPosition:
    """The position of a factor in a dimension: `outer` blocks of it, each element of it `inner` positions."""

    dim: int
    outer: int
    inner: int

    @property
    def fills(self) -> bool:
        """Return whether the dimension is the factor alone."""
        return self.outer == 1 == self.inner


def lifted_strategies(
    rule: RuleInstance, count: int, sharded: ShardCounts, shards: tuple[ShardPlacement, ...], layouts: LayOut
) -> Iterator[Strategy | Dropped]:
    """Yield the strategies of `factor_strategies` with `shards` in the place of S, where shards still correspond."""
    for index in range(len(rule.factors)):
        reason = _unliftable(rule, index, sharded)
        if reason:
            yield from (Dropped(rule, placement, index, reason) for placement in shards)
            continue
        for placement in _factor_placements(rule, index, sharded, shards):
            found = _strategy(rule, index, count, sharded, placement, shards, layouts)
            if isinstance(found, Strategy):
                yield found
            elif found is not None and placement in shards:
                yield Dropped(rule, placement, index, found)


def _strategy(
    rule: RuleInstance,
    index: int,
    count: int,
    sharded: ShardCounts,
    placement: ShardPlacement,
    shards: tuple[ShardPlacement, ...],
    layouts: LayOut,
) -> Strategy | Obstacle | None:
    """Return the strategy in which `placement` shards the factor, or why there is none; None where it is one by S."""
    size = rule.factors[index].size
    if not any(suits(placement, n, count) for n in (size, size // sharded.of(index))):
        return Obstacle("{} ranks cannot shard {} elements so", (count, size))
    rewrite = _rewrite(rule, index, count, sharded, placement)
    if isinstance(rewrite, Obstacle):
        return rewrite
    return _lacking(rule, index, count, sharded, placement, rewrite) or _lifted(
        rule, index, count, sharded, placement, shards, layouts, rewrite
    )


def _unliftable(rule: RuleInstance, index: int, sharded: ShardCounts) -> Obstacle | None:
    """Return why no placement other than S may shard the factor; None if one may."""
    factor = rule.factors[index]
    if factor.aligned:
        return Obstacle("only S keeps shards to multiples of 16 bytes", (), Place(rule, ("aligned",), index))
    if index in rule.layout.windows or factor.least > 1:
        return Obstacle("windows slide along it, and their halos are for shards that are one range each")
    reason = incompatible(rule, index, sharded)
    if reason:
        return reason
    if index in sharded.all_axes and rule.neighbours(index):
        return Obstacle("another axis shards it too, and it shares a dimension")
    if any(_is_uneven(rule, f, sharded) for f in rule.majors.get(index, ())):
        return Obstacle("another axis shards a factor before it unevenly or by a plug-in placement")
    return None


def _rewrite(
    rule: RuleInstance, index: int, count: int, sharded: ShardCounts, placement: ShardPlacement
) -> str | Obstacle:
    """Return the rewrite with which `placement` shards the factor, as `rewrite_beside` does."""
    single = index not in sharded.all_axes and is_contiguous(placement, rule.factors[index].size, count)
    return rewrite_beside(rule, index, sharded, scattered=not single)


def _lacking(
    rule: RuleInstance, index: int, count: int, sharded: ShardCounts, placement: ShardPlacement, rewrite: str
) -> Obstacle | None:
    """Return the reason if a rank has less of the factor than the op needs.

    S leaves no rank without some of a dimension of several factors; ops other than views may rely on that.
    """
    factor = rule.factors[index]
    least = max(factor.least_by(rewrite), bool(rule.neighbours(index)) and not rule.is_view)
    return lacking(rule, index, placement, count, sharded, least) if least else None


def _is_uneven(rule: RuleInstance, factor: int, sharded: ShardCounts) -> bool:
    return factor in sharded.by_plugins or rule.factors[factor].size % sharded.of(factor) != 0


def _factor_placements(
    rule: RuleInstance, index: int, sharded: ShardCounts, shards: Sequence[ShardPlacement]
) -> Iterator[ShardPlacement]:
    """Yield what may shard the factor by itself: the plug-ins, and what these make of it inside dimensions."""
    found: dict[Placement | None, None] = dict.fromkeys(shards)
    for position in _positions(rule, index, sharded):
        found.update(dict.fromkeys(_of_factor(p, position) for p in shards))
    yield from (placement for placement in found if isinstance(placement, ShardPlacement))


def _positions(rule: RuleInstance, index: int, sharded: ShardCounts) -> tuple[FactorPosition, ...]:
    """Return where the factor stands in operands and results, each position once."""
    found = (_position(rule, index, dims, sharded) for dims in rule.all_dims)
    return tuple(dict.fromkeys(position for position in found if position))


def _position(rule: RuleInstance, index: int, dims: Dims, sharded: ShardCounts) -> FactorPosition | None:
    """Return where the factor stands in a tensor, of what the axes that shard major factors leave; None if nowhere."""
    for dim, made_of in enumerate(dims):
        if index in made_of:
            place = made_of.index(index)
            outer = math.prod(rule.factors[f].size // sharded.of(f) for f in made_of[:place])
            return FactorPosition(dim, outer, math.prod(rule.factors[f].size for f in made_of[place + 1 :]))
    return None


def _of_factor(placement: ShardPlacement, position: FactorPosition) -> Placement | None:
    """Return what shards a factor if `placement` shards the dimension that it stands in; None if nothing does."""
    inner = placement.inside(position.outer)
    return inner.unscaled(position.inner) if isinstance(inner, ShardPlacement) else None


def _lifted(
    rule: RuleInstance,
    index: int,
    count: int,
    sharded: ShardCounts,
    placement: ShardPlacement,
    shards: tuple[ShardPlacement, ...],
    layouts: LayOut,
    rewrite: str,
) -> Strategy | Obstacle | None:
    size = rule.factors[index].size
    positions = _positions(rule, index, sharded)
    placements = {position: _of_dimension(placement, position, size, count, shards) for position in positions}
    if None in placements.values():
        return Obstacle("no placement of a dimension that it shares corresponds to it, by `scaled` and `inside`")
    if all(isinstance(p, Shard) for p in placements.values()):
        return None

    def placement_of(dims: Dims) -> Placement | None:
        position = _position(rule, index, dims, sharded)
        return None if position is None else placements[position]

    return factor_strategy(rule, index, count, sharded, placement_of, layouts, rewrite, (placement,))


def _of_dimension(
    placement: ShardPlacement, position: FactorPosition, size: int, count: int, shards: tuple[ShardPlacement, ...]
) -> Placement | None:
    """Return what shards a dimension in which a factor of `size`, sharded by `placement`, stands; None if unknown."""
    if position.fills:
        return at(placement, position.dim)
    candidates: list[Placement | None] = [p for p in shards if _of_factor(p, position) == placement]
    candidates += [placement.scaled(position.inner)] if position.outer == 1 else []
    found = (p for p in candidates if isinstance(p, ShardPlacement) and _same(placement, p, position, size, count))
    return next((at(p, position.dim) for p in found), None)


@lru_cache(maxsize=65536)
def _same(of_factor: ShardPlacement, of_dim: ShardPlacement, position: FactorPosition, size: int, count: int) -> bool:
    """Return whether `of_dim` of the dimension is `of_factor` of the factor, position by position and in order.

    False beyond ENUMERATED ranges, which are not compared: strategies are lost then.
    """
    extent = size * position.inner
    if not suits(of_dim, position.outer * extent, count):
        return False
    if of_factor.stretches(size, count) * position.outer > ENUMERATED.most or count > ENUMERATED.most:
        return False
    return all(
        joined(of_dim.ranges(position.outer * extent, count, rank))
        == tiled(scaled(of_factor.ranges(size, count, rank), position.inner), extent, position.outer)
        for rank in range(count)
    )
