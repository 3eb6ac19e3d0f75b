"""The price of a reshard on one mesh axis. The search of shardings derives its prices from it.

For example, an all-gather of 2 MB over 8 ranks on the topology `flat` sends 7/8 of 2 MB:

    axis_price(S(0), R, local_bytes=2_000_000, count=8, topology=FLAT)
    Cost(wire_bytes=1750000.0, seconds=4.73973e-06)         1750000 / 370e9 + 1e-8 seconds
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from spmdir.core.placement.base import Edge, PartialPlacement, Placement, edge_between
from spmdir.core.placement.standard import R
from spmdir.core.placement.tensor import TensorMeta
from spmdir.reshard.collective_spec import CollectiveSpec
from spmdir.reshard.collectives import PLANNED, collectives_between
from spmdir.reshard.cost import Cost, cost, edge_collectives
from spmdir.reshard.topology import DEFAULT, Topology
from spmdir.reshard.traffic import COPY, Sizes, Traffic

FREE = Cost(0.0, 0.0)
_IMPOSSIBLE = Cost(math.inf, math.inf)

_LOCAL_STEPS = {("replicated", "replicated"): Traffic(), ("shard", "partial"): COPY}
"""Traits before and after → the cost of a step that sends nothing. From shard to partial, each rank writes its shard
into a tensor of identities of the reduction."""

ITEMSIZE = 4
"""The assumed bytes of an element, if only the bytes of the tensor are known."""


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
    """Return the cost of a reshard from `source` to `target` on one axis of `count` ranks.

    If a placement declares a step, its cost is returned. Otherwise it is the cost of the fastest collective between the
    traits, or else of two reshards by way of R. An impossible reshard costs infinity, as does an open placement.

    Args:
        local_bytes: bytes of the local tensor, as if this axis were replicated.
        collectives: the collectives that the reshard may use.
        local: the type of that local tensor, for edges whose cost depends on the shape. Without it, these cost NaN.
        nodes: the number of nodes that a group of the axis spans.
    """
    if source == target:
        return FREE
    if edge := edge_between(source, target):
        return _edge_price(edge, source, target, local_bytes, count, local, topology, nodes)
    if "open" in (source.trait, target.trait) or _is_fixed(source) or target.is_routed:
        return _IMPOSSIBLE
    if not _must_pass_replicated(source, target):
        if (source.trait, target.trait) in _LOCAL_STEPS:
            local_step = _LOCAL_STEPS[source.trait, target.trait]
            return cost(local_step, _sizes(source, target, local_bytes, count), nodes, topology)
        if legal := collectives_between(source.trait, target.trait, collectives):
            sizes = _sizes(source, target, local_bytes, count)
            costs = [cost(spec.traffic, sizes, nodes, topology) for spec in legal]
            return min(costs, key=lambda candidate: candidate.seconds)
    if R in (source, target):
        return _IMPOSSIBLE
    to_replicated = axis_price(source, R, local_bytes, count, collectives, local, topology, nodes)
    from_replicated = axis_price(R, target, local_bytes, count, collectives, local, topology, nodes)
    return _sum((to_replicated, from_replicated))


def _is_fixed(placement: Placement) -> bool:
    """Return whether no step leads from a placement, because the positions of ranks depend on data."""
    return placement.is_routed and placement.trait != "partial"


def _sum(costs: Iterable[Cost]) -> Cost:
    """Return the cost of steps in sequence."""
    costs = tuple(costs)
    return Cost(math.fsum(c.wire_bytes for c in costs), math.fsum(c.seconds for c in costs))


def depends_on_shape(source: Placement, target: Placement) -> bool:
    """Return whether the reshard between two placements uses an edge whose cost depends on the shape.

    These are the edge between them or, if there is none, the edges to and from R.
    """
    edges = [edge_between(source, target)]
    if edges == [None]:
        edges = [edge_between(source, R), edge_between(R, target)]
    has_own_type = source.has_own_type or target.has_own_type
    return any(edge is not None and (_is_shaped(edge) or (edge.collectives and has_own_type)) for edge in edges)


def _is_shaped(edge: Edge) -> bool:
    """Return whether the cost of an edge depends on the shape of the local tensor."""
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
    """Return the cost of a declared edge, as `axis_price` does. If `edge.seconds` is declared, it is the time.

    The cost is NaN without the local type, if it depends on the shape.
    """
    has_own_type = bool(edge.collectives) and (source.has_own_type or target.has_own_type)
    if local is None and (has_own_type or _is_shaped(edge) or edge.bytes is not None):
        return Cost(math.nan, math.nan)
    sizes = None
    if has_own_type and local is not None and edge.bytes is None:
        sizes = _sizes_of_local_types(source, target, local, count)
    if sizes is None:
        sizes = _sizes(source, target, local_bytes, count)
    source_shape: list[int] = list(local.shape) if local is not None else []  # of the largest local tensor
    if source.dim is not None and source.dim < len(source_shape):
        source_shape[source.dim] = -(-source_shape[source.dim] // count)
    itemsize = local.dtype.itemsize if local is not None else ITEMSIZE
    collectives = edge_collectives(edge, sizes, source_shape, itemsize)
    total = _sum(cost(traffic, collective_sizes, nodes, topology) for traffic, collective_sizes in collectives)
    if edge.seconds is None or local is None or count == 1:
        return total
    return Cost(total.wire_bytes, edge.time(topology, source_shape, itemsize, count))


def _must_pass_replicated(source: Placement, target: Placement) -> bool:
    """Return whether the reshard must pass through R.

    This is necessary if `source` declares a step to R, or if `target` has no identity to combine with a shard.
    """
    has_no_identity = isinstance(target, PartialPlacement) and target.identity is None and source.trait == "shard"
    return has_no_identity or edge_between(source, R) is not None


def _sizes_of_local_types(source: Placement, target: Placement, local: TensorMeta, count: int) -> Sizes | None:
    """Return the sizes of a step if a placement computes its local types itself; None if it rejects the tensor.

    Args:
        local: the type of the local tensor as if this axis were replicated.
    """
    try:
        before, after = (
            max(TensorMeta(*local_type).bytes for local_type in side.local_types(local.shape, local.dtype, count))
            for side in (source, target)
        )
    except Exception:
        return None  # the search also prices placements that the value cannot have
    sends_different_parts = target.trait == "shard" and source.has_own_type  # to each peer
    chunk = before / count if sends_different_parts else min(before, after)
    return Sizes(count, before, after, chunk)


def _sizes(source: Placement, target: Placement, local_bytes: float, count: int) -> Sizes:
    """Return the sizes of a step over `count` ranks, as if all shards were equal."""
    shard = local_bytes / count
    before = shard if source.trait == "shard" else local_bytes
    after = shard if target.trait == "shard" else local_bytes
    sharded_dims = [placement.dim for placement in (source, target) if placement.trait == "shard"]
    dim = sharded_dims[0] if sharded_dims else None
    to_dim = sharded_dims[1] if len(sharded_dims) == 2 else None
    return Sizes(count, before, after, shard / count, dim, to_dim)  # all_to_all sends 1/count of the shard to each peer
