"""Derive strategies with plug-in placements from the strategies with S.

A strategy shards one factor. Every dimension that contains the factor needs a placement by which each rank has the same
positions of the factor, in the same order. For example, a view flattens 6 x 8 elements, factors `m` and `n`, to 48. On
2 ranks, with the plug-in placements `Cyclic(0, 1)` and `Strided(0, 6)` of the program:

    factor and placement      positions of rank 0                placement of the dimension of 48
    m by Cyclic(0, 1)         rows 0, 2, 4: 0-7, 16-23, 32-39    Cyclic(0, 8): `scaled(8)` of Cyclic(0, 1)
    n by Cyclic(0, 1)         columns 0, 2, 4, 6: 0, 2, 4, …     Cyclic(0, 1): its `inside(6)` is Cyclic(0, 1)
    n by S(0)                 columns 0-3: 0-3, 8-11, 16-19, …   Strided(0, 6): its `inside(6)` is S(0)

The candidates are the placements of the program and `scaled` of the placement. Each candidate is then compared range by
range with the positions of the factor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache

import attrs

from spmdir.core.intervals import joined, scaled, tiled
from spmdir.core.limits import ENUMERATED
from spmdir.core.placement.shards import ShardPlacement, is_contiguous
from spmdir.core.placement.standard import Placement, Shard
from spmdir.rules.shapes.factor import Dims
from spmdir.rules.shapes.instance import RuleInstance
from spmdir.rules.strategies.divisibility import compatible_rewrite, incompatible, shortage
from spmdir.rules.strategies.expansion_layout import LayOutExpansion
from spmdir.rules.strategies.obstacle import ClauseLocation, Dropped, Obstacle
from spmdir.rules.strategies.per_axis import factor_strategy
from spmdir.rules.strategies.plugin_placements import can_shard, with_dim
from spmdir.rules.strategies.strategy import ShardCounts, Strategy


@attrs.frozen
class FactorPosition:
    """The position of a factor in a dimension.

    Attributes:
        dim: the index of the dimension.
        outer: the product of the local sizes of the factors that are major to this one.
        inner: the product of the sizes of the factors that are minor to this one.
    """

    dim: int
    outer: int
    inner: int

    @property
    def fills(self) -> bool:
        """Whether the dimension has no other factor."""
        return self.outer == 1 == self.inner


def substituted_strategies(
    rule: RuleInstance, count: int, sharded: ShardCounts, shards: tuple[ShardPlacement, ...], lay_out: LayOutExpansion
) -> Iterator[Strategy | Dropped]:
    """Yield the strategies that shard one factor by a plug-in placement: by `shards`, or by one that these imply.

    A reason is yielded in place of a strategy that one of `shards` does not lead to. Implied placements without a
    strategy are skipped.

    Args:
        shards: the plug-in placements of the program, with `dim` 0.
        lay_out: returns the layout of the op's expansion.
    """
    for index in range(len(rule.factors)):
        reason = _only_s_reason(rule, index, sharded)
        if reason:
            yield from (Dropped(rule, placement, index, reason) for placement in shards)
            continue
        for placement in _factor_placements(rule, index, sharded, shards):
            strategy = _strategy(rule, index, count, sharded, placement, shards, lay_out)
            if isinstance(strategy, Strategy):
                yield strategy
            elif strategy is not None and placement in shards:
                yield Dropped(rule, placement, index, strategy)


def _strategy(
    rule: RuleInstance,
    index: int,
    count: int,
    sharded: ShardCounts,
    placement: ShardPlacement,
    shards: tuple[ShardPlacement, ...],
    lay_out: LayOutExpansion,
) -> Strategy | Obstacle | None:
    """Return the strategy that shards factor `index` by `placement`, or a reason; None if all dimensions have S.

    Args:
        shards: the plug-in placements of the program.
    """
    size = rule.factors[index].size
    if placement.is_routed and (reason := _reason_against_routed(rule, index, placement)):
        return reason
    # This axis may be nested outside or inside the other axes, so it cuts the whole factor or one shard.
    if not any(can_shard(placement, extent, count) for extent in (size, size // sharded.of(index))):
        return Obstacle("this placement cannot shard {1} elements over {0} ranks", (count, size))
    rewrite = _rewrite(rule, index, count, sharded, placement)
    if isinstance(rewrite, Obstacle):
        return rewrite
    if reason := _shortage(rule, index, count, sharded, placement, rewrite):
        return reason
    return _substituted(rule, index, count, sharded, placement, shards, lay_out, rewrite)


def _reason_against_routed(rule: RuleInstance, index: int, placement: ShardPlacement) -> Obstacle | None:
    """Return why a placement whose positions depend on data cannot shard the factor; None if it can."""
    if rule.factors[index].clauses:
        return Obstacle("its local form requires the positions of each rank, which depend on data")
    if rule.shape_arguments:
        return Obstacle("the op takes sizes, and those of each rank depend on data")
    if not any(index in factors for dims in rule.operand_dims for factors in dims):
        return Obstacle("no operand has the factor, and the positions of each rank depend on data")
    keeps_rows = all(any(index in factors for factors in dims or ()) for dims in rule.result_dims)
    if placement.has_void_rows and not keeps_rows:
        return Obstacle("it combines rows, and padding rows are unspecified; clear them with experts.clear first")
    return None


def _only_s_reason(rule: RuleInstance, index: int, sharded: ShardCounts) -> Obstacle | None:
    """Return why plug-in placements cannot shard the factor, whatever their positions are; None if they can."""
    factor = rule.factors[index]
    if factor.aligned:
        return Obstacle("only S keeps shards to multiples of 16 bytes", (), ClauseLocation(rule, ("aligned",), index))
    if index in rule.layout.windows or factor.least > 1:
        return Obstacle("windows slide along it, and halos require shards of one range")
    reason = incompatible(rule, index, sharded)
    if reason:
        return reason
    if index in sharded.all_axes and rule.neighbours(index):
        return Obstacle("another axis shards the factor too, and the factor shares a dimension with another one")
    if any(_is_uneven(rule, major, sharded) for major in rule.majors.get(index, ())):
        return Obstacle("another axis shards a major factor of the same dimension unevenly or by a plug-in placement")
    return None


def _rewrite(
    rule: RuleInstance, index: int, count: int, sharded: ShardCounts, placement: ShardPlacement
) -> str | Obstacle:
    """Return the rewrite for the factor sharded by `placement`; see `compatible_rewrite`."""
    is_single_range = index not in sharded.all_axes and is_contiguous(placement, rule.factors[index].size, count)
    return compatible_rewrite(rule, index, sharded, scattered=not is_single_range)


def _shortage(
    rule: RuleInstance, index: int, count: int, sharded: ShardCounts, placement: ShardPlacement, rewrite: str
) -> Obstacle | None:
    """Return the reason if a rank has fewer elements of the factor than the op requires, else None.

    S leaves no shard empty in a dimension of several factors. Ops other than views may rely on it.

    Args:
        rewrite: how sharding the factor rewrites the op, see `compatible_rewrite`.
    """
    requires_one = bool(rule.neighbours(index)) and not rule.is_view
    least = max(rule.factors[index].least_with(rewrite), int(requires_one))
    return shortage(rule, index, placement, count, sharded, least) if least else None


def _is_uneven(rule: RuleInstance, factor: int, sharded: ShardCounts) -> bool:
    """Return whether another axis shards `factor` unevenly or by a plug-in placement."""
    return factor in sharded.by_plugins or rule.factors[factor].size % sharded.of(factor) != 0


def _factor_placements(
    rule: RuleInstance, index: int, sharded: ShardCounts, shards: Sequence[ShardPlacement]
) -> Iterator[ShardPlacement]:
    """Yield the placements to try for the factor: `shards`, and those that `shards` of a dimension imply for it."""
    candidates: dict[Placement | None, None] = dict.fromkeys(shards)
    for position in _positions(rule, index, sharded):
        candidates.update(dict.fromkeys(_implied_for_factor(placement, position) for placement in shards))
    yield from (placement for placement in candidates if isinstance(placement, ShardPlacement))


def _positions(rule: RuleInstance, index: int, sharded: ShardCounts) -> tuple[FactorPosition, ...]:
    """Return the distinct positions of the factor in operands and results."""
    positions = (_position(rule, index, dims, sharded) for dims in rule.all_dims)
    return tuple(dict.fromkeys(position for position in positions if position))


def _position(rule: RuleInstance, index: int, dims: Dims, sharded: ShardCounts) -> FactorPosition | None:
    """Return the position of the factor in the local shard of a tensor, whose major factors may be sharded; or None.

    For example, `n` in a dimension `(m n k)` of sizes 6, 8 and 2 has `outer` 6 and `inner` 2. If another axis shards
    `m` into 3 shards, `outer` is 2.
    """
    for dim, factors in enumerate(dims):
        if index in factors:
            depth = factors.index(index)
            outer = math.prod(rule.factors[major].size // sharded.of(major) for major in factors[:depth])
            inner = math.prod(rule.factors[minor].size for minor in factors[depth + 1 :])
            return FactorPosition(dim, outer, inner)
    return None


def _implied_for_factor(placement: ShardPlacement, position: FactorPosition) -> Placement | None:
    """Return the placement of a factor if `placement` shards its dimension; None if there is none.

    For the factor `m` of a dimension `(m n)` with 8 `n`, `Cyclic(0, 8)` of the dimension is `Cyclic(0, 1)` of `m`.
    """
    inside_majors = placement.inside(position.outer)
    return inside_majors.unscaled(position.inner) if isinstance(inside_majors, ShardPlacement) else None


def _substituted(
    rule: RuleInstance,
    index: int,
    count: int,
    sharded: ShardCounts,
    placement: ShardPlacement,
    shards: tuple[ShardPlacement, ...],
    lay_out: LayOutExpansion,
    rewrite: str,
) -> Strategy | Obstacle | None:
    """Return the strategy that shards the factor by `placement`, where each dimension gets the placement that follows.

    For example, if Cyclic(0, 1) shards n, a dimension `(n k)` with k = 2 gets Cyclic(0, 2). Return a
    reason if no placement of some dimension follows, and None if all would have S.
    """
    size = rule.factors[index].size
    positions = _positions(rule, index, sharded)
    placements = {position: _implied_for_dimension(placement, position, size, count, shards) for position in positions}
    if None in placements.values():
        return Obstacle("no placement corresponds to it in a dimension that it shares, by `scaled` and `inside`")
    if all(isinstance(dim_placement, Shard) for dim_placement in placements.values()):
        return None

    def placement_of(dims: Dims) -> Placement | None:
        """Return the placement of a tensor with these dimensions; None if they lack the factor."""
        position = _position(rule, index, dims, sharded)
        return None if position is None else placements[position]

    return factor_strategy(rule, index, count, sharded, placement_of, lay_out, rewrite, (placement,))


def _implied_for_dimension(
    placement: ShardPlacement, position: FactorPosition, size: int, count: int, shards: tuple[ShardPlacement, ...]
) -> Placement | None:
    """Return the placement of a dimension whose factor of `size` is sharded by `placement`; None if none is found.

    A factor that fills its dimension has the same placement. Otherwise the candidates are those of `shards` that imply
    `placement` for the factor, and `placement` scaled by the minor factors. The first one that gives ranks the same
    positions is returned. For example, Cyclic(0, 1) of m in a dimension `(m n)` with n = 8 gives Cyclic(0, 8).

    Args:
        position: the position of the factor in the dimension.
        shards: the plug-in placements of the program.
    """
    if position.fills:
        return with_dim(placement, position.dim)
    candidates: list[Placement | None] = [
        shard for shard in shards if _implied_for_factor(shard, position) == placement
    ]
    if position.outer == 1:
        candidates.append(placement.scaled(position.inner))
    for candidate in candidates:
        if isinstance(candidate, ShardPlacement) and _is_equivalent(placement, candidate, position, size, count):
            return with_dim(candidate, position.dim)
    return None


@lru_cache(maxsize=65536)
def _is_equivalent(
    of_factor: ShardPlacement, of_dim: ShardPlacement, position: FactorPosition, size: int, count: int
) -> bool:
    """Return whether `of_dim` of the dimension and `of_factor` of the factor give ranks the same positions in order.

    Also return False for more than ENUMERATED ranges, because comparing them takes too long. This omits strategies.

    Args:
        position: the position of the factor in the dimension.
        size: the size of the factor.
    """
    extent = size * position.inner
    if not can_shard(of_dim, position.outer * extent, count):
        return False
    if of_factor.stretches(size, count) * position.outer > ENUMERATED.most or count > ENUMERATED.most:
        return False
    for rank in range(count):
        positions_of_dim = joined(of_dim.ranges(position.outer * extent, count, rank))
        # Each position of the factor is `inner` positions of the dimension, in each of `outer` blocks.
        positions_of_factor = scaled(of_factor.ranges(size, count, rank), position.inner)
        if positions_of_dim != tiled(positions_of_factor, extent, position.outer):
            return False
    return True
