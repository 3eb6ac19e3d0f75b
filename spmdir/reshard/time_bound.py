"""A quick lower bound on the time of a reshard, from the lengths of shards alone.

Latency: say a rank must end up with data from k ranks: the shards that its own shard overlaps, times the partial values
of each. A collective over n ranks takes n − 1 hops, and multiplies the number of ranks that have contributed to the
data of a rank by at most n. An all-reduce along a tree over nodes takes at least 2 · log2(n) hops. So the bound is the
cheapest sequence of groups whose sizes multiply to at least k.

For example, an all-reduce over the mesh (a = 4, b = 4), inside one node of `h100x8`, has k = 16. A group has 4 or 16
ranks. A collective of the protocol LL costs 6.6 µs plus 0.6 µs for each hop:

    one group of 16      6.6 + 15 · 0.6 = 15.6 µs: the bound
    two groups of 4      2 · (6.6 + 3 · 0.6) = 16.8 µs

Bytes: the part of its target shard that a rank cannot have at the start. The time of a collective is concave in its
bytes, because it is the least over protocols. So the sum over a sequence is least if one collective sends all bytes,
and the bound is the least over protocols and groups of that collective.

The argument extends the bound of log2(p) · α for broadcast and reduce in Chan, Heimlich, Purkayastha and van de Geijn,
"Collective communication: theory, practice, and experience" (2007).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.standard import Partial, Shard
from spmdir.reshard.collective_spec import CollectiveSpec
from spmdir.reshard.collectives import PLANNED, keep_bounds
from spmdir.reshard.cost import node_count
from spmdir.reshard.topology import Topology


class QuickBound:
    """Lower bounds from any sharding of a tensor to one target.

    Steps of plug-in placements may take any number of hops, so their bound on latency has no hops. The bound on seconds
    is 0 if times are measured, or if a collective has no `keeps_bounds`.

    Args:
        shape: the global shape.
        itemsize: bytes of an element.
        target: the sharding to which all bounds apply.
        collectives: the collectives that plans may use.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        itemsize: float,
        target: Sharding,
        mesh: Mesh,
        topology: Topology,
        collectives: tuple[CollectiveSpec, ...] = PLANNED,
    ):
        is_modelled = topology.costs is None and keep_bounds(collectives)
        self._shape, self._itemsize, self._sizes = shape, itemsize, mesh.sizes
        self._is_known = is_modelled and _is_standard(target)  # otherwise the bound is 0, or has no hops
        self._target_partial = [axis for axis, _ in target.partial]
        self._target_partial_count = mesh.group_size(self._target_partial)
        self._target_lengths = self._lengths(target) if self._is_known else ()  # of the largest shard, by dimension
        self._groups = _group_sizes(mesh)
        # Without a model, one protocol that takes no time makes all bounds on seconds 0.
        self._protocols = _protocols(mesh, topology) if is_modelled else ((0.0, 0.0, 0.0),)
        self._has_trees = bool(topology.tree_efficiency) and node_count(mesh.axis_names, mesh) > 1

    def of(self, source: Sharding) -> tuple[float, float]:
        """Return lower bounds on the seconds, and on the bytes that a rank sends, from `source` to the target.

        Both are 0 if a placement of either side is not standard. For example, 16 elements of 4 bytes go from `a: S(0)`
        on 4 ranks to R. A rank has 4 elements and needs 16, so it receives at least 48 bytes, from 4 ranks.
        """
        if not self._is_known or not _is_standard(source):
            return 0.0, 0.0
        source_lengths = self._lengths(source)
        # The ranks along the target's partial axes may receive an equal part of the target shard each.
        target_numel = math.prod(self._target_lengths) / self._target_partial_count
        # A sum is not on any rank before. Without a reduction, a rank may have as much of it as its source shard.
        reduces = any(axis not in self._target_partial for axis, _ in source.partial)
        received = target_numel if reduces else max(target_numel - math.prod(source_lengths), 0.0)
        wire = self._itemsize * received
        ranks = self._ranks(source, source_lengths)
        return (self._seconds(ranks, wire), wire) if wire or ranks > 1 else (0.0, 0.0)

    def seconds(self, source: Sharding, wire: float) -> float:
        """Return a lower bound on the seconds of plans from `source` to the target that send at least `wire` bytes."""
        is_known = self._is_known and _is_standard(source)
        if not is_known:
            return min(start + wire * per_byte for start, _, per_byte in self._protocols)
        return self._seconds(self._ranks(source, self._lengths(source)), wire)

    def _seconds(self, ranks: int, wire: float) -> float:
        """Return a lower bound on the seconds to collect data from `ranks` ranks and send `wire` bytes."""
        latencies = _latencies(ranks, self._groups, self._protocols, self._has_trees)
        protocols = zip(latencies, self._protocols, strict=True)
        return min(latency + wire * per_byte for latency, (_, _, per_byte) in protocols)

    def _ranks(self, source: Sharding, source_lengths: Sequence[int]) -> int:
        """Return a lower bound on the number of ranks that contribute to the largest target shard.

        Ranks that differ only along the target's partial axes receive these contributions together.

        Args:
            source_lengths: the length of the largest source shard in each dimension.
        """
        overlapped_shards = math.prod(
            [-(-target // max(source, 1)) for source, target in zip(source_lengths, self._target_lengths, strict=True)]
        )
        partial_values = math.prod([self._sizes[axis] for axis, _ in source.partial])
        return -(-overlapped_shards * partial_values // self._target_partial_count)

    def _lengths(self, sharding: Sharding) -> list[int]:
        """Return the length of the largest shard of each dimension, for standard placements."""
        lengths = list(self._shape)
        for axis, placement in sharding.entries:
            if placement.dim is not None:
                lengths[placement.dim] = -(-lengths[placement.dim] // self._sizes[axis])
        return lengths


def _is_standard(sharding: Sharding) -> bool:
    """Return whether all placements of a sharding are those of DTensor."""
    return all(type(placement) in (Shard, Partial) for _, placement in sharding.entries)


@functools.lru_cache(maxsize=1024)
def _group_sizes(mesh: Mesh) -> tuple[int, ...]:
    """Return the possible group sizes of collectives: products of axis sizes."""
    sizes = {1}
    for _, size in mesh.axes:
        sizes |= {size * known_size for known_size in sizes}
    return tuple(sorted(sizes - {1}))


Protocols = tuple[tuple[float, float, float], ...]
"""For each protocol the seconds to start a collective, of a hop, and of a byte."""


def most_seconds_per_byte(mesh: Mesh, topology: Topology) -> float:
    """Return the most seconds by which one more byte raises the bound: those of the slowest protocol."""
    return max(per_byte for _, _, per_byte in _protocols(mesh, topology))


@functools.lru_cache(maxsize=1024)
def _protocols(mesh: Mesh, topology: Topology) -> Protocols:
    """Return the constants of each protocol, on the faster of the links that `mesh` may use."""
    is_within_node = node_count(mesh.axis_names, mesh) == 1
    bandwidth = max(topology.intra_bandwidth, topology.inter_bandwidth)
    constants = []
    for protocol in topology.all_protocols:
        hop, limit = protocol.intra_latency, protocol.intra_limit
        if not is_within_node:
            hop, limit = min(hop, protocol.inter_latency), max(limit, protocol.inter_limit)
        constants.append((protocol.base_latency, hop, 1 / min(protocol.efficiency * bandwidth, limit)))
    return tuple(constants)


@functools.lru_cache(maxsize=4096)
def _latencies(ranks: int, sizes: tuple[int, ...], protocols: Protocols, has_trees: bool) -> tuple[float, ...]:
    """Return for each protocol the least latency of collectives that reach `ranks` ranks, if one of them uses it.

    The collective that uses the protocol sends all bytes. Its group has one of `sizes`, and the other collectives have
    to reach `ranks / size` ranks. Or it sends to one peer in one hop, and the others have to reach all `ranks`. For
    example, 16 ranks have to be reached and groups have 4 ranks: one group of 4 sends the bytes, and another group of 4
    has latency only.
    """
    latency_without_group = _latency(ranks, sizes, protocols, has_trees)
    hops_and_other_latency = [
        (_hops(size, has_trees), _latency(-(-ranks // size), sizes, protocols, has_trees)) for size in sizes
    ]
    latencies = []
    for start, hop, _ in protocols:
        over_groups = [hops * hop + other_latency for hops, other_latency in hops_and_other_latency]
        latencies.append(start + min([hop + latency_without_group, *over_groups]))
    return tuple(latencies)


@functools.lru_cache(maxsize=4096)
def _latency(ranks: int, sizes: tuple[int, ...], protocols: Protocols, has_trees: bool) -> float:
    """Return the least latency of collectives whose group sizes, out of `sizes`, multiply to at least `ranks`."""
    if ranks <= 1:
        return 0.0
    return min(
        start + _hops(size, has_trees) * hop + _latency(-(-ranks // size), sizes, protocols, has_trees)
        for size in sizes
        for start, hop, _ in protocols
    )


def _hops(size: int, has_trees: bool) -> int:
    """Return the fewest hops of a collective over `size` ranks: once round a ring, or up and down a tree of nodes."""
    return min(size - 1, 2 * (size.bit_length() - 1)) if has_trees else size - 1
