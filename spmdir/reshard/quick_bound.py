"""A lower bound on the time of a reshard from the lengths of shards alone, quick to find.

Latency: a rank ends up with what some number of ranks held, namely the shards that its own overlaps, of each a partial
value for every class that is to be reduced. A collective over n ranks multiplies by n at most the ranks that have had a
part in what one of them has, and takes n − 1 hops. So the latency is at least that of the cheapest sequence of
collectives over groups whose sizes multiply to the ranks that are needed. Bytes: what a rank needs and cannot hold.
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
    """The least that remains from any sharding of a tensor to one target.

    For placements of plug-ins, whose steps may take any number of hops, latency is that of no hop. With measured
    times, and with collectives whose cost does not keep bounds, the bound on seconds is 0.

    Args:
        shape: the global shape.
        itemsize: bytes of an element.
        collectives: those that plans may use.
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
        self._is_known = is_modelled and _is_standard(target)
        self._left = [axis for axis, _ in target.partial]
        self._together = mesh.group_size(self._left)
        self._need = self._lengths(target) if self._is_known else ()
        self._groups = _group_sizes(mesh)
        self._start = topology.base_latency if is_modelled else 0.0
        is_within_node = node_count(mesh.axis_names, mesh) == 1
        self._hop = topology.intra_latency if is_within_node else min(topology.intra_latency, topology.inter_latency)
        self._bandwidth = max(topology.intra_bandwidth, topology.inter_bandwidth) if is_modelled else math.inf

    def of(self, source: Sharding) -> tuple[float, float]:
        """Return the least seconds and the least bytes that a rank sends from `source` to the target."""
        if not self._is_known or not _is_standard(source):
            return 0.0, 0.0
        lengths = self._lengths(source)
        need, own = math.prod(self._need) / self._together, math.prod(lengths)
        reduces = any(axis not in self._left for axis, _ in source.partial)
        wire = self._itemsize * (need if reduces else max(need - own, 0.0))
        ranks = self._ranks(source, lengths)
        return (self._seconds(ranks, wire), wire) if wire or ranks > 1 else (0.0, 0.0)

    def seconds(self, source: Sharding, wire: float) -> float:
        """Return the least time of steps from `source` to the target that send something, `wire` bytes at the least."""
        if not self._is_known or not _is_standard(source):
            return self._start + wire / self._bandwidth
        return self._seconds(self._ranks(source, self._lengths(source)), wire)

    def _seconds(self, ranks: int, wire: float) -> float:
        """Return the least time of steps that send something, after which a rank has what `ranks` ranks had."""
        latency = _latency(ranks, self._groups, self._start, self._hop)
        return max(latency, self._start + self._hop) + wire / self._bandwidth

    def _ranks(self, source: Sharding, lengths: Sequence[int]) -> int:
        """Return how many ranks have a part in what the rank with most ends up with, at the least.

        Ranks that differ along axes on which the target is partial have a sum together.
        """
        overlapped = math.prod([-(-need // max(own, 1)) for own, need in zip(lengths, self._need, strict=True)])
        classes = math.prod([self._sizes[axis] for axis, _ in source.partial])
        return -(-overlapped * classes // self._together)

    def _lengths(self, sharding: Sharding) -> list[int]:
        """Return the most that a rank has of each dimension."""
        lengths = list(self._shape)
        for axis, placement in sharding.entries:
            if placement.dim is not None:
                lengths[placement.dim] = -(-lengths[placement.dim] // self._sizes[axis])
        return lengths


def _is_standard(sharding: Sharding) -> bool:
    return all(type(placement) in (Shard, Partial) for _, placement in sharding.entries)


@functools.lru_cache(maxsize=1024)
def _group_sizes(mesh: Mesh) -> tuple[int, ...]:
    """Return the numbers of ranks that a collective may be over."""
    sizes = {1}
    for _, size in mesh.axes:
        sizes |= {size * other for other in sizes}
    return tuple(sorted(sizes - {1}))


@functools.lru_cache(maxsize=4096)
def _latency(ranks: int, sizes: tuple[int, ...], start: float, hop: float) -> float:
    """Return the least latency of collectives over groups of some of `sizes` that multiply to `ranks` or more."""
    if ranks <= 1:
        return 0.0
    return min(start + (size - 1) * hop + _latency(-(-ranks // size), sizes, start, hop) for size in sizes)
