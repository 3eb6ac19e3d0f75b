"""The price of moving one mesh axis from placement to placement: what the propagation search pays an edge with."""

from __future__ import annotations

import math
from collections.abc import Sequence

from spmdir.core.placement.base import PartialPlacement, Placement, edge_between
from spmdir.core.placement.standard import R
from spmdir.reshard.collective_spec import CollectiveSpec, Sizes, Traffic
from spmdir.reshard.collectives import PLANNED
from spmdir.reshard.cost import edge_traffic

_FREE = {("replicated", "replicated"), ("shard", "partial")}
"""Traits before and after between which nothing is ever sent: a shard may stand among identities."""

ITEMSIZE = 4
"""Bytes of an element, where only those of a tensor are known."""


def axis_price(
    source: Placement,
    target: Placement,
    local_bytes: float,
    count: int,
    collectives: Sequence[CollectiveSpec] = PLANNED,
) -> float:
    """Return the wire bytes a rank sends to move one axis of `count` ranks from `source` to `target`.

    A step that a placement declares comes first, then the cheapest collective between the traits, then R in between.
    Moves that there are not, and those of open placements, cost infinity.

    Args:
        local_bytes: those of the tensor on a rank with this axis replicated and the other axes as they are.
        collectives: the ones that may be used.
    """
    if source == target:
        return 0.0
    if edge := edge_between(source, target):
        scale = 1.0 if edge.itemsize is None else edge.itemsize / ITEMSIZE
        return _wire(edge_traffic(edge), source, target, local_bytes * scale, count)
    if "open" in (source.trait, target.trait):
        return math.inf
    if not _needs_replicated(source, target):
        if (source.trait, target.trait) in _FREE:
            return 0.0
        legal = [spec for spec in collectives if (spec.before, spec.after) == (source.trait, target.trait)]
        if legal:
            return min(_wire(spec.traffic or Traffic(), source, target, local_bytes, count) for spec in legal)
    if R in (source, target):
        return math.inf
    return axis_price(source, R, local_bytes, count, collectives) + axis_price(
        R, target, local_bytes, count, collectives
    )


def _needs_replicated(source: Placement, target: Placement) -> bool:
    """Return whether a shard among others cannot stand for the value, or a placement has its own way to R."""
    alone = isinstance(target, PartialPlacement) and target.identity is None and source.trait == "shard"
    return alone or edge_between(source, R) is not None


def _wire(traffic: Traffic, source: Placement, target: Placement, local_bytes: float, count: int) -> float:
    shard = local_bytes / count
    before = shard if source.trait == "shard" else local_bytes
    after = shard if target.trait == "shard" else local_bytes
    return traffic.wire(Sizes(count, before, after, shard / count))
