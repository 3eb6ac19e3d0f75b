"""The price of moving one mesh axis from placement to placement: what the propagation search pays an edge with."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from spmdir.core.placement.base import Edge, PartialPlacement, Placement, edge_between
from spmdir.core.placement.standard import R
from spmdir.core.placement.tensor import TensorMeta
from spmdir.reshard.collective_spec import CollectiveSpec
from spmdir.reshard.collectives import PLANNED, between
from spmdir.reshard.cost import Cost, cost, edge_collectives
from spmdir.reshard.topology import DEFAULT, Topology
from spmdir.reshard.traffic import COPY, Sizes, Traffic

NOTHING = Cost(0.0, 0.0)
_NEVER = Cost(math.inf, math.inf)

_LOCAL = {("replicated", "replicated"): Traffic(), ("shard", "partial"): COPY}
"""Traits before and after between which nothing is ever sent: a shard is put among identities."""

ITEMSIZE = 4
"""Bytes of an element, where only those of a tensor are known."""


def axis_price(
    source: Placement,
    target: Placement,
    local_bytes: float,
    count: int,
    collectives: Sequence[CollectiveSpec] = PLANNED,
    local: TensorMeta | None = None,
    topology: Topology = DEFAULT,
    nodes: int = 1,
) -> Cost:
    """Return the cost of moving one axis of `count` ranks from `source` to `target`.

    A step that a placement declares comes first, then the fastest collective between the traits, then R in between.
    Moves that there are not, and those of open placements, cost infinity.

    Args:
        local_bytes: those of the tensor on a rank with this axis replicated and the other axes as they are.
        collectives: the ones that may be used.
        local: what a rank has of the tensor then, for edges whose cost depends on the shape; without it these cost
            NaN.
        nodes: how many nodes a group of the axis spans.
    """
    if source == target:
        return NOTHING
    if edge := edge_between(source, target):
        return _edge_price(edge, source, target, local_bytes, count, local, topology, nodes)
    if "open" in (source.trait, target.trait):
        return _NEVER
    if not _needs_replicated(source, target):
        if (source.trait, target.trait) in _LOCAL:
            local_step = _LOCAL[source.trait, target.trait]
            return cost(local_step, _sizes(source, target, local_bytes, count), nodes, topology)
        if legal := between(source.trait, target.trait, collectives):
            sizes = _sizes(source, target, local_bytes, count)
            costs = [cost(spec.traffic, sizes, nodes, topology) for spec in legal]
            return min(costs, key=lambda found: found.seconds)
    if R in (source, target):
        return _NEVER
    to_replicated = axis_price(source, R, local_bytes, count, collectives, local, topology, nodes)
    from_replicated = axis_price(R, target, local_bytes, count, collectives, local, topology, nodes)
    return _sum((to_replicated, from_replicated))


def _sum(costs: Iterable[Cost]) -> Cost:
    costs = tuple(costs)
    return Cost(math.fsum(c.wire_bytes for c in costs), math.fsum(c.seconds for c in costs))


def depends_on_shape(source: Placement, target: Placement) -> bool:
    """Return whether the price between two placements is that of edges whose cost depends on the shape."""
    edges = [edge_between(source, target)]
    if edges == [None]:
        edges = [edge_between(source, R), edge_between(R, target)]
    own = source.has_own_type or target.has_own_type
    return any(edge is not None and (_is_shaped(edge) or (edge.collectives and own)) for edge in edges)


def _is_shaped(edge: Edge) -> bool:
    return edge.seconds is not None or (bool(edge.collectives) and edge.bytes is not None)


def _edge_price(
    edge: Edge,
    source: Placement,
    target: Placement,
    local_bytes: float,
    count: int,
    local: TensorMeta | None,
    topology: Topology,
    nodes: int,
) -> Cost:
    own = bool(edge.collectives) and (source.has_own_type or target.has_own_type)
    if local is None and (own or _is_shaped(edge) or edge.bytes is not None):
        return Cost(math.nan, math.nan)
    sizes = _own_sizes(source, target, local, count) if own and local and edge.bytes is None else None
    sizes = sizes or _sizes(source, target, local_bytes, count)
    shape: list[int] = list(local.shape) if local is not None else []
    if source.dim is not None and source.dim < len(shape):
        shape[source.dim] = -(-shape[source.dim] // count)
    itemsize = local.dtype.itemsize if local is not None else ITEMSIZE
    found = _sum(
        cost(traffic, sizes, nodes, topology) for traffic, sizes in edge_collectives(edge, sizes, shape, itemsize)
    )
    if edge.seconds is None or local is None or count == 1:
        return found
    return Cost(found.wire_bytes, edge.time(topology, shape, itemsize, count))


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
    sharded = [placement.dim for placement in (source, target) if placement.trait == "shard"]
    dim, to_dim = (*sharded, None, None)[:2]
    return Sizes(count, before, after, shard / count, dim, to_dim)
