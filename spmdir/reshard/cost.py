"""The cost of a step: the wire bytes of the ring model, and the seconds of the alpha–beta model on a topology.

Bytes are those of the busiest rank: the one with the largest chunk. all_gather and reduce_scatter pad other chunks.

For example, an all-gather of 80 MB along dimension 0 over 8 ranks, on a node of `h100x8`:

    wire bytes = (8 − 1) · 10000000 = 70000000
    seconds = base 8.4e-6 + 7 hops · 3.4e-6 + 70000000 / 360e9 = 2.266e-04

Sources: the ring model as nccl-tests counts bytes (`doc/PERFORMANCE.md` of that project); R. W. Hockney, "The
communication challenge for MPP" (1994) for alpha (latency) and beta (seconds for each byte).
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence

import attrs

from spmdir.core.dtype import F32, of_size
from spmdir.core.errors import ShardingError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Edge, edge_between
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.tensor import TensorMeta
from spmdir.reshard.byte_bound import lower_bound
from spmdir.reshard.collective_spec import CollectiveSpec
from spmdir.reshard.collectives import collective
from spmdir.reshard.exchange import exchange_loads, least_received, reduced_axes
from spmdir.reshard.exchange_sums import sums_of_sole_senders
from spmdir.reshard.steps import Step
from spmdir.reshard.topology import DEFAULT, Topology
from spmdir.reshard.traffic import Sizes, Traffic, anywhere, direct

_TO_NEIGHBOURS = Traffic(wire=lambda s: s.source, crossing=anywhere)
"""The traffic of `spmd.halo`, `spmd.halo_reduce` and `spmd.rotate`."""

_TO_EXPERTS = Traffic(
    wire=lambda s: s.source,
    crossing=direct,
    passes=1,
    sends_at_once=True,
    name="all_to_all",
)
"""The traffic of `spmd.exchange_rows` and `spmd.exchange_counts`."""


def local_bytes(sharding: Sharding, shape: Sequence[int], itemsize: float, mesh: Mesh) -> float:
    """Return the bytes of the largest local tensor of a tensor of global `shape` with elements of `itemsize` bytes.

    A placement may compute the local type itself. Then its element type counts.
    """
    if sharding.has_own_type:
        local_types = sharding.local_types(TensorMeta(tuple(shape), of_size(itemsize)), mesh)
        return max(local.bytes for local in local_types)
    return itemsize * math.prod(local_shape(sharding, shape, mesh))


def local_shape(sharding: Sharding, shape: Sequence[int], mesh: Mesh) -> tuple[int, ...]:
    """Return the shape of the largest local tensor of a tensor of global `shape`."""
    return _local_shape(sharding, tuple(shape), mesh)


@functools.lru_cache(maxsize=65536)
def _local_shape(sharding: Sharding, shape: tuple[int, ...], mesh: Mesh) -> tuple[int, ...]:
    """Return the result of `local_shape`.

    If a placement computes the local type itself, the shape may depend on the element type, and f32 is assumed.
    """
    if sharding.has_own_type:
        return max(sharding.local_types(TensorMeta(shape, F32), mesh), key=lambda local: local.numel).shape
    return tuple(_length(sharding, dim, size, mesh) for dim, size in enumerate(shape))


@attrs.frozen
class Cost:
    """The cost of a step: the bytes that a rank sends, and the seconds.

    Attributes:
        wire_bytes: bytes that a rank sends.
        seconds: the time of the step, without overlap.
        measured: the lines of the table of costs that contain the time, such as `costs.txt:3`; empty if it is modelled.
    """

    wire_bytes: float
    seconds: float
    measured: str = ""


@attrs.frozen
class Terms:
    """The parts of the seconds of a `Cost`, such as latency and local copies.

    Attributes:
        wire_bytes: bytes that a rank sends.
        latency: seconds without a busy link, over all rounds.
        intra, inter: busy seconds of the links within nodes, and of those between nodes.
        copies, launches: seconds of local memory traffic, and of kernel launches.
        packing: the part of `copies` and `launches` before the transfer.
        measured: as in Cost. A measured time is divided into latency, in its modelled proportion, and busy links.
    """

    wire_bytes: float = 0.0
    latency: float = 0.0
    intra: float = 0.0
    inter: float = 0.0
    copies: float = 0.0
    launches: float = 0.0
    packing: float = 0.0
    measured: str = ""

    @property
    def seconds(self) -> float:
        """Return the time of the step, without overlap."""
        return self.latency + self.launches + max(self.intra, self.inter) + self.copies

    @property
    def unpacking(self) -> float:
        """Return the seconds of local work after the transfer."""
        return max(0.0, self.copies + self.launches - self.packing)

    @property
    def cost(self) -> Cost:
        """Return the bytes and the seconds as a Cost."""
        return Cost(self.wire_bytes, self.seconds, self.measured)


StepCollectives = Sequence[tuple[Traffic, Sizes]]
"""The collectives of a step in sequence: the traffic and the sizes of each."""


def step_cost(step: Step, shape: Sequence[int], itemsize: int, mesh: Mesh, topology: Topology = DEFAULT) -> Cost:
    """Return the cost of `step` on a tensor of global `shape` with elements of `itemsize` bytes; 0 if it is empty."""
    return step_terms(step, shape, itemsize, mesh, topology).cost


def step_terms(step: Step, shape: Sequence[int], itemsize: int, mesh: Mesh, topology: Topology = DEFAULT) -> Terms:
    """Return the parts of the time of `step`; the arguments are those of `step_cost`.

    If a declared edge has a measured or computed time, all of it counts as busy links within the node.
    """
    if 0 in shape:
        return Terms()
    nodes = node_count(step.axes, mesh)
    collective_terms = [
        terms(traffic, sizes, nodes, topology) for traffic, sizes in step_collectives(step, shape, itemsize, mesh)
    ]
    if step.spec.moves != "edge":
        return collective_terms[0]  # only an edge has several collectives
    edge, count = declared_edge(step, mesh), mesh.group_size(step.axes)
    if edge is not None and edge.seconds is not None and count > 1:
        wire = math.fsum(part.wire_bytes for part in collective_terms)
        return Terms(wire, intra=edge.time(topology, local_shape(step.source, shape, mesh), itemsize, count))
    return add_terms(collective_terms)


def add_terms(parts: Sequence[Terms]) -> Terms:
    """Return the terms of collectives in sequence. The busier kind of link counts as busy while either kind is.

    For example, two collectives with (intra, inter) of (3, 1) and (1, 2) seconds keep links busy for 3 + 2 seconds. The
    sums are 4 and 3, so the result is (5, 3).
    """
    if len(parts) == 1:
        return parts[0]
    names = ("wire_bytes", "latency", "intra", "inter", "copies", "launches", "packing")
    sums = {name: math.fsum(getattr(part, name) for part in parts) for name in names}
    busier = "intra" if sums["intra"] >= sums["inter"] else "inter"
    sums[busier] = math.fsum(max(part.intra, part.inter) for part in parts)
    measured = " ".join(dict.fromkeys(part.measured for part in parts if part.measured))
    return Terms(**sums, measured=measured)


def step_collectives(step: Step, shape: Sequence[int], itemsize: float, mesh: Mesh) -> StepCollectives:
    """Return the collectives of `step` on a tensor of global `shape`. Its cost is the sum of their costs."""
    edge = declared_edge(step, mesh)
    if edge is None:
        return [(step.spec.traffic, step_sizes(step, shape, itemsize, mesh))]
    sizes = step_sizes(step, shape, itemsize, mesh)
    return edge_collectives(edge, sizes, local_shape(step.source, shape, mesh), itemsize)


def declared_edge(step: Step, mesh: Mesh) -> Edge | None:
    """Return the edge that declares the cost of `step`; None if its collective declares it."""
    if step.spec.moves != "edge" or not step.axes:
        return None
    edge = edge_between(*step.ends(mesh))
    assert edge is not None  # a legal step has one
    return edge


def edge_collectives(edge: Edge, sizes: Sizes, shape: Sequence[int], itemsize: float) -> StepCollectives:
    """Return the collectives of an edge. Its cost is the sum of their costs.

    Args:
        sizes: the sizes of the edge with elements of `itemsize` bytes.
        shape: the local shape before.
    """
    traffics = [spec.traffic for spec in _specs(edge)]
    if edge.bytes is not None:
        # The edge declares how many bytes each of its collectives sends. Local copies are not counted.
        sent = edge.sent(shape, itemsize, sizes.group)
        return [
            (attrs.evolve(traffic, wire=_moved_bytes, **_NOT_COPIED), attrs.evolve(sizes, moved=sent_bytes))
            for traffic, sent_bytes in zip(traffics, sent, strict=True)
        ]
    if edge.itemsize is not None:
        scale = edge.itemsize / itemsize  # the edge sends elements of another size
        source, target, chunk = sizes.source * scale, sizes.target * scale, sizes.chunk * scale
        sizes = attrs.evolve(sizes, source=source, target=target, chunk=chunk)
    return [(traffic, sizes) for traffic in traffics]


_NOT_COPIED = {"copied": Traffic().copied, "packed": Traffic().packed, "kernels": Traffic().kernels}
"""The fields of a `Traffic` without local copies."""


def _specs(edge: Edge) -> list[CollectiveSpec]:
    """Return the collectives that `by` of an edge names.

    Raises:
        ShardingError: a collective is unknown. The location is that of the edge.
    """
    try:
        return [collective(name) for name in edge.collectives]
    except ShardingError as error:
        raise error.at(edge.place) from None


def _moved_bytes(sizes: Sizes) -> float:
    """Return the bytes that an edge declares; a value of `Traffic.wire`."""
    return sizes.moved


def cost(traffic: Traffic, sizes: Sizes, nodes: int, topology: Topology) -> Cost:
    """Return the cost of a step over groups that span `nodes` nodes; 0 for a group of one rank."""
    return terms(traffic, sizes, nodes, topology).cost


def terms(traffic: Traffic, sizes: Sizes, nodes: int, topology: Topology) -> Terms:
    """Return the terms of the time of a step over groups that span `nodes` nodes; 0 for a group of one rank.

    If the topology has a measured time for the step, that time is used. Otherwise, the time is latency, plus the slower
    of the two networks, plus local copies. It is the least over the protocols, and over ring and tree.
    """
    if sizes.group == 1:
        return Terms()
    copies = 2 * traffic.copied(sizes) / topology.memory_bandwidth  # each byte is read and written
    launches = traffic.kernels(sizes) * topology.launch_latency
    # A local collective, or an exchange in which each rank has all that it needs.
    sends_nothing = traffic.crossing is None or (sizes.crossing is not None and not sizes.moved)
    if sends_nothing:
        return Terms(copies=copies, launches=launches)
    wire = traffic.wire(sizes)
    latency, intra, inter = min(_transfers(traffic, sizes, wire, nodes, topology), key=_transfer_seconds)
    packed_bytes = traffic.packed(sizes)
    packing = 2 * packed_bytes / topology.memory_bandwidth + topology.launch_latency if packed_bytes else 0.0
    modelled = Terms(wire, latency, intra, inter, copies, launches, packing)
    return _measured_terms(modelled, traffic, sizes.group, nodes, topology) or modelled


def _measured_terms(modelled: Terms, traffic: Traffic, ranks: int, nodes: int, topology: Topology) -> Terms | None:
    """Return the measured time of a collective as terms; None if the topology has no measured time for it.

    The time is divided into latency and busy links in the proportion of the modelled terms. For example, a collective
    takes 10 µs by the model, 4 µs of them latency, and 20 µs by measurement. Then 8 µs are latency, and links are busy
    for 12 µs.
    """
    if topology.costs is None:
        return None
    wire = modelled.wire_bytes
    # The model as a line in the bytes, by which the table extrapolates beyond the measured sizes.
    fixed = modelled.latency + modelled.launches
    per_byte = (max(modelled.intra, modelled.inter) + modelled.copies) / wire if wire else 0.0
    measured = topology.costs.collective(traffic.name, ranks, nodes, wire, lambda sent: fixed + per_byte * sent)
    if measured is None:
        return None
    modelled_seconds = fixed + per_byte * wire
    latency = measured.seconds * modelled.latency / modelled_seconds if modelled_seconds else 0.0
    busy = measured.seconds - latency
    intra, inter = (0.0, busy) if modelled.inter > modelled.intra else (busy, 0.0)
    return Terms(wire, latency, intra, inter, measured=measured.place)


def inner_terms(op: str, size: float, ranks: int, nodes: int, topology: Topology) -> Terms:
    """Return the terms of an op that occurs only inside local forms, not in reshards.

    Args:
        op: `spmd.halo`, `spmd.halo_reduce`, `spmd.rotate`, `spmd.exchange_rows`, `spmd.exchange_slots` or
            `spmd.exchange_counts`.
        size: bytes that a rank sends; if it sends rows, with a balanced router.
        ranks, nodes: of a group.
    """
    if op == "spmd.exchange_rows":
        size *= topology.imbalance
    traffic = _TO_EXPERTS if op.startswith("spmd.exchange_") else _TO_NEIGHBOURS
    inner = terms(traffic, Sizes(ranks, size, size), nodes, topology)
    if op != "spmd.exchange_counts" or ranks == 1:
        return inner
    # The host copies the counts of the rows that it sends, and of those that it receives.
    return attrs.evolve(inner, latency=inner.latency + 2 * topology.host_latency)


Transfer = tuple[float, float, float]
"""The latency of a message, and the seconds for which links within nodes, and between nodes, are busy."""


def _transfer_seconds(transfer: Transfer) -> float:
    """Return the time of a transfer: its latency, then the busier kind of link."""
    latency, intra, inter = transfer
    return latency + max(intra, inter)


def _transfers(traffic: Traffic, sizes: Sizes, wire: float, nodes: int, topology: Topology) -> Iterator[Transfer]:
    """Yield the transfers of a collective by each protocol: round a ring or to all peers, then along a tree.

    For example, an all-reduce of 1 MiB over 8 ranks in one node of `h100x8` takes the protocol LL, and a wire of
    2 · 7/8 MiB. The other protocols take more:

        LL       6.6 + 14 · 0.6 µs + 1.835 MB / 141 GB/s = 28.0 µs
        LL128   14.0 + 14 · 1.9 µs + 1.835 MB / 331 GB/s = 46.1 µs
        Simple   8.4 + 14 · 3.4 µs + 1.835 MB / 360 GB/s = 61.1 µs

    Sources: `ncclTopoTuneModel` in `src/graph/tuning.cc` of NCCL 2.30 for rings and trees; P. Sanders, J. Speck and
    J. L. Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan" (2009) for trees.
    """
    assert traffic.crossing is not None  # the collective is not local
    group, inter_fraction = sizes.group, traffic.crossing(sizes.group, nodes)
    inter_bytes = wire * inter_fraction if sizes.crossing is None else sizes.crossing
    # All hops of a message from rank to rank, and those of them that lead to another node.
    hops, inter_hops = 1.0, inter_fraction
    if traffic.passes:
        hops = traffic.passes * (group - 1)
        inter_hops_of_pass = math.floor((group - 1) * inter_fraction + 1e-9)  # 1e-9 exceeds rounding errors
        if traffic.sends_at_once:
            inter_hops_of_pass = int(nodes > 1)  # the hops to other nodes run at the same time
        inter_hops = float(traffic.passes * inter_hops_of_pass)
    for protocol in topology.all_protocols:
        limit = protocol.intra_limit if nodes == 1 else protocol.inter_limit
        intra_rate = min(protocol.efficiency * topology.intra_bandwidth, limit)
        inter_rate = protocol.efficiency * topology.inter_bandwidth
        hop, inter_hop = protocol.intra_latency, protocol.inter_latency  # seconds of one hop
        latency = protocol.base_latency + (hops - inter_hops) * hop + inter_hops * inter_hop
        yield latency * traffic.rounds, wire / intra_rate, inter_bytes / inter_rate
        if nodes > 1 and traffic.may_use_tree and topology.tree_efficiency:
            # Each byte goes to the root and back: along the ranks of a node, and along the levels of a tree of nodes.
            node_ranks = group // nodes
            tree_bytes = wire * group / (group - 1) / topology.tree_efficiency
            latency = protocol.base_latency + 2 * ((node_ranks - 1) * hop + math.floor(math.log2(nodes)) * inter_hop)
            yield latency, tree_bytes / intra_rate, tree_bytes / node_ranks / inter_rate


def sends_anything(step: Step, shape: Sequence[int], mesh: Mesh) -> bool:
    """Return whether `step` sends anything on a tensor of global `shape`. If not, it is a local op."""
    if step.spec.loads is not None:
        return _busiest_rank_elements(step, tuple(shape), mesh).total > 0
    edge = declared_edge(step, mesh)
    traffics = [step.spec.traffic] if edge is None else [spec.traffic for spec in _specs(edge)]
    return mesh.group_size(step.axes) > 1 and any(traffic.crossing is not None for traffic in traffics)


@functools.lru_cache(maxsize=4096)
def node_count(axes: tuple[str, ...], mesh: Mesh) -> int:
    """Return the number of nodes that a group over `axes` spans; 1 if the mesh does not name the axes within nodes."""
    if mesh.intra_node is None:
        return 1
    fine = mesh.refine(axes)
    parts = (part for axis in axes for part in fine.parts(axis))
    return fine.group_size(part for part in parts if part not in (fine.intra_node or ()))


def least_cost(step: Step, shape: Sequence[int], itemsize: float, mesh: Mesh, topology: Topology) -> Cost:
    """Return a lower bound on the cost of an exchange or two-round exchange, without counts for each rank.

    Bytes are those of the lower bound. In an exchange of one round, they are at least all partial values that one rank
    receives.
    """
    wire = lower_bound(tuple(shape), itemsize, step.source, step.target, mesh) or 0.0
    traffic = step.spec.traffic
    if traffic.rounds == 1:
        wire = max(wire, itemsize * least_received(step.source, step.target, mesh, shape))
    crossing = _least_crossing(step, tuple(shape), itemsize, mesh, wire)
    sizes = attrs.evolve(_sizes(step, shape, itemsize, mesh), moved=wire, crossing=crossing)
    return cost(traffic, sizes, node_count(step.axes, mesh), topology)


def _least_crossing(step: Step, shape: tuple[int, ...], itemsize: float, mesh: Mesh, wire: float) -> float:
    """Return a lower bound on the bytes that the busiest rank exchanges with other nodes.

    The ranks of a node share what the node sends and receives. A node acts as one rank that has and needs all that its
    ranks do. For example, 8 ranks in 2 nodes gather 800 bytes from `node: S(0), gpu: S(0)`. Each node lacks 400 bytes,
    so one of its 4 ranks receives at least 100 of them from the other node.

    Args:
        wire: a lower bound on the bytes that the busiest rank sends or receives.
    """
    if mesh.intra_node is None or not mesh.sizes.keys() >= set(step.axes):
        return 0.0
    inside = [axis for axis in step.axes if axis in mesh.intra_node]
    if not inside:
        return wire  # all peers are on other nodes
    outside = [(axis, size) for axis, size in mesh.axes if axis not in inside]
    source, target = (_between_nodes(sharding, inside) for sharding in (step.source, step.target))
    if mesh.root is not None or not outside or source is None or target is None:
        return 0.0
    return (lower_bound(shape, itemsize, source, target, Mesh(outside)) or 0.0) / mesh.group_size(inside)


def _between_nodes(sharding: Sharding, inside: Collection[str]) -> Sharding | None:
    """Return the sharding of what the ranks along the axes `inside` have together.

    It is None if one of these axes is not innermost in its dimension: the elements of its ranks are not one shard.
    """
    for dim in {placement.dim for _, placement in sharding.entries if placement.dim is not None}:
        is_inside = [axis in inside for axis in sharding.dim_axes(dim)]
        if is_inside != sorted(is_inside):  # False sorts before True
            return None
    return Sharding(tuple(entry for entry in sharding.entries if entry[0] not in inside), sharding.mesh)


def step_sizes(step: Step, shape: Sequence[int], itemsize: float, mesh: Mesh) -> Sizes:
    """Return the sizes of `step` on a tensor of global `shape` with elements of `itemsize` bytes, on the busiest rank.

    For an exchange, they include the bytes that the rank sends or receives.
    """
    sizes = _sizes(step, shape, itemsize, mesh)
    if step.spec.loads is None:
        return sizes
    elements = _busiest_rank_elements(step, tuple(shape), mesh)
    return attrs.evolve(sizes, moved=elements.total * itemsize, crossing=elements.inter_node * itemsize)


def _sizes(step: Step, shape: Sequence[int], itemsize: float, mesh: Mesh) -> Sizes:
    """Return the sizes of `step`, without the elements that an exchange moves."""
    source_bytes = local_bytes(step.source, shape, itemsize, mesh)
    target_bytes = local_bytes(step.target, shape, itemsize, mesh)
    chunk_bytes = 0
    if step.to_dim is not None and source_bytes:  # all_to_all sends each peer one chunk of the shard along `to_dim`
        source_length = _length(step.source, step.to_dim, shape[step.to_dim], mesh)
        target_length = _length(step.target, step.to_dim, shape[step.to_dim], mesh)
        chunk_bytes = source_bytes // source_length * target_length
    if step.spec.moves == "edge":
        chunk_bytes = _edge_chunk(step, source_bytes, target_bytes, mesh)
    combined = mesh.group_size(reduced_axes(step.source, step.target)) if step.spec.loads is not None else 1
    return Sizes(mesh.group_size(step.axes), source_bytes, target_bytes, chunk_bytes, step.dim, step.to_dim, combined)


def _edge_chunk(step: Step, source_bytes: float, target_bytes: float, mesh: Mesh) -> float:
    """Return the bytes that a rank sends to each peer in a direct exchange for a declared edge over n ranks.

    - From a placement that defines the local type, such as one with scales beside the elements, to a shard, each peer
      receives another part: 1/n of the local tensor before.
    - From shard to shard, each peer receives 1/n of the smaller local tensor.
    - Otherwise, all peers receive the same: the smaller local tensor.

    Args:
        source_bytes, target_bytes: the sizes of the local tensor before and after the step.
    """
    before, after = step.ends(mesh)
    ranks = mesh.group_size(step.axes)
    if after.trait == "shard" and before.has_own_type:
        return source_bytes / ranks
    if after.trait == "shard" and before.trait == "shard":
        return min(source_bytes, target_bytes) / ranks
    return min(source_bytes, target_bytes)


@attrs.frozen
class _BusiestRank:
    """The elements that the busiest rank of an exchange sends or receives: all, and those to or from other nodes.

    The busiest rank may be another one for each count and each round.
    """

    total: int
    inter_node: int


@functools.lru_cache(maxsize=4096)
def _busiest_rank_elements(step: Step, shape: tuple[int, ...], mesh: Mesh) -> _BusiestRank:
    """Return the elements that the busiest rank sends or receives, added over the rounds of an exchange.

    Sent and received elements are counted separately, because links work in both directions at once. For example, rank
    0 sends 4 elements to rank 1 and 2 to rank 2, which send nothing: the busiest rank sends 6.
    """
    node_axes = [axis for axis in mesh.axis_names if mesh.intra_node is not None and axis not in mesh.intra_node]
    if step.spec.loads is exchange_loads and (sums := sums_of_sole_senders(step, shape, mesh, node_axes)) is not None:
        return _BusiestRank(*sums)
    total, inter_node = 0, 0
    assert step.spec.loads is not None  # the caller checks this
    for loads in step.spec.loads(step.source, step.target, mesh, shape):
        # ("sent" or "received", rank) → elements
        elements, inter_node_elements = defaultdict[tuple[str, int], int](int), defaultdict[tuple[str, int], int](int)
        for (sender, receiver), numel in loads.items():
            elements["sent", sender] += numel
            elements["received", receiver] += numel
            if node_axes and mesh.index(sender, node_axes) != mesh.index(receiver, node_axes):
                inter_node_elements["sent", sender] += numel
                inter_node_elements["received", receiver] += numel
        total += max(elements.values(), default=0)
        inter_node += max(inter_node_elements.values(), default=0)
    return _BusiestRank(total, inter_node)


def _length(sharding: Sharding, dim: int, size: int, mesh: Mesh) -> int:
    """Return the length of the largest chunk of a dimension."""
    return max(sharding.lengths(dim, size, mesh))
