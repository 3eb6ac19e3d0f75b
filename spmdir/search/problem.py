"""The input of the sharding search as plain tables: values, and the nodes that produce and use them.

A node has *strategies*. A strategy gives, for one mesh axis, the placements of the operands and of the results. An op
has the strategies of its rule. An input, a constraint and an output have one for each legal placement.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

import attrs

from spmdir.core.axes import axis_part
from spmdir.core.errors import ShardingError, SpmdirError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Placement
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.shards import ShardPlacement, runs_of
from spmdir.core.placement.standard import Partial, R, Shard
from spmdir.core.placement.tensor import TensorMeta
from spmdir.reshard.collective_spec import CollectiveSpec
from spmdir.reshard.collectives import PLANNED
from spmdir.reshard.topology import DEFAULT, Topology
from spmdir.rules.strategies.strategy import ShardCounts, Strategy
from spmdir.search.roofline import NO_WORK, Work

FEW_NODES = 40
"""A program with at most this many nodes is small. Small programs are searched exhaustively."""

AVOIDED = 1e3
"""Seconds added to the price of a reshard that is used only if there is no alternative."""


@attrs.frozen(cache_hash=True)
class AxisPlacements:
    """The plug-in placements that the values of a node may have, by mesh axis; a sub-axis has those of its axis."""

    by_axis: tuple[tuple[str, tuple[Placement, ...]], ...] = ()

    def on(self, axis: str) -> tuple[Placement, ...]:
        """Return the placements on `axis`."""
        # A sub-axis such as `tp(2)4` has the placements of `tp`. A name that cannot be parsed is looked up unchanged.
        name, *_ = axis_part(axis) or (axis,)
        return next((placements for axis_name, placements in self.by_axis if axis_name == name), ())


NO_PLACEMENTS = AxisPlacements()


def parts_of(mesh: Mesh) -> tuple[str, ...]:
    """Return the axes of a mesh that are sub-axes."""
    return tuple(axis for axis in mesh.axis_names if mesh.root and axis not in mesh.root.sizes)


def splits(size: int, count: int, before: int) -> bool:
    """Return whether a sub-axis may shard a dimension that other axes cut into chunks already.

    A dimension that is still one chunk may always be sharded. Otherwise all chunks must have equal lengths.

    Args:
        size: the number of elements of the dimension.
        count: the number of ranks on the sub-axis.
        before: the number of chunks into which the other axes cut the dimension.
    """
    return before == 1 or size % (count * before) == 0


def fractions(joint: Iterable[Strategy], counts: Iterable[int], imbalance: float = 1.0) -> list[float]:
    """Return, for each axis, the fraction of the work that the axis leaves to the busiest rank.

    The product of the fractions is the whole fraction. For example, 10 rows over axes of 2 and 4 ranks give 5/10 and
    2/5: a rank has 5 rows after the first axis, and the busiest rank has 2 of them after the second.

    Args:
        joint: the strategy on each axis.
        counts: the number of ranks on each axis.
        imbalance: as in `Topology`. It counts once for a factor, however many axes dispatch its rows.
    """
    fraction_by_axis: list[float] = []
    chunks_by_factor: dict[int, int] = {}
    dispatched_factors: set[int] = set()
    for strategy, count in zip(joint, counts, strict=True):
        if strategy.partition is None:
            fraction_by_axis.append(1.0)
        else:
            placement, size = strategy.partition  # of the first factor of the strategy
            size_before = -(-size // chunks_by_factor.get(strategy.factors[0], 1))
            fraction = largest_part(placement, size_before, count)
            # The number of rows on a rank is data: the busiest rank has `imbalance` times the mean.
            if placement.varies and dispatched_factors.isdisjoint(strategy.factors):
                fraction = min(fraction * imbalance, 1.0)
                dispatched_factors.update(strategy.factors)
            fraction_by_axis.append(fraction)
        for factor in strategy.factors:
            chunks_by_factor[factor] = chunks_by_factor.get(factor, 1) * count
    return fraction_by_axis


def largest_part(placement: ShardPlacement, size: int, count: int) -> float:
    """Return the fraction of `size` elements in the largest shard by `placement` among `count` ranks.

    The fraction is 1 if the placement rejects the size.
    """
    if type(placement) is Shard:
        return -(-size // count) / max(size, 1)
    try:
        # A run is (first rank, number of ranks, length of the shard of each).
        return max(length for _, _, length in runs_of(placement, size, count)) / max(size, 1)
    except ShardingError:
        return 1.0  # the size may be legal in another nesting order, which is decided later


def _local_operand(meta: TensorMeta, operand_index: int, parts: Iterable[tuple[Strategy, float]]) -> TensorMeta:
    """Return the type of an operand on the busiest rank. Lengths of dimensions are rounded to integers.

    Args:
        parts: for each axis, the strategy and the fraction of the work that the axis leaves to the busiest rank.
    """
    shape = list(meta.shape)
    for strategy, fraction in parts:
        dim = strategy.operands[operand_index].dim
        if dim is not None:
            shape[dim] = round(shape[dim] * fraction)
    return TensorMeta(tuple(shape), meta.dtype)


def local_seconds(work: Work, topology: Topology, joint: Sequence[Strategy], counts: Sequence[int]) -> float:
    """Return the compute seconds of a node on the busiest rank, with a strategy for each axis of `counts` ranks."""
    return local_work(work, joint, counts, topology.imbalance).time(topology).seconds


def local_work(work: Work, joint: Sequence[Strategy], counts: Sequence[int], imbalance: float = 1.0) -> Work:
    """Return the work of a node on the busiest rank.

    Args:
        joint: one strategy for each axis.
        counts: the number of ranks on each axis.
        imbalance: as in `Topology`.
    """
    fraction_by_axis = fractions(joint, counts, imbalance)
    parts = list(zip(joint, fraction_by_axis, strict=True))
    return attrs.evolve(
        work,
        flops=work.flops * math.prod(fraction_by_axis),
        operand_bytes=_local_sizes(work.operand_bytes, [strategy.operands for strategy in joint], fraction_by_axis),
        result_bytes=_local_sizes(work.result_bytes, [strategy.results for strategy in joint], fraction_by_axis),
        operands=tuple([_local_operand(meta, index, parts) for index, meta in enumerate(work.operands)]),
    )


def _local_sizes(
    sizes: Sequence[float], placements_by_axis: Sequence[Sequence[Placement]], fraction_by_axis: Sequence[float]
) -> tuple[float, ...]:
    """Return the bytes of tensors on the busiest rank. An axis that shards a tensor divides it as it divides the work.

    Args:
        sizes: the bytes of each tensor on one device.
        placements_by_axis: [axis][tensor].
    """
    local_sizes = []
    for index, size in enumerate(sizes):
        axes = zip(placements_by_axis, fraction_by_axis, strict=True)
        local_sizes.append(
            size * math.prod(fraction for placements, fraction in axes if placements[index].trait == "shard")
        )
    return tuple(local_sizes)


class StrategySource(Protocol):
    """The strategies of a node. Nodes with equal sources are interchangeable."""

    @property
    def work(self) -> Work:
        """Return the work of the unsharded op."""
        ...

    @property
    def annotations(self) -> Collection[Sharding]:
        """Return the user annotations, in which axes that shard one dimension have a nesting order."""
        ...

    @property
    def majors(self) -> Mapping[int, Collection[int]]:
        """Return factor → the factors that are outside it in some dimension."""
        ...

    def strategies(self, axis: str, count: int, sharded: ShardCounts) -> tuple[Strategy, ...]:
        """Return the strategies on one axis that are legal with the strategies of other axes.

        Args:
            count: the number of ranks on `axis`.
            sharded: the number of chunks into which other axes cut each factor.
        """
        ...

    def candidates(self, axis: str, count: int) -> tuple[Strategy, ...]:
        """Return the strategies on `axis`, of `count` ranks, that are legal with some strategies of other axes."""
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
        results: indices of the values it produces.
    """

    source: StrategySource
    operands: tuple[int, ...]
    results: tuple[int, ...]


@attrs.frozen
class Problem:
    """Nodes in program order over values; every value is produced before it is used.

    Attributes:
        mesh: the axes to decide.
        values: shape and element type of each value.
        nodes: in program order.
        plugin_placements: the plug-in placements that values may have.
        collectives: those by which values may be resharded.
        topology: the machine, which gives the times.
        ties: values that are never resharded, such as those that `tied` adds. All nodes of such a value give it the
            same placement.
        apart: axes along which ranks have different sizes.
        unsent: values whose sizes differ along `apart`; they are sent along it only if there is no alternative.
        unsliced: values computed from the batch; they are sliced along `apart` only if there is no alternative.
    """

    mesh: Mesh
    values: tuple[TensorMeta, ...]
    nodes: tuple[Node, ...]
    plugin_placements: tuple[Placement, ...] = ()
    collectives: tuple[CollectiveSpec, ...] = PLANNED
    topology: Topology = DEFAULT
    ties: frozenset[int] = frozenset()
    apart: tuple[str, ...] = ()
    unsent: frozenset[int] = frozenset()
    unsliced: frozenset[int] = frozenset()

    @property
    def is_small(self) -> bool:
        """Return whether the program has at most `FEW_NODES` nodes, so that all decisions may be tried."""
        return len(self.nodes) <= FEW_NODES

    def on(self, mesh: Mesh) -> Problem:
        """Return this problem on a mesh that splits some of its axes into sub-axes; itself if the mesh is equal."""
        if mesh == self.mesh:
            return self
        nodes = tuple(attrs.evolve(node, source=node.source.on(mesh)) for node in self.nodes)
        return attrs.evolve(self, mesh=mesh, nodes=nodes)


@attrs.frozen(cache_hash=True)
class Annotation:
    """The strategies of an input, an output or a constraint.

    A user annotation fixes the placement on each axis that is not open. Without an annotation, no axis is fixed.

    Attributes:
        meta: the value.
        sharding: the user annotation; None if there is none.
        role: "input" (no operand), "output" (no result) or "constraint" (both).
        work: the work of the unsharded value. An input has some, so that R costs more than a shard.
        parts: the axes that are sub-axes, which together must shard evenly.
        plugin_placements: the plug-in placements that the value may have on each axis.
        is_tied: whether the node has a tie (see `tied`): the second result of an input or the second operand of an
            output.
    """

    meta: TensorMeta
    sharding: Sharding | None
    role: str
    work: Work = NO_WORK
    parts: tuple[str, ...] = ()
    plugin_placements: AxisPlacements = NO_PLACEMENTS
    is_tied: bool = False
    _strategies_by_key: dict[object, tuple[Strategy, ...]] = attrs.field(factory=dict, eq=False, init=False, repr=False)

    @property
    def annotations(self) -> Collection[Sharding]:
        """Return the user annotation; empty if there is none."""
        return () if self.sharding is None else (self.sharding,)

    @property
    def majors(self) -> Mapping[int, Collection[int]]:
        """Return an empty mapping: each factor is a whole dimension."""
        return {}

    def strategies(self, axis: str, count: int, sharded: ShardCounts) -> tuple[Strategy, ...]:
        """Return the candidates on `axis`. A sub-axis must cut the chunks of other axes evenly, unless it is fixed."""
        candidates = self.candidates(axis, count)
        if axis not in self.parts or self._is_fixed(axis):
            return candidates
        # `partition` is (placement, size of the dimension), and the only factor of the strategy is that dimension.
        return tuple(
            strategy
            for strategy in candidates
            if not strategy.partition or splits(strategy.partition[1], count, sharded.of(strategy.factors[0]))
        )

    def candidates(self, axis: str, count: int) -> tuple[Strategy, ...]:
        """Return one strategy for each placement of the value on `axis`; a fixed axis has only that of `sharding`."""
        fixed = self.sharding[axis] if self.sharding is not None and self._is_fixed(axis) else None
        plugin_placements = self.plugin_placements.on(axis) if fixed is None else ()
        key = fixed, count, plugin_placements
        if key not in self._strategies_by_key:
            placements = self._legal_placements(count, plugin_placements) if fixed is None else (fixed,)
            self._strategies_by_key[key] = tuple(map(self._strategy, placements))
        return self._strategies_by_key[key]

    def on(self, mesh: Mesh) -> Annotation:
        """Return this source on a mesh that splits some axes into sub-axes."""
        return attrs.evolve(self, sharding=self.sharding and self.sharding.refined(mesh), parts=parts_of(mesh))

    def _is_fixed(self, axis: str) -> bool:
        """Return whether the user annotation determines the placement on an axis."""
        return self.sharding is not None and axis not in self.sharding.open_axes

    def _strategy(self, placement: Placement) -> Strategy:
        """Return the strategy that gives the value, and the tie if there is one, a placement."""
        placements = (placement,) * (1 + self.is_tied)  # of the value, then of the tie
        return Strategy(
            () if self.role == "input" else placements,
            () if self.role == "output" else placements,
            () if placement.dim is None else (placement.dim,),
            partition=(placement, self.meta.shape[placement.dim]) if isinstance(placement, ShardPlacement) else None,
        )

    def _legal_placements(self, count: int, plugin_placements: tuple[Placement, ...]) -> tuple[Placement, ...]:
        """Return the placements that the value may have on an axis of `count` ranks: R, shards, and some others.

        Each rank must have an element of a shard. Only a constraint may be partial, or have a plug-in placement that is
        not a shard.
        """
        shards = tuple(Shard(dim) for dim, size in enumerate(self.meta.shape) if size >= count)
        partial = tuple(Partial(op) for op in ("sum", "max", "min")) if self.role == "constraint" else ()
        return (R, *shards, *partial, *(p for p in plugin_placements if self._allows(p, count)))

    def _allows(self, placement: Placement, count: int) -> bool:
        """Return whether the value may have a plug-in placement on an axis of `count` ranks."""
        if placement.dim is not None and placement.dim >= self.meta.rank:
            return False
        try:
            placement.check(self.meta.shape, count)
        except SpmdirError:
            return False
        return placement.supports(self.meta.dtype) and (placement.trait == "shard" or self.role == "constraint")


def tied(problem: Problem, pairs: Sequence[tuple[int, int]]) -> Problem:
    """Return `problem` with the constraint that the input and the output of each pair have the same placement.

    A *tie* is an extra value that the input produces and the output uses. Ties are never resharded. For example, the
    input of a parameter and the output of its update are tied, so the update has the sharding of the parameter.

    Args:
        pairs: (input, output) pairs of node numbers. An input may occur in several pairs, an output in one.
    """
    values, nodes = list(problem.values), list(problem.nodes)
    ties: dict[int, int] = {}  # input node → the value that is its tie
    for input_node, output in pairs:
        if input_node not in ties:
            ties[input_node] = len(values)
            values.append(problem.values[problem.nodes[input_node].results[0]])
            nodes[input_node] = _with_tie(nodes[input_node], (), (ties[input_node],))
        nodes[output] = _with_tie(nodes[output], (ties[input_node],), ())
    return attrs.evolve(problem, values=tuple(values), nodes=tuple(nodes), ties=problem.ties.union(ties.values()))


def _with_tie(node: Node, operands: tuple[int, ...], results: tuple[int, ...]) -> Node:
    """Return an input or output with the tie as an additional operand or result."""
    assert isinstance(node.source, Annotation)
    source = attrs.evolve(node.source, is_tied=True)
    return Node(source, (*node.operands, *operands), (*node.results, *results))
