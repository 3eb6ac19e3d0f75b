"""Rows by S lifted to plug-in placements that divide a dimension, where ranks then hold corresponding pieces."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import attrs

from spmdir.core.errors import SpmdirError
from spmdir.core.intervals import joined, scaled, tiled
from spmdir.core.placement.base import ENUMERATED, ShardPlacement, runs_of
from spmdir.core.placement.standard import Placement, Shard
from spmdir.rules.shapes.layout import Dims
from spmdir.rules.strategies.divisibility import beside, goes_with, least_held, local_form_reads
from spmdir.rules.strategies.per_axis import factor_row
from spmdir.rules.strategies.plugin_placements import at
from spmdir.rules.strategies.strategy import Strategy, lifted_factors

if TYPE_CHECKING:
    from spmdir.rules.op_rule import OpRule


@attrs.frozen
class Seat:
    """Where a factor stands in a dimension: `outer` stretches of it, each element of it `inner` positions."""

    dim: int
    outer: int
    inner: int

    @property
    def alone(self) -> bool:
        return self.outer == 1 == self.inner


def lifted_rows(
    rule: OpRule, count: int, divided: Mapping[int, int], shards: tuple[ShardPlacement, ...]
) -> Iterator[Strategy]:
    """The rows of `factor_rows` with `shards` in the place of S, where ranks then still hold corresponding pieces."""
    for index in range(len(rule.factors)):
        if _liftable(rule, index, divided):
            for cut in _cuts(rule, index, count, divided, shards):
                row = _lifted(rule, index, count, divided, cut, shards)
                if row:
                    yield row


def _liftable(rule: OpRule, index: int, divided: Mapping[int, int]) -> bool:
    """Whether the factor may be divided otherwise than by S: nothing asks where a rank's piece begins."""
    factor = rule.factors[index]
    if factor.rewrite == "local" or factor.aligned or index in rule.layout.windows or least_held(factor) > 1:
        return False
    if not goes_with(rule, index, divided):
        return False
    others, already = lifted_factors(divided), index in divided
    if already and (factor.rewrite or least_held(factor) or beside(rule, index)):
        return False
    if factor.rewrite and any(rule.factors[f].rewrite for f in others):
        return False
    if any(_cuts_unevenly(rule, f, divided) for f in rule.majors.get(index, ())):
        return False
    local = (f for f in divided if f >= 0 and rule.factors[f].rewrite == "local")
    return not any(local_form_reads(rule, f, index) for f in local)


def _cuts_unevenly(rule: OpRule, factor: int, divided: Mapping[int, int]) -> bool:
    return ~factor in divided or rule.factors[factor].size % divided.get(factor, 1) != 0


def _cuts(
    rule: OpRule, index: int, count: int, divided: Mapping[int, int], shards: Sequence[ShardPlacement]
) -> Iterator[ShardPlacement]:
    """What may hold the factor by itself: the plug-ins, and what these make of it inside dimensions."""
    found: dict[Placement | None, None] = dict.fromkeys(shards)
    for seat in _seats(rule, index, divided):
        found.update(dict.fromkeys(_unseated(p, seat) for p in shards))
    size, before = rule.factors[index].size, divided.get(index, 1)
    # S leaves no rank without some of a dimension of several factors; ops other than views may rely on that.
    least = max(least_held(rule.factors[index]), bool(beside(rule, index)) and not rule.is_view)
    for cut in found:
        if not isinstance(cut, ShardPlacement) or not (fits(cut, size, count) or fits(cut, size // before, count)):
            continue
        if not least or all(own >= least for _, _, own in runs_of(cut, size, count)):
            yield cut


def _seats(rule: OpRule, index: int, divided: Mapping[int, int]) -> tuple[Seat, ...]:
    """Where the factor stands in operands and results, each place once."""
    every = (dims for dims in (*rule.operand_dims, *rule.result_dims) if dims)
    return tuple(dict.fromkeys(seat for dims in every if (seat := _seat(rule, index, dims, divided))))


def _seat(rule: OpRule, index: int, dims: Dims, divided: Mapping[int, int]) -> Seat | None:
    """Where the factor stands in a tensor, of what the axes that divide major factors leave; None if it does not."""
    for dim, made_of in enumerate(dims):
        if index in made_of:
            place = made_of.index(index)
            outer = math.prod(rule.factors[f].size // divided.get(f, 1) for f in made_of[:place])
            return Seat(dim, outer, math.prod(rule.factors[f].size for f in made_of[place + 1 :]))
    return None


def _unseated(placement: ShardPlacement, seat: Seat) -> Placement | None:
    """What holds a factor if `placement` holds the dimension that it stands in."""
    inner = placement.inside(seat.outer)
    return inner.unscaled(seat.inner) if isinstance(inner, ShardPlacement) else None


def _lifted(
    rule: OpRule,
    index: int,
    count: int,
    divided: Mapping[int, int],
    cut: ShardPlacement,
    shards: tuple[ShardPlacement, ...],
) -> Strategy | None:
    size = rule.factors[index].size
    seated = {seat: _seated(cut, seat, size, count, shards) for seat in _seats(rule, index, divided)}
    if None in seated.values() or all(isinstance(p, Shard) for p in seated.values()):
        return None

    def held(dims: Dims) -> Placement | None:
        seat = _seat(rule, index, dims, divided)
        return None if seat is None else seated[seat]

    return factor_row(rule, index, count, divided, held, cut)


def _seated(
    cut: ShardPlacement, seat: Seat, size: int, count: int, shards: tuple[ShardPlacement, ...]
) -> Placement | None:
    """What holds a dimension in which a factor of `size` that `cut` holds stands; None if none is known."""
    if seat.alone:
        return at(cut, seat.dim)
    candidates: list[Placement | None] = [p for p in shards if _unseated(p, seat) == cut]
    candidates += [cut.scaled(seat.inner)] if seat.outer == 1 else []
    found = (p for p in candidates if isinstance(p, ShardPlacement) and _same(cut, p, seat, size, count))
    return next((at(p, seat.dim) for p in found), None)


@lru_cache(maxsize=65536)
def _same(cut: ShardPlacement, held: ShardPlacement, seat: Seat, size: int, count: int) -> bool:
    """Whether `held` of the dimension is `cut` of the factor, position by position and in the same order.

    No of more than ENUMERATED ranges, which are not compared: strategies are lost then.
    """
    extent = size * seat.inner
    if not fits(held, seat.outer * extent, count):
        return False
    if cut.stretches(size, count) * seat.outer > ENUMERATED or count > ENUMERATED:
        return False
    return all(
        joined(held.ranges(seat.outer * extent, count, rank))
        == tiled(scaled(cut.ranges(size, count, rank), seat.inner), extent, seat.outer)
        for rank in range(count)
    )


@lru_cache(maxsize=65536)
def fits(placement: Placement, size: int, count: int) -> bool:
    """Whether `count` ranks can hold a dimension of `size` elements so; `placement.dim` is 0."""
    try:
        placement.check((size,), count)
    except SpmdirError:
        return False
    return True
