"""The price of moving one mesh axis from placement to placement: what the propagation search pays an edge with."""

from __future__ import annotations

import math
from collections.abc import Sequence

from spmdir.core.placement.base import Edge, PartialPlacement, Placement, edge_between
from spmdir.core.placement.standard import R
from spmdir.core.tensor import TensorMeta
from spmdir.reshard.collective_spec import CollectiveSpec, Sizes, Traffic
from spmdir.reshard.collectives import PLANNED
from spmdir.reshard.cost import edge_collectives

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
    local: TensorMeta | None = None,
) -> float:
    """Return the wire bytes a rank sends to move one axis of `count` ranks from `source` to `target`.

    A step that a placement declares comes first, then the cheapest collective between the traits, then R in between.
    Moves that there are not, and those of open placements, cost infinity.

    Args:
        local_bytes: those of the tensor on a rank with this axis replicated and the other axes as they are.
        collectives: the ones that may be used.
        local: what a rank has of the tensor then, for edges whose bytes depend on the shape; without it these cost
            NaN.
    """
    if source == target:
        return 0.0
    if edge := edge_between(source, target):
        return _edge_price(edge, source, target, local_bytes, count, local)
    if "open" in (source.trait, target.trait):
        return math.inf
    if not _needs_replicated(source, target):
        if (source.trait, target.trait) in _FREE:
            return 0.0
        legal = [spec for spec in collectives if (spec.before, spec.after) == (source.trait, target.trait)]
        if legal:
            sizes = _sizes(source, target, local_bytes, count)
            return min((spec.traffic or Traffic()).wire(sizes) for spec in legal)
    if R in (source, target):
        return math.inf
    return axis_price(source, R, local_bytes, count, collectives, local) + axis_price(
        R, target, local_bytes, count, collectives, local
    )


def depends_on_shape(source: Placement, target: Placement) -> bool:
    """Return whether the price between two placements is that of edges whose bytes depend on the shape."""
    edges = [edge_between(source, target)]
    if edges == [None]:
        edges = [edge_between(source, R), edge_between(R, target)]
    own = source.has_own_type or target.has_own_type
    return any(edge is not None and edge.collectives and (edge.bytes is not None or own) for edge in edges)


def _edge_price(
    edge: Edge, source: Placement, target: Placement, local_bytes: float, count: int, local: TensorMeta | None
) -> float:
    own = bool(edge.collectives) and (source.has_own_type or target.has_own_type)
    if local is None and (own or edge.bytes is not None):
        return math.nan
    if edge.bytes is None or local is None:
        sizes = _own_sizes(source, target, local, count) if own and local else None
        sizes = sizes or _sizes(source, target, local_bytes, count)
        return sum(traffic.wire(sizes) for traffic, sizes in edge_collectives(edge, sizes, (), ITEMSIZE))
    shape = list(local.shape)
    if source.dim is not None and source.dim < len(shape):
        shape[source.dim] = -(-shape[source.dim] // count)
    return sum(edge.sent(shape, local.dtype.itemsize, count))


def _needs_replicated(source: Placement, target: Placement) -> bool:
    """Return whether a shard among others cannot stand for the value, or a placement has its own way to R."""
    alone = isinstance(target, PartialPlacement) and target.identity is None and source.trait == "shard"
    return alone or edge_between(source, R) is not None


def _own_sizes(source: Placement, target: Placement, local: TensorMeta, count: int) -> Sizes | None:
    """Return what a step handles of whose ends one says itself what ranks hold; None if the tensor fits them not."""
    try:
        before, after = (
            max(TensorMeta(*held).bytes for held in side.local_types(local.shape, local.dtype, count))
            for side in (source, target)
        )
    except Exception:
        return None  # prices are asked for of all placements, of values that can never have them too
    scatters = target.trait == "shard" and source.has_own_type
    return Sizes(count, before, after, before / count if scatters else min(before, after))


def _sizes(source: Placement, target: Placement, local_bytes: float, count: int) -> Sizes:
    shard = local_bytes / count
    before = shard if source.trait == "shard" else local_bytes
    after = shard if target.trait == "shard" else local_bytes
    return Sizes(count, before, after, shard / count)
