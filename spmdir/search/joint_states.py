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
from spmdir.rules.strategies.strategy import UNSHARDED, ShardCounts, shard_counts
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
        self._number: dict[object, int] = {}
        self._shares: dict[tuple[int, ...], bool] = {}
        self._natural = tuple(range(len(self.axes)))
        self._dims = [placement.dim for placement in catalogue.placements]
        self.replicated = self.number((0,) * len(axes))

    def number(self, placed: tuple[int, ...], order: tuple[int, ...] | None = None) -> int:
        """Return the number of a joint placement, a new one if it has none.

        Args:
            order: the axes, those that shard one dimension in nesting order; in the order of the mesh if None.
        """
        if order is None or order == self._natural or not self.shares(placed):
            key, order = placed, self._natural
        else:
            key = placed, order
        found = self._number.get(key)
        if found is None:
            found = self._number[key] = len(self.all)
            self.all.append(placed)
            self.order.append(order)
        return found

    def shares(self, placed: tuple[int, ...]) -> bool:
        """Return whether several axes shard one dimension."""
        found = self._shares.get(placed)
        if found is None:
            dims = [dim for dim in [self._dims[at] for at in placed] if dim is not None]
            found = self._shares[placed] = len({*dims}) < len(dims)
        return found


@attrs.frozen(eq=False)
class Numbered:
    """A strategy of a node on one axis, its placements by number.

    Attributes:
        placed: the placement of each operand, then of each result.
        kinds: by these, the kind of its reduction, see `Catalogue.kind`; empty if all are None.
        parts: the fraction of the work that the busiest rank does, then that of each operand and result that it has.
    """

    strategy: NodeStrategy
    placed: tuple[int, ...]
    kinds: tuple[str | None, ...]
    parts: tuple[float, ...]


Joint = tuple[NodeStrategy, ...]
"""The strategy of a node on each axis."""


@attrs.frozen(eq=False)
class StateTable:
    """The states of the nodes of one source.

    Attributes:
        joints: by state, one strategy for each axis of the mesh.
        order: by state, the axes, by position, those that shard one factor in nesting order.
        seconds: what each takes inside the op.
        operands, results: [states, operands] and [states, results], joint placements.
    """

    joints: Sequence[tuple[Numbered, ...]]
    order: Sequence[tuple[int, ...]]
    seconds: Numbers
    operands: Numbers
    results: Numbers

    def strategies(self, state: int) -> Joint:
        """Return the strategy of a state on each axis."""
        return tuple([one.strategy for one in self.joints[state]])


class StateFinder:
    """Finds the states of nodes on a block of axes, the strategies of the other axes fixed."""

    def __init__(self, mesh: Mesh, shared: Quotient, placements: JointPlacements):
        self.mesh, self.shared, self.placements = mesh, shared, placements
        self.axes, self.counts = placements.axes, placements.counts
        self._natural = tuple(range(len(self.axes)))
        self.kind, self.index = placements.catalogue.kind, placements.catalogue.index
        self._known: dict[object, StateTable] = {}
        self._numbered: dict[int, Numbered] = {}
        self._listed: dict[object, Sequence[Numbered]] = {}
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
        idle = tuple([self._idle[axis].get(part, _NONE) for axis in block])
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

    def _strategies(self, source: StrategySource, axis: int, sharded: ShardCounts) -> Sequence[Numbered]:
        """Return the strategies of a source on an axis by which it has placements of the catalogue."""
        key = source, axis, sharded.key
        found = self._listed.get(key)
        if found is None:
            every = map(self._number, source.strategies(self.axes[axis], self.counts[axis], sharded))
            found = self._listed[key] = [one for one in every if None not in one.placed]
        return found

    def _number(self, strategy: NodeStrategy) -> Numbered:
        found = self._numbered.get(id(strategy))
        if found is None:
            placements, fraction = (*strategy.operands, *strategy.results), strategy.fraction
            placed = tuple([self.index.get(placement) for placement in placements])
            kinds = tuple([None if number is None else self.kind[number] for number in placed])
            parts = [fraction if placement.trait == "shard" else 1.0 for placement in placements]
            found = Numbered(strategy, placed, kinds if any(kinds) else (), (fraction, *parts))  # type: ignore
            self._numbered[id(strategy)] = found
        return found

    def _legal(
        self,
        source: StrategySource,
        block: Sequence[int],
        beside: tuple[NodeStrategy | None, ...],
        idle: tuple[Collection[object], ...],
        strict: bool,
    ) -> Iterator[tuple[Numbered, ...]]:
        """Yield one strategy for each axis, where those of all axes may be used together."""
        chosen: list[list[Numbered | None]] = [[None if s is None else self._number(s) for s in beside]]
        for axis, left_out in zip(block, idle, strict=True):
            longer = []
            for before in chosen:
                others = [(one.strategy, n) for one, n in zip(before, self.counts, strict=True) if one is not None]
                strategies = self._strategies(source, axis, shard_counts(others) if strict else UNSHARDED)
                kept = [one for one in strategies if one.placed not in left_out] if left_out else strategies
                for one in kept or strategies:
                    joint = before.copy()
                    joint[axis] = one
                    if not strict or not _mixes(joint):
                        longer.append(joint)
            chosen = longer
        for joint in chosen:
            if None not in joint and (not strict or self._keeps_plugin_strategies(source, joint)):
                yield tuple(joint)  # type: ignore

    def _keeps_plugin_strategies(self, source: StrategySource, joint: Sequence[Any]) -> bool:
        """Return whether strategies of plug-in placements, which depend on the other axes, are legal together."""
        for axis, one in enumerate(joint):
            if one.strategy.factor_placements:
                others = [
                    (o.strategy, n) for at, (o, n) in enumerate(zip(joint, self.counts, strict=True)) if at != axis
                ]
                if one.strategy not in source.strategies(self.axes[axis], self.counts[axis], shard_counts(others)):
                    return False
        return True

    def _states(
        self, source: StrategySource, block: Sequence[int], chosen: Sequence[tuple[Numbered, ...]]
    ) -> StateTable:
        numbers, joints, orders = [], [], []
        number, shares = self.placements.number, self.placements.shares
        for joint in chosen:
            placed = list(zip(*[one.placed for one in joint], strict=True))
            if any(map(shares, placed)):
                for order in self._orders(source, block, joint):
                    numbers.append([number(axes, order) for axes in placed])
                    joints.append(joint)
                    orders.append(order)
            else:
                numbers.append([number(axes) for axes in placed])
                joints.append(joint)
                orders.append(self._natural)
        table = np.array(numbers, dtype=np.intp).reshape(len(joints), -1)
        operands = len(chosen[0][0].strategy.operands)
        return StateTable(joints, orders, self._seconds(source, joints), table[:, :operands], table[:, operands:])

    def _seconds(self, source: StrategySource, joints: Sequence[tuple[Numbered, ...]]) -> Numbers:
        """Return, by state, what it takes inside the op."""
        work, topology = source.work, self.shared.topology
        is_measured = topology.costs is not None and work.op
        compute, *parts = np.array([[one.parts for one in joint] for joint in joints]).prod(1).T
        results = len(joints[0][0].strategy.operands)
        operand_parts, result_parts = (
            parts[: len(work.operand_bytes)],
            parts[results : results + len(work.result_bytes)],
        )
        launches, arithmetic, traffic = work.terms(topology, compute, operand_parts, result_parts)
        seconds = launches + np.maximum(arithmetic, traffic)
        for state, joint in enumerate(joints):
            if is_measured or any(one.strategy.sent_bytes or one.strategy.inner_bytes for one in joint):
                strategies = [one.strategy for one in joint]
                seconds[state] = node_seconds(work, strategies, self.axes, self.mesh, self.shared)
        return seconds

    def _orders(self, source: StrategySource, block: Sequence[int], joint: Sequence[Numbered]) -> list[tuple[int, ...]]:
        """Return the nesting orders that the axes may have: any, but for user annotations and factors.

        Where more than `NESTED` axes shard something, those outside the block stay in the order of the mesh.
        """
        sharding = [axis for axis, one in enumerate(joint) if one.strategy.factors]
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

    def _may_nest(self, source: StrategySource, joint: Sequence[Numbered], outer: int, inner: int) -> bool:
        """Return whether one axis may be outside another where both shard one dimension."""
        own, other = joint[outer].strategy.factors, joint[inner].strategy.factors
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

        A strategy is its `Numbered.placed` here.
        """
        nodes, kind = self.shared.nodes, self.kind
        partial: list[set[int]] = [set() for _ in self.shared.values]
        suspects: dict[int, list[Numbered]] = {}

        def is_idle(part: int, one: Numbered) -> bool:
            operands = nodes[part].operands
            return not any(number in partial[value] for value, number in zip(operands, one.placed, strict=False))

        def add(part: int, one: Numbered) -> bool:
            changed, node = False, nodes[part]
            for value, number in zip(node.results, one.placed[len(node.operands) :], strict=True):
                if kind[number] is not None and number not in partial[value]:
                    partial[value].add(number)
                    changed = True
            return changed

        for part, node in enumerate(nodes):
            for one in self._strategies(node.source, axis, UNSHARDED):
                if one.kinds:
                    if not one.strategy.factors and any(one.kinds[: len(node.operands)]):
                        suspects.setdefault(part, []).append(one)
                    else:
                        add(part, one)
        changed = True
        while changed:
            changed = False
            for part, strategies in suspects.items():
                for one in strategies:
                    if not is_idle(part, one) and add(part, one):
                        changed = True
        return {
            part: frozenset(one.placed for one in strategies if is_idle(part, one))
            for part, strategies in suspects.items()
        }


def _mixes(joint: Sequence[Numbered | None]) -> bool:
    """Return whether strategies would mix kinds of partial values on one value."""
    placed = [one.kinds for one in joint if one is not None and one.kinds]
    return len(placed) > 1 and any(len({*kinds} - {None}) > 1 for kinds in zip(*placed, strict=True))


_NONE: frozenset[object] = frozenset()
