"""What the sharding search decides, as plain tables: values, the nodes that make and use them, what is fixed.

A node has *strategies*: for one mesh axis, the placements it wants its operands in and the placements its results
get. An op's strategies are its rule's strategies; an input, a constraint and an output have those that they can be.
"""

from __future__ import annotations

import math
from typing import Protocol

import attrs

from spmdir.core.errors import ShardingError, SpmdirError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Placement, ShardPlacement, runs_of
from spmdir.core.placement.standard import Partial, R, Shard
from spmdir.core.sharding import Sharding
from spmdir.core.tensor import TensorMeta
from spmdir.rules.strategies.strategy import ShardCounts


@attrs.frozen
class NodeStrategy:
    """One choice of a node on one axis.

    Attributes:
        operands: the placement wanted of each operand.
        results: the placement of each result.
        factor: the factor that is sharded, if any.
        inner_bytes: (bytes, factors) of the values that the choice all-reduces inside the op.
        expands: the op is replaced by several, as its rule says.
        fraction: the part of the node's work that is left to the busiest rank.
        factor_placement: how the factor is sharded, if not by S; see `Strategy.factor_placement`.
    """

    operands: tuple[Placement, ...]
    results: tuple[Placement, ...]
    factor: int | None = None
    inner_bytes: tuple[tuple[int, tuple[int, ...]], ...] = ()
    expands: bool = False
    fraction: float = 1.0
    factor_placement: Placement | None = None


def parts_of(mesh: Mesh) -> tuple[str, ...]:
    """The axes of a mesh that are sub-axes."""
    return tuple(axis for axis in mesh.axis_names if mesh.root and axis not in mesh.root.sizes)


def splits(size: int, count: int, before: int) -> bool:
    """Whether a sub-axis of `count` ranks may divide `size` elements that others, maybe its own kin, cut already."""
    return before == 1 or size % (count * before) == 0


def largest_part(placement: Placement, size: int, count: int) -> float:
    """The part of `size` elements that the rank which holds most has, sharded by `placement` among `count`."""
    assert isinstance(placement, ShardPlacement)
    try:
        return max(own for _, _, own in runs_of(placement, size, count)) / max(size, 1)
    except ShardingError:
        return 1.0  # of a size that it cannot divide, which only the order of axes can tell


class StrategySource(Protocol):
    """Where a node's strategies come from; equal sources make nodes interchangeable."""

    @property
    def work(self) -> float:
        """Bytes on the wire that the whole op's compute is worth."""
        ...

    def strategies(self, axis: str, count: int, sharded: ShardCounts) -> tuple[NodeStrategy, ...]:
        """The strategies on `axis` with `count` ranks, when other axes have cut factors into `sharded` pieces."""
        ...

    def on(self, mesh: Mesh) -> StrategySource:
        """This source on a mesh that splits some axes."""
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
        extras: the plug-in placements that values may have.
    """

    mesh: Mesh
    values: tuple[TensorMeta, ...]
    nodes: tuple[Node, ...]
    extras: tuple[Placement, ...] = ()

    def on(self, mesh: Mesh) -> Problem:
        """This problem on a mesh that splits some of its axes."""
        if mesh == self.mesh:
            return self
        nodes = tuple(attrs.evolve(node, source=node.source.on(mesh)) for node in self.nodes)
        return attrs.evolve(self, mesh=mesh, nodes=nodes)


@attrs.frozen(cache_hash=True)
class Annotation:
    """The strategies of a value whose sharding the user gave; open axes are free.

    Attributes:
        meta: the value.
        sharding: what was given; None if nothing.
        role: "input" (no operand), "output" (no result) or "constraint" (both).
        work: bytes on the wire that holding all of it is worth; without that, R would be as good as any other.
        parts: the axes that are sub-axes, which divide evenly together.
        extras: the plug-in placements that it may have.
    """

    meta: TensorMeta
    sharding: Sharding | None
    role: str
    work: float = 0.0
    parts: tuple[str, ...] = ()
    extras: tuple[Placement, ...] = ()

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
                placement.dim,
                fraction=self._held(placement, count, sharded),
            )
            for placement in placements
        )

    def on(self, mesh: Mesh) -> Annotation:
        return attrs.evolve(self, sharding=self.sharding and self.sharding.refined(mesh), parts=parts_of(mesh))

    def _held(self, placement: Placement, count: int, sharded: ShardCounts) -> float:
        """The part of the value that is left to the rank that holds most."""
        if placement.dim is None:
            return 1.0
        before = math.ceil(self.meta.shape[placement.dim] / sharded.of(placement.dim))
        return largest_part(placement, before, count)

    def _free(self, count: int) -> tuple[Placement, ...]:
        shards = tuple(Shard(dim) for dim, size in enumerate(self.meta.shape) if size >= count)
        pending = tuple(Partial(op) for op in ("sum", "max", "min")) if self.role == "constraint" else ()
        return (R, *shards, *pending, *(extra for extra in self.extras if self._may_be(extra, count)))

    def _may_be(self, extra: Placement, count: int) -> bool:
        if extra.dim is not None and extra.dim >= self.meta.rank:
            return False
        try:
            extra.check(self.meta.shape, count)
        except SpmdirError:
            return False
        return extra.supports(self.meta.dtype) and (extra.trait == "shard" or self.role == "constraint")
