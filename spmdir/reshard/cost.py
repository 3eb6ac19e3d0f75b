"""What a step costs: ring-model wire bytes a rank sends, and alpha–beta seconds on a topology.

Bytes are those of the busiest rank: under uneven division the rank with the largest piece, to which all_gather and
reduce_scatter pad the others.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import attrs

from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import edge_between
from spmdir.core.sharding import Sharding
from spmdir.reshard.bound import lower_bound
from spmdir.reshard.exchange import exchange_loads, least_received
from spmdir.reshard.parts import Loads
from spmdir.reshard.steps import Step
from spmdir.reshard.topology import H100X8, Topology
from spmdir.reshard.two_round_exchange import relay_loads


@attrs.frozen
class Sizes:
    """What a step handles on the busiest rank.

    Attributes:
        group: the number of ranks in a group.
        source: local bytes before.
        target: local bytes after.
        piece: bytes that one rank sends to one other in a direct exchange; for all_to_all. For halo and fold, those of
            both borders.
        dim, to_dim: as in Step.
        moved, crossing: for exchange and relay, bytes that the busiest rank sends or receives, in all and to or from
            other nodes; over all rounds. What crosses in other steps follows from what they send.
    """

    group: int
    source: float
    target: float
    piece: float = 0
    dim: int | None = None
    to_dim: int | None = None
    moved: float = 0
    crossing: float | None = None


@attrs.frozen
class Traffic:
    """The cost of one kind of step.

    Attributes:
        wire: bytes a rank sends. Ring all-gather and reduce-scatter pass n − 1 pieces on, ring all-reduce is one
            after the other; all-to-all sends a piece to every other rank, at most all that a rank holds.
        copied: bytes that are copied locally beside that: pieces along a dimension other than the first are packed or
            unpacked, and all but one of them while others are on the wire.
        crossing: (ranks, nodes) → the part of a rank's bytes that leaves its node; None where nothing is sent.
        passes: how often the data goes round the ring; 0 where ranks exchange directly.
        rounds: how many collectives it takes, one after the other.
    """

    wire: Callable[[Sizes], float] = lambda s: 0.0
    copied: Callable[[Sizes], float] = lambda s: 0.0
    crossing: Callable[[int, int], float] | None = None
    passes: int = 0
    rounds: int = 1


def _ring(ranks: int, nodes: int) -> float:
    """Ranks of a node are neighbours on the ring, so its cards share one way out."""
    return (nodes - 1) / (ranks - 1)


def _direct(ranks: int, nodes: int) -> float:
    """The peers on other nodes."""
    return (ranks - ranks // nodes) / (ranks - 1)


def _whole(ranks: int, nodes: int) -> float:
    """All that some rank holds may go to another node."""
    return float(nodes > 1)


TRAFFIC: dict[str, Traffic] = {
    "slice": Traffic(copied=lambda s: s.target if s.dim else 0.0),
    "partition": Traffic(copied=lambda s: s.target),
    "all_gather": Traffic(
        wire=lambda s: (s.group - 1) * s.source,
        copied=lambda s: s.source if s.dim else 0.0,
        crossing=_ring,
        passes=1,
    ),
    "reduce_scatter": Traffic(
        wire=lambda s: (s.group - 1) * s.target,
        copied=lambda s: s.target if s.dim else 0.0,
        crossing=_ring,
        passes=1,
    ),
    "all_reduce": Traffic(wire=lambda s: 2 * (s.group - 1) * s.source / s.group, crossing=_ring, passes=2),
    "all_to_all": Traffic(
        wire=lambda s: min((s.group - 1) * s.piece, max(s.source, s.target)),
        copied=lambda s: s.piece * (bool(s.to_dim) + bool(s.dim)),
        crossing=_direct,
    ),
    "permute": Traffic(wire=lambda s: s.source, crossing=_whole),
    "halo": Traffic(wire=lambda s: s.piece, crossing=_whole),
    "fold": Traffic(wire=lambda s: s.piece, crossing=_whole),
    "exchange": Traffic(wire=lambda s: s.moved, copied=lambda s: s.target, crossing=_direct),
    "rearrange": Traffic(copied=lambda s: s.target),
    "relay": Traffic(wire=lambda s: s.moved, copied=lambda s: s.target + s.moved, crossing=_direct, rounds=2),
    "local": Traffic(),
    "broadcast": Traffic(wire=lambda s: s.source, crossing=_whole),
}
"""Kind of step → its cost."""


def local_bytes(sharding: Sharding, shape: Sequence[int], itemsize: float, mesh: Mesh) -> float:
    """Bytes of the largest local piece of a tensor of global `shape` with elements of `itemsize` bytes."""
    return itemsize * math.prod(_length(sharding, dim, size, mesh) for dim, size in enumerate(shape))


@attrs.frozen
class Cost:
    """Bytes that a rank sends, and modelled time."""

    wire_bytes: float
    seconds: float


def step_cost(step: Step, shape: Sequence[int], itemsize: int, mesh: Mesh, topology: Topology = H100X8) -> Cost:
    """The cost of `step` on a tensor of global `shape` with elements of `itemsize` bytes."""
    kind, sent = billed(step, itemsize, mesh)
    return cost(kind, step_sizes(step, shape, sent, mesh), node_count(step.axes, mesh), topology)


def billed(step: Step, itemsize: float, mesh: Mesh) -> tuple[str, float]:
    """The kind of collective that `step` costs as, and the bytes that it sends for an element of `itemsize` bytes."""
    if step.kind != "convert" or not step.axes:
        return step.kind, itemsize
    edge = edge_between(*step.ends(mesh))
    assert edge is not None  # or the step would not be legal
    return edge.by or "local", itemsize if edge.itemsize is None else edge.itemsize


def cost(kind: str, sizes: Sizes, nodes: int, topology: Topology) -> Cost:
    """The cost of a step over groups that span `nodes` nodes; nothing for a group of one rank.

    Time is latency + the slower of the two networks + local copies. A ring over n ranks on N nodes takes n − 1 hops a
    pass, N − 1 of them between nodes; a direct exchange takes one.
    """
    if sizes.group == 1:
        return Cost(0.0, 0.0)
    traffic = TRAFFIC[kind]
    copies = 2 * traffic.copied(sizes) / topology.memory_bandwidth
    if traffic.crossing is None or (kind in LOADS and not sizes.moved):
        return Cost(0.0, copies)
    hops = traffic.passes * (sizes.group - 1) or 1
    inter_hops = traffic.passes * (nodes - 1) if traffic.passes else int(nodes > 1)
    latency = topology.base_latency + (hops - inter_hops) * topology.intra_latency + inter_hops * topology.inter_latency
    wire = traffic.wire(sizes)
    crossing = wire * traffic.crossing(sizes.group, nodes) if sizes.crossing is None else sizes.crossing
    transfer = max(wire / topology.intra_bandwidth, crossing / topology.inter_bandwidth)
    return Cost(wire, traffic.rounds * latency + transfer + copies)


def sends_anything(step: Step, shape: Sequence[int], mesh: Mesh) -> bool:
    """Return whether some rank sends something for `step` on a tensor of global `shape`: whether it is no local op."""
    if step.kind in LOADS:
        return any(LOADS[step.kind](step.source, step.target, mesh, tuple(shape)))
    return mesh.group_size(step.axes) > 1 and TRAFFIC[billed(step, 1, mesh)[0]].crossing is not None


def node_count(axes: Sequence[str], mesh: Mesh) -> int:
    """The number of nodes that a group over `axes` spans."""
    if mesh.intra_node is None:
        return 1
    fine = mesh.refine(axes)
    parts = (part for axis in axes for part in fine.parts(axis))
    return fine.group_size(part for part in parts if part not in (fine.intra_node or ()))


def least_cost(step: Step, shape: Sequence[int], itemsize: float, mesh: Mesh, topology: Topology) -> Cost:
    """The cost of an exchange or relay that sends as little as any, none of it to other nodes.

    It is quick to find, for what each rank gives each other one is not. Bytes are those of the lower bound, or, in the
    one round of an exchange, all addends of what some rank needs.
    """
    wire = lower_bound(tuple(shape), itemsize, step.source, step.target, mesh)
    if step.kind == "exchange":
        wire = max(wire, itemsize * least_received(step.source, step.target, mesh, shape))
    sizes = attrs.evolve(_sizes(step, shape, itemsize, mesh), moved=wire, crossing=0.0)
    return cost(step.kind, sizes, node_count(step.axes, mesh), topology)


def step_sizes(step: Step, shape: Sequence[int], itemsize: float, mesh: Mesh) -> Sizes:
    """What `step` handles of a tensor of global `shape` with elements of `itemsize` bytes."""
    sizes = _sizes(step, shape, itemsize, mesh)
    if step.kind not in LOADS:
        return sizes
    moved, crossing = _exchanged(step, tuple(shape), mesh)
    return attrs.evolve(sizes, moved=moved * itemsize, crossing=crossing * itemsize)


def _sizes(step: Step, shape: Sequence[int], itemsize: float, mesh: Mesh) -> Sizes:
    source = local_bytes(step.source, shape, itemsize, mesh)
    target = local_bytes(step.target, shape, itemsize, mesh)
    piece = 0
    if step.to_dim is not None and source:
        whole = _length(step.source, step.to_dim, shape[step.to_dim], mesh)
        piece = source // whole * _length(step.target, step.to_dim, shape[step.to_dim], mesh)
    if step.kind == "convert":
        # A piece is what a rank ends up with, or of what it has, if it has a piece, a part for each rank.
        pieces = mesh.group_size(step.axes) if all(end.trait == "shard" for end in step.ends(mesh)) else 1
        piece = min(source, target) / pieces
    return Sizes(mesh.group_size(step.axes), source, target, piece, step.dim, step.to_dim)


LOADS: dict[str, Callable[[Sharding, Sharding, Mesh, tuple[int, ...]], list[Loads]]] = {
    "exchange": exchange_loads,
    "relay": relay_loads,
}
"""Kind of step → what each rank sends each other one, in each of its rounds."""


@functools.lru_cache(maxsize=4096)
def _exchanged(step: Step, shape: tuple[int, ...], mesh: Mesh) -> tuple[int, int]:
    """Elements that the busiest rank of each round sends or receives: in all, and to or from other nodes."""
    outside = [axis for axis in mesh.axis_names if mesh.intra_node is not None and axis not in mesh.intra_node]
    busiest = [0, 0]
    for loads in LOADS[step.kind](step.source, step.target, mesh, shape):
        totals: tuple[dict[object, int], dict[object, int]] = ({}, {})
        for (sender, receiver), numel in loads.items():
            crosses = bool(outside) and mesh.index(sender, outside) != mesh.index(receiver, outside)
            for total in totals[: 1 + crosses]:
                for end in (("sends", sender), ("receives", receiver)):
                    total[end] = total.get(end, 0) + numel
        busiest = [most + max(total.values(), default=0) for most, total in zip(busiest, totals, strict=True)]
    return busiest[0], busiest[1]


def _length(sharding: Sharding, dim: int, size: int, mesh: Mesh) -> int:
    """The length of the largest piece of a dimension."""
    return max(sharding.lengths(dim, size, mesh))
