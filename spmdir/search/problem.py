"""What the sharding search decides, as plain tables: values, the nodes that make and use them, what is fixed.

A node has *strategies*: for one mesh axis, the placements it requires of its operands and the placements its results
get. An op has the strategies of its rule; an input, a constraint and an output have one for each legal placement.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Protocol

import attrs

from spmdir.core.errors import ShardingError, SpmdirError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Placement, ShardPlacement, runs_of
from spmdir.core.placement.standard import Partial, R, Shard
from spmdir.core.sharding import Sharding
from spmdir.core.tensor import TensorMeta
from spmdir.reshard.collective_spec import CollectiveSpec
from spmdir.reshard.collectives import PLANNED
from spmdir.reshard.topology import DEFAULT, Topology
from spmdir.rules.language.syntax_tree import TextStrategy
from spmdir.rules.strategies.strategy import ShardCounts
from spmdir.search.work import NO_WORK, Work


@attrs.frozen
class NodeStrategy:
    """One choice of a node on one axis.

    Attributes:
        operands: the required placement of each operand.
        results: the placement of each result.
        factors: the factors that are sharded.
        inner_bytes: (bytes, factors) of the values that the choice all-reduces inside the op.
        sent_bytes: (bytes, factors) of what a rank sends inside the op, one collective each.
        expands: the op is replaced by several, as its rule says.
        fraction: the fraction of the node's work that the busiest rank does.
        factor_placements: how the factors are sharded, if not by S; see `Strategy.factor_placements`.
        text: the text that declares the strategy; see `Strategy.text`.
    """

    operands: tuple[Placement, ...]
    results: tuple[Placement, ...]
    factors: tuple[int, ...] = ()
    inner_bytes: tuple[tuple[int, tuple[int, ...]], ...] = ()
    expands: bool = False
    fraction: float = 1.0
    factor_placements: tuple[Placement, ...] = ()
    text: TextStrategy | None = None
    sent_bytes: tuple[tuple[int, tuple[int, ...]], ...] = ()


def parts_of(mesh: Mesh) -> tuple[str, ...]:
    """Return the axes of a mesh that are sub-axes."""
    return tuple(axis for axis in mesh.axis_names if mesh.root and axis not in mesh.root.sizes)


def splits(size: int, count: int, before: int) -> bool:
    """Return whether a sub-axis of `count` ranks may shard `size` elements that are in `before` chunks already."""
    return before == 1 or size % (count * before) == 0


def largest_part(placement: Placement, size: int, count: int) -> float:
    """Return the fraction of `size` elements in the largest shard by `placement` among `count` ranks."""
    assert isinstance(placement, ShardPlacement)
    if type(placement) is Shard:
        return -(-size // count) / max(size, 1)
    try:
        return max(own for _, _, own in runs_of(placement, size, count)) / max(size, 1)
    except ShardingError:
        return 1.0  # the size may be legal in another order of axes, which is not known here


def _local(meta: TensorMeta, operand: int, strategies: Collection[NodeStrategy]) -> TensorMeta:
    """Return the type of an operand on the busiest rank."""
    shape = list(meta.shape)
    for strategy in strategies:
        dim = strategy.operands[operand].dim
        if dim is not None:
            shape[dim] = round(shape[dim] * strategy.fraction)
    return TensorMeta(tuple(shape), meta.dtype)


def local_seconds(work: Work, topology: Topology, strategies: Collection[NodeStrategy]) -> float:
    """Return how long a node computes on the busiest rank, by its strategies on several axes."""
    if topology.costs is not None and work.op:
        found = topology.costs.op(work.op, [_local(meta, i, strategies) for i, meta in enumerate(work.operands)])
        if found is not None:
            return found.seconds

    def fractions(which: str, count: int) -> list[float]:
        placed = [(strategy.fraction, getattr(strategy, which)) for strategy in strategies]
        return [math.prod(f for f, placements in placed if placements[i].trait == "shard") for i in range(count)]

    compute = math.prod(strategy.fraction for strategy in strategies)
    operands = fractions("operands", len(work.operand_bytes))
    return work.seconds(topology, compute, operands, fractions("results", len(work.result_bytes)))


class StrategySource(Protocol):
    """Where a node's strategies come from; equal sources make nodes interchangeable."""

    @property
    def work(self) -> Work:
        """Return what the unsharded op computes."""
        ...

    @property
    def annotations(self) -> Collection[Sharding]:
        """Return the user annotations, in which axes that shard one dimension have a nesting order."""
        ...

    @property
    def majors(self) -> Mapping[int, Collection[int]]:
        """Return factor → the factors that are outside it in some dimension."""
        ...

    def strategies(self, axis: str, count: int, sharded: ShardCounts) -> tuple[NodeStrategy, ...]:
        """Return the strategies on `axis` with `count` ranks, where other axes shard factors as `sharded` says."""
        ...

    def on(self, mesh: Mesh) -> StrategySource:
        """Return this source on a mesh that splits some axes."""
        ...


@attrs.frozen
class Node:
    """An op, input, constraint or output.

    Attributes:
        source: its strategies.
        operands: indices of the values it uses.
        results: indices of the values it makes.
    """

    source: StrategySource
    operands: tuple[int, ...]
    results: tuple[int, ...]


@attrs.frozen
class Problem:
    """Nodes in program order over values; every value is made before it is used.

    Attributes:
        mesh: the axes to decide.
        values: shape and element type of each value.
        nodes: in program order.
        plugin_placements: the plug-in placements that values may have.
        collectives: those with axes by which values may be resharded.
        holding: by value, the seconds that holding one byte of it as it is made is worth; nothing if empty.
        copy_holding: the same for each copy of it that a reshard makes.
        topology: the machine that says how long everything takes.
    """

    mesh: Mesh
    values: tuple[TensorMeta, ...]
    nodes: tuple[Node, ...]
    plugin_placements: tuple[Placement, ...] = ()
    collectives: tuple[CollectiveSpec, ...] = PLANNED
    topology: Topology = DEFAULT
    holding: tuple[float, ...] = ()
    copy_holding: tuple[float, ...] = ()

    def on(self, mesh: Mesh) -> Problem:
        """Return this problem on a mesh that splits some of its axes."""
        if mesh == self.mesh:
            return self
        nodes = tuple(attrs.evolve(node, source=node.source.on(mesh)) for node in self.nodes)
        return attrs.evolve(self, mesh=mesh, nodes=nodes)


@attrs.frozen(cache_hash=True)
class Annotation:
    """The strategies of a value with a user annotation; its open axes are free.

    Attributes:
        meta: the value.
        sharding: the user annotation; None if there is none.
        role: "input" (no operand), "output" (no result) or "constraint" (both).
        work: what it takes to have the unsharded value; without any, R would be as good as sharding.
        parts: the axes that are sub-axes, which together must shard evenly.
        plugin_placements: the plug-in placements that it may have.
    """

    meta: TensorMeta
    sharding: Sharding | None
    role: str
    work: Work = NO_WORK
    parts: tuple[str, ...] = ()
    plugin_placements: tuple[Placement, ...] = ()

    @property
    def annotations(self) -> Collection[Sharding]:
        return () if self.sharding is None else (self.sharding,)

    @property
    def majors(self) -> Mapping[int, Collection[int]]:
        return {}

    def strategies(self, axis: str, count: int, sharded: ShardCounts) -> tuple[NodeStrategy, ...]:
        fixed = self.sharding is not None and axis not in self.sharding.open_axes
        placements = (self.sharding[axis],) if fixed and self.sharding is not None else self._free(count)
        if not fixed and axis in self.parts:
            placements = tuple(
                p for p in placements if p.dim is None or splits(self.meta.shape[p.dim], count, sharded.of(p.dim))
            )
        return tuple(
            NodeStrategy(
                () if self.role == "input" else (placement,),
                () if self.role == "output" else (placement,),
                () if placement.dim is None else (placement.dim,),
                fraction=self._fraction(placement, count, sharded),
            )
            for placement in placements
        )

    def on(self, mesh: Mesh) -> Annotation:
        return attrs.evolve(self, sharding=self.sharding and self.sharding.refined(mesh), parts=parts_of(mesh))

    def _fraction(self, placement: Placement, count: int, sharded: ShardCounts) -> float:
        """Return the fraction of the value in the largest shard."""
        if not isinstance(placement, ShardPlacement):
            return 1.0
        before = math.ceil(self.meta.shape[placement.dim] / sharded.of(placement.dim))
        return largest_part(placement, before, count)

    def _free(self, count: int) -> tuple[Placement, ...]:
        shards = tuple(Shard(dim) for dim, size in enumerate(self.meta.shape) if size >= count)
        partial = tuple(Partial(op) for op in ("sum", "max", "min")) if self.role == "constraint" else ()
        return (R, *shards, *partial, *(p for p in self.plugin_placements if self._may_be(p, count)))

    def _may_be(self, placement: Placement, count: int) -> bool:
        if placement.dim is not None and placement.dim >= self.meta.rank:
            return False
        try:
            placement.check(self.meta.shape, count)
        except SpmdirError:
            return False
        return placement.supports(self.meta.dtype) and (placement.trait == "shard" or self.role == "constraint")
