"""The states of a node on a block of mesh axes: one strategy an axis, and the placements that they need and make."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import attrs
import numpy as np

from spmdir.rules.strategies.strategy import Strategy
from spmdir.search.joint_cost import node_seconds
from spmdir.search.joint_placements import JointPlacements, Numbers
from spmdir.search.joint_strategies import Joint, idle_strategies, joint_strategies
from spmdir.search.problem import Problem, StrategySource, fractions
from spmdir.search.repeats import Quotient
from spmdir.search.work import NO_WORK

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


@attrs.frozen(eq=False)
class Numbered:
    """A strategy of a node on one axis.

    Attributes:
        placed: the number of the placement of each operand, then of each result; -1 if it is not in the catalogue.
        shards: 1.0 for each of these that the strategy shards, else 0.0.
        factor: the first factor that it shards; -1 if there is none.
        fraction: the fraction of the work that the busiest rank does, if no other axis shards this factor.
        is_known: whether all of its placements are in the catalogue.
        is_several: whether it shards several factors.
        sends: whether it sends something inside the op.
    """

    strategy: Strategy
    placed: tuple[int, ...]
    shards: tuple[float, ...]
    factor: int
    fraction: float
    is_known: bool
    is_several: bool
    sends: bool


@attrs.frozen(eq=False)
class StateTable:
    """The states of the nodes of one source.

    Attributes:
        by_axis: for each axis of the mesh, strategies.
        chosen: [states, axes], which of these each state takes.
        order: by state, the axes, by position, those that shard one factor in nesting order.
        seconds: what each takes inside the op.
        operands, results: [states, operands] and [states, results], joint placements.
    """

    by_axis: Sequence[Sequence[Strategy]]
    chosen: Numbers
    order: Sequence[tuple[int, ...]]
    seconds: Numbers
    operands: Numbers
    results: Numbers

    def strategies(self, state: int) -> Joint:
        """Return the strategy of a state on each axis."""
        return tuple([found[at] for found, at in zip(self.by_axis, self.chosen[state].tolist(), strict=True)])


class StateFinder:
    """Finds the states of nodes on a block of axes, the strategies of the other axes fixed."""

    def __init__(self, problem: Problem, shared: Quotient, placements: JointPlacements):
        self.mesh, self.shared, self.placements = problem.mesh, shared, placements
        self.axes = tuple(zip(placements.axes, placements.counts, strict=True))
        self._natural = tuple(range(len(self.axes)))
        self._dims = np.array([-1 if p.dim is None else p.dim for p in placements.catalogue.placements])
        self._known: dict[object, StateTable] = {}
        self._numbered: dict[tuple[Strategy, int], Numbered] = {}
        none = (frozenset[Strategy](),) * len(shared.nodes)
        idle = [none if problem.is_small else self._idle_on(axis, count) for axis, count in self.axes]
        self._idle = list(zip(*idle, strict=True))

    def of(self, part: int, block: Sequence[int], fixed: Sequence[Strategy | None] | None) -> StateTable:
        """Return the states of a part of the program.

        Args:
            block: positions of axes in the mesh.
            fixed: the strategy of the part on each axis, of which those in the block do not count.

        Raises:
            Unsolvable: there is none.
        """
        source, idle = self.shared.nodes[part].source, self._idle[part]
        beside = tuple(None if axis in block or fixed is None else fixed[axis] for axis in range(len(self.axes)))
        key = source, tuple(block), beside, idle
        found = self._known.get(key)
        if found is None:
            chosen = joint_strategies(source, self.axes, idle, beside)
            counts = self.placements.counts
            by_axis = [[self._number(s, count) for s in of] for of, count in zip(chosen.by_axis, counts, strict=True)]
            rows = chosen.chosen
            if not all(one.is_known for of in by_axis for one in of):
                rows = [row for row in rows if all(of[at].is_known for of, at in zip(by_axis, row, strict=True))]
            if not rows:
                raise Unsolvable(self.shared.members[part][0], self._without_strategy(source, block))
            found = self._known[key] = self._states(source, block, by_axis, np.array(rows))
        return found

    def _idle_on(self, axis: str, count: int) -> list[frozenset[Strategy]]:
        """Return, by part, its idle strategies on an axis."""
        shared = self.shared
        makers = [[(slot, shared.producer[value]) for slot, value in uses] for uses in shared.uses]
        known: dict[StrategySource, Sequence[Strategy]] = {}
        for node in shared.nodes:
            if node.source not in known:
                known[node.source] = node.source.candidates(axis, count)
        return idle_strategies([known[node.source] for node in shared.nodes], makers)

    def _without_strategy(self, source: StrategySource, block: Sequence[int]) -> str:
        for axis, count in [self.axes[position] for position in block]:
            if not any(self._number(strategy, count).is_known for strategy in source.candidates(axis, count)):
                return axis
        return self.axes[block[-1]][0]

    def _number(self, strategy: Strategy, count: int) -> Numbered:
        found = self._numbered.get((strategy, count))
        if found is None:
            index = self.placements.catalogue.index
            placed = tuple([index.get(placement, -1) for placement in (*strategy.operands, *strategy.results)])
            shards = tuple([float(p.trait == "shard") for p in (*strategy.operands, *strategy.results)])
            found = Numbered(
                strategy,
                placed,
                shards,
                factor=strategy.factors[0] if strategy.factors else -1,
                fraction=fractions([strategy], [count])[0],
                is_known=-1 not in placed,
                is_several=len(strategy.factors) > 1,
                sends=bool(strategy.sent_bytes or strategy.inner_bytes),
            )
            self._numbered[strategy, count] = found
        return found

    def _states(
        self, source: StrategySource, block: Sequence[int], by_axis: Sequence[Sequence[Numbered]], rows: Numbers
    ) -> StateTable:
        """Return the states of joint strategies.

        Args:
            rows: [joint strategies, axes], which of `by_axis` each takes.
        """
        strategies = [[one.strategy for one in of] for of in by_axis]
        columns = list(zip(by_axis, rows.T, strict=True))
        placed = np.stack([np.array([one.placed for one in of])[at] for of, at in columns], axis=-1)
        seconds, numbers = self._seconds(source, by_axis, rows), self.placements.numbers(placed)
        orders = [self._natural] * len(rows)
        nested = self._nested(placed)
        if nested:
            every = [
                (at, order)
                for at, row in enumerate(rows.tolist())
                for order in (self._orders(source, block, by_axis, row) if at in nested else orders[:1])
            ]
            states, orders = map(list, zip(*every, strict=True))
            rows, seconds, numbers = rows[states], seconds[states], numbers[states]
            for state, (at, order) in enumerate(every):
                if order != self._natural:
                    numbers[state] = [self.placements.number(tuple(axes), order) for axes in placed[at].tolist()]
        operands = len(strategies[0][0].operands)
        return StateTable(strategies, rows, orders, seconds, numbers[:, :operands], numbers[:, operands:])

    def _nested(self, placed: Numbers) -> frozenset[int]:
        """Return which joint strategies shard a dimension of some value by several axes."""
        dims = self._dims[placed]
        found = np.zeros(len(placed), dtype=bool)
        for one, other in itertools.combinations(self._natural, 2):
            found |= ((dims[..., one] >= 0) & (dims[..., one] == dims[..., other])).any(1)
        return frozenset(np.flatnonzero(found).tolist())

    def _seconds(
        self,
        source: StrategySource,
        by_axis: Sequence[Sequence[Numbered]],
        rows: Numbers,
    ) -> Numbers:
        """Return, by joint strategy, what it takes inside the op."""
        work, topology = source.work, self.shared.topology
        is_measured = topology.costs is not None and work.op
        if is_measured or any(one.sends for of in by_axis for one in of):
            axes = self.placements.axes
            joints = [[of[at].strategy for of, at in zip(by_axis, row, strict=True)] for row in rows.tolist()]
            return np.array([node_seconds(work, joint, axes, self.mesh, self.shared) for joint in joints])
        if work is NO_WORK:
            return np.zeros(len(rows))
        local = np.ones(1)
        compute = self._fractions_of(by_axis, rows)
        for axis, found in enumerate(by_axis):
            shards = np.array([one.shards for one in found])[rows[:, axis]]
            local = local * (1.0 - shards + shards * compute[:, axis, None])
        parts, operands = list(local.T), len(by_axis[0][0].strategy.operands)
        results = parts[operands : operands + len(work.result_bytes)]
        launches, arithmetic, traffic = work.terms(topology, compute.prod(1), parts[: len(work.operand_bytes)], results)
        return launches + np.maximum(arithmetic, traffic)

    def _fractions_of(self, by_axis: Sequence[Sequence[Numbered]], rows: Numbers) -> Numbers:
        """Return [joint strategies, axes], the `fractions` of each."""
        counts, columns = self.placements.counts, list(zip(by_axis, rows.T, strict=True))
        found = np.stack([np.array([one.fraction for one in of])[at] for of, at in columns], axis=1)
        factors = np.stack([np.array([one.factor for one in of])[at] for of, at in columns], axis=1)
        together = np.full(len(rows), any(one.is_several for of in by_axis for one in of))
        for one, other in itertools.combinations(self._natural, 2):
            together |= (factors[:, one] == factors[:, other]) & (factors[:, one] >= 0)
        for at in np.flatnonzero(together).tolist():
            joint = [of[index].strategy for of, index in zip(by_axis, rows[at].tolist(), strict=True)]
            found[at] = fractions(joint, counts)
        return found

    def _orders(
        self, source: StrategySource, block: Sequence[int], by_axis: Sequence[Sequence[Numbered]], row: Sequence[int]
    ) -> list[tuple[int, ...]]:
        """Return the nesting orders that the axes may have: any, but for user annotations and factors.

        Where more than `NESTED` axes shard something, those outside the block stay in the order of the mesh.
        """
        factors = [of[at].factor for of, at in zip(by_axis, row, strict=True)]
        sharding = [axis for axis, factor in enumerate(factors) if factor >= 0]
        moving = sharding if len(sharding) <= NESTED else [axis for axis in sharding if axis in block]
        found = []
        for moved in itertools.permutations(moving):
            order = list(self._natural)
            for at, axis in zip(moving, moved, strict=True):
                order[at] = axis
            nested = itertools.combinations(range(len(order)), 2)
            if all(self._may_nest(source, factors, order[outer], order[inner]) for outer, inner in nested):
                found.append(tuple(order))
        return found or [self._natural]

    def _may_nest(self, source: StrategySource, factors: Sequence[int], outer: int, inner: int) -> bool:
        """Return whether one axis may be outside another where both shard one dimension."""
        own, other = factors[outer], factors[inner]
        if own < 0 or other < 0:
            return outer < inner
        if own != other:
            majors = source.majors
            return own in majors.get(other, ()) or (other not in majors.get(own, ()) and outer < inner)
        names = self.placements.axes[outer], self.placements.axes[inner]
        for sharding in source.annotations:
            for dim in {p.dim for axis, p in sharding.entries if axis in names and p.dim is not None}:
                axes = [axis for axis in sharding.dim_axes(dim) if axis in names]
                if len(axes) == 2 and tuple(axes) != names:
                    return False
        return True
