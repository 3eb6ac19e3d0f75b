"""A lower bound on the time of a reshard from the lengths of shards alone, quick to find.

Latency: a rank ends up with what some number of ranks held, namely the shards that its own overlaps, of each a partial
value for every class that is to be reduced. A collective over n ranks multiplies by n at most the ranks that have had a
part in what one of them has, and takes n − 1 hops. So the latency is at least that of the cheapest sequence of
collectives over groups whose sizes multiply to the ranks that are needed. Bytes: what a rank needs and cannot hold.
"""

from __future__ import annotations

import functools
import math

from spmdir.core.mesh import Mesh
from spmdir.core.placement.standard import Partial, Shard
from spmdir.core.sharding import Sharding
from spmdir.reshard.cost import local_shape, node_count
from spmdir.reshard.topology import Topology


def quick_bound(
    shape: tuple[int, ...], itemsize: float, source: Sharding, target: Sharding, mesh: Mesh, topology: Topology
) -> tuple[float, float]:
    """Return the least seconds and the least bytes that a rank sends from `source` to `target`.

    Args:
        shape: the global shape.
    """
    if not _is_standard(source, target):
        return 0.0, 0.0
    own, need = (math.prod(local_shape(side, shape, mesh)) for side in (source, target))
    left = [axis for axis, _ in target.partial]
    together, reduces = mesh.group_size(left), any(axis not in left for axis, _ in source.partial)
    wire = itemsize * (need / together if reduces else max(need / together - own, 0.0))
    if not wire and _ranks_needed(shape, source, target, mesh) <= 1:
        return 0.0, 0.0
    return least_seconds(wire, shape, source, target, mesh, topology), wire


def least_seconds(
    wire: float, shape: tuple[int, ...], source: Sharding, target: Sharding, mesh: Mesh, topology: Topology
) -> float:
    """Return the least time of steps from `source` to `target` that send something, `wire` bytes at the least.

    For placements of plug-ins, whose steps may take any number of hops, and with measured times, latency is that of
    no hop.
    """
    latency = topology.base_latency
    if topology.costs is None and _is_standard(source, target):
        is_within_node = node_count(mesh.axis_names, mesh) == 1
        hop = topology.intra_latency if is_within_node else min(topology.intra_latency, topology.inter_latency)
        ranks = _ranks_needed(shape, source, target, mesh)
        latency = max(_least_latency(ranks, _group_sizes(mesh), latency, hop), latency + hop)
    return latency + wire / max(topology.intra_bandwidth, topology.inter_bandwidth)


def _is_standard(*sides: Sharding) -> bool:
    return all(isinstance(placement, (Shard, Partial)) for side in sides for _, placement in side.entries)


def _ranks_needed(shape: tuple[int, ...], source: Sharding, target: Sharding, mesh: Mesh) -> int:
    """Return how many ranks have a part in what the rank with most ends up with, at the least.

    Ranks that differ along axes on which the target is partial have a sum together.
    """
    lengths = zip(local_shape(source, shape, mesh), local_shape(target, shape, mesh), strict=True)
    overlapped = math.prod(-(-need // max(own, 1)) for own, need in lengths)
    classes = mesh.group_size(axis for axis, _ in source.partial)
    together = mesh.group_size(axis for axis, _ in target.partial)
    return -(-overlapped * classes // together)


@functools.cache
def _group_sizes(mesh: Mesh) -> tuple[int, ...]:
    """Return the numbers of ranks that a collective may be over."""
    sizes = {1}
    for _, size in mesh.axes:
        sizes |= {size * other for other in sizes}
    return tuple(sorted(sizes - {1}))


@functools.cache
def _least_latency(ranks: int, sizes: tuple[int, ...], start: float, hop: float) -> float:
    """Return the least latency of collectives over groups of some of `sizes` that multiply to `ranks` or more."""
    if ranks <= 1:
        return 0.0
    return min(start + (size - 1) * hop + _least_latency(-(-ranks // size), sizes, start, hop) for size in sizes)
