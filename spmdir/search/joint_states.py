"""The states of a node on a block of mesh axes: one strategy an axis, and the joint placements that they need and make.

A *joint placement* is the placement of a value on every axis, and the nesting order of axes that shard one dimension.
It is a number here: its place in a `JointPlacements`.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import attrs
import numpy as np

from spmdir.core.mesh import Mesh
from spmdir.rules.strategies.strategy import UNSHARDED, shard_counts
from spmdir.search.catalogue import Catalogue
from spmdir.search.joint_cost import node_seconds
from spmdir.search.problem import NodeStrategy, StrategySource
from spmdir.search.repeats import Quotient

Numbers = np.ndarray


NESTED = 3
"""The most axes of which all nesting orders are tried."""


class Unsolvable(Exception):
    """A node has no strategy on an axis.

    Attributes:
        node: its index in the problem.
        axis: the mesh axis.
    """

    def __init__(self, node: int, axis: str):
        super().__init__(f"node {node} has no strategy on axis {axis}")
        self.node, self.axis = node, axis


class JointPlacements:
    """The joint placements that occur, by number.

    Attributes:
        all: by number, for each axis the number of its placement in the catalogue.
        order: by number, the axes, by position, those that shard one dimension in nesting order.
    """

    def __init__(self, mesh: Mesh, axes: Sequence[str], catalogue: Catalogue):
        self.mesh, self.axes, self.catalogue = mesh, tuple(axes), catalogue
        self.counts = [mesh.sizes[axis] for axis in axes]
        self.all: list[tuple[int, ...]] = []
        self.order: list[tuple[int, ...]] = []
        self._number: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
        self._natural = tuple(range(len(self.axes)))
        self._dims = [placement.dim for placement in catalogue.placements]
        self.replicated = self.number((0,) * len(axes))

    def number(self, placed: tuple[int, ...], order: tuple[int, ...] | None = None) -> int:
        """Return the number of a joint placement, a new one if it has none.

        Args:
            order: the axes, those that shard one dimension in nesting order; in the order of the mesh if None.
        """
        if order is None or not self.shares(placed):
            order = self._natural
        found = self._number.get((placed, order))
        if found is None:
            found = self._number[placed, order] = len(self.all)
            self.all.append(placed)
            self.order.append(order)
        return found

    def shares(self, placed: tuple[int, ...]) -> bool:
        """Return whether several axes shard one dimension."""
        dims = [dim for dim in [self._dims[at] for at in placed] if dim is not None]
        return len({*dims}) < len(dims)


@attrs.frozen(eq=False)
class StateTable:
    """The states of the nodes of one source.

    Attributes:
        strategies: by state, one strategy for each axis of the mesh.
        order: by state, the axes, by position, those that shard one factor in nesting order.
        seconds: what each takes inside the op.
        operands, results: [states, operands] and [states, results], joint placements.
    """

    strategies: Sequence[tuple[NodeStrategy, ...]]
    order: Sequence[tuple[int, ...]]
    seconds: Numbers
    operands: Numbers
    results: Numbers


Joint = tuple[NodeStrategy, ...]
"""The strategy of a node on each axis."""


class StateFinder:
    """Finds the states of nodes on a block of axes, the strategies of the other axes fixed."""

    def __init__(self, mesh: Mesh, shared: Quotient, placements: JointPlacements):
        self.mesh, self.shared, self.placements = mesh, shared, placements
        self.axes, self.counts = placements.axes, placements.counts
        self._natural = tuple(range(len(self.axes)))
        self.kind, self.index = placements.catalogue.kind, placements.catalogue.index
        self._known: dict[object, StateTable] = {}
        self._idle = [self._idle_on(position) for position in range(len(self.axes))]

    def of(self, part: int, block: Sequence[int], fixed: Sequence[NodeStrategy | None] | None) -> StateTable:
        """Return the states of a part of the program.

        Args:
            block: positions of axes in the mesh.
            fixed: the strategy of the part on each axis, of which those in the block do not count.

        Raises:
            Unsolvable: there is none.
        """
        source = self.shared.nodes[part].source
        beside = tuple(None if axis in block or fixed is None else fixed[axis] for axis in range(len(self.axes)))
        idle = tuple(self._idle[axis].get(part, ()) for axis in block)
        key = (source, tuple(block), beside, idle)
        found = self._known.get(key)
        if found is None:
            chosen = list(self._legal(source, block, beside, idle, True))
            chosen = chosen or list(self._legal(source, block, beside, idle, False))
            if not chosen:
                raise Unsolvable(self.shared.first[part], self.axes[self._without_strategy(source, block)])
            found = self._known[key] = self._states(source, block, chosen)
        return found

    def _without_strategy(self, source: StrategySource, block: Sequence[int]) -> int:
        for axis in block:
            if not self._strategies(source, axis, UNSHARDED):
                return axis
        return block[-1]

    def _strategies(self, source: StrategySource, axis: int, sharded) -> Sequence[NodeStrategy]:
        found = source.strategies(self.axes[axis], self.counts[axis], sharded)
        index = self.index
        return [s for s in found if all(p in index for p in (*s.operands, *s.results))]

    def _legal(
        self,
        source: StrategySource,
        block: Sequence[int],
        beside: tuple[NodeStrategy | None, ...],
        idle: tuple[Collection[object], ...],
        strict: bool,
    ) -> Iterator[tuple[NodeStrategy, ...]]:
        """Yield one strategy for each axis, where those of all axes may be used together."""
        chosen: list[list[NodeStrategy | None]] = [list(beside)]
        for axis, left_out in zip(block, idle, strict=True):
            longer = []
            for before in chosen:
                others = [(s, n) for s, n in zip(before, self.counts, strict=True) if s is not None]
                sharded = shard_counts(others) if strict else UNSHARDED
                strategies = self._strategies(source, axis, sharded)
                kept = [s for s in strategies if (s.operands, s.results) not in left_out] or strategies
                for strategy in kept:
                    joint = list(before)
                    joint[axis] = strategy
                    if not strict or not self._mixes(joint):
                        longer.append(joint)
            chosen = longer
        for joint in chosen:
            if None not in joint and (not strict or self._keeps_plugin_strategies(source, joint)):
                yield tuple(joint)  # type: ignore

    def _mixes(self, joint: Sequence[NodeStrategy | None]) -> bool:
        """Return whether strategies would mix kinds of partial values on one value."""
        placed = [[self.kind[self.index[p]] for p in (*s.operands, *s.results)] for s in joint if s is not None]
        if not any(any(kinds) for kinds in placed):
            return False
        return any(len({*kinds} - {None}) > 1 for kinds in zip(*placed, strict=True))

    def _keeps_plugin_strategies(self, source: StrategySource, joint: Sequence[Any]) -> bool:
        """Return whether strategies of plug-in placements, which depend on the other axes, are legal together."""
        for axis, strategy in enumerate(joint):
            if strategy.factor_placements:
                others = [(s, n) for at, (s, n) in enumerate(zip(joint, self.counts, strict=True)) if at != axis]
                if strategy not in source.strategies(self.axes[axis], self.counts[axis], shard_counts(others)):
                    return False
        return True

    def _states(self, source: StrategySource, block: Sequence[int], chosen: Sequence[Joint]) -> StateTable:
        numbers, strategies, orders, seconds = [], [], [], []
        for joint in chosen:
            placed = [
                tuple([self.index[p] for p in axes])
                for axes in zip(*[(*s.operands, *s.results) for s in joint], strict=True)
            ]
            spent = node_seconds(source.work, joint, self.axes, self.mesh, self.shared)
            for order in self._orders(source, block, joint) if any(map(self.placements.shares, placed)) else (None,):
                numbers.append([self.placements.number(axes, order) for axes in placed])
                strategies.append(joint)
                orders.append(order or self._natural)
                seconds.append(spent)
        table = np.array(numbers, dtype=np.intp).reshape(len(strategies), -1)
        operands = len(chosen[0][0].operands)
        return StateTable(strategies, orders, np.array(seconds), table[:, :operands], table[:, operands:])

    def _orders(self, source: StrategySource, block: Sequence[int], joint: Joint) -> list[tuple[int, ...]]:
        """Return the nesting orders that the axes may have: any, but for user annotations and factors.

        Where more than `NESTED` axes shard something, those outside the block stay in the order of the mesh.
        """
        sharding = [axis for axis, strategy in enumerate(joint) if strategy.factors]
        moving = sharding if len(sharding) <= NESTED else [axis for axis in sharding if axis in block]
        found = []
        for moved in itertools.permutations(moving):
            order = list(self._natural)
            for at, axis in zip(moving, moved, strict=True):
                order[at] = axis
            nested = itertools.combinations(range(len(order)), 2)
            if all(self._may_nest(source, joint, order[outer], order[inner]) for outer, inner in nested):
                found.append(tuple(order))
        return found or [self._natural]

    def _may_nest(self, source: StrategySource, joint: Joint, outer: int, inner: int) -> bool:
        """Return whether one axis may be outside another where both shard one dimension."""
        own, other = joint[outer].factors, joint[inner].factors
        if not own or not other:
            return outer < inner
        if own[0] != other[0]:
            majors = source.majors
            return own[0] in majors.get(other[0], ()) or (other[0] not in majors.get(own[0], ()) and outer < inner)
        names = self.axes[outer], self.axes[inner]
        for sharding in source.annotations:
            for dim in {p.dim for axis, p in sharding.entries if axis in names and p.dim is not None}:
                axes = [axis for axis in sharding.dim_axes(dim) if axis in names]
                if len(axes) == 2 and tuple(axes) != names:
                    return False
        return True

    def _idle_on(self, axis: int) -> dict[int, frozenset[object]]:
        """Return, by part, the strategies on an axis that only pass on partial values that no node makes.

        A strategy is its (operands, results) here.
        """
        nodes, kind, index = self.shared.nodes, self.kind, self.index
        partial: list[set[object]] = [set() for _ in self.shared.values]
        suspects: dict[int, list[NodeStrategy]] = {}

        def is_idle(part: int, strategy: NodeStrategy) -> bool:
            placed = zip(nodes[part].operands, strategy.operands, strict=True)
            return not any(placement in partial[value] for value, placement in placed)

        def add(part: int, strategy: NodeStrategy) -> bool:
            changed = False
            for value, placement in zip(nodes[part].results, strategy.results, strict=True):
                if kind[index[placement]] is not None and placement not in partial[value]:
                    partial[value].add(placement)
                    changed = True
            return changed

        for part, node in enumerate(nodes):
            for strategy in self._strategies(node.source, axis, UNSHARDED):
                if not strategy.factors and any(kind[index[p]] is not None for p in strategy.operands):
                    suspects.setdefault(part, []).append(strategy)
                else:
                    add(part, strategy)
        changed = True
        while changed:
            changed = False
            for part, strategies in suspects.items():
                for strategy in strategies:
                    if not is_idle(part, strategy) and add(part, strategy):
                        changed = True
        return {
            part: frozenset((s.operands, s.results) for s in strategies if is_idle(part, s))
            for part, strategies in suspects.items()
        }
