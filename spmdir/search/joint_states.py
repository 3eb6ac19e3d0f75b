"""The states of a node on a block of mesh axes.

A state is a joint strategy (one strategy for each axis) with a nesting order of the axes that shard one dimension. For
example, `mm` of two 1024 × 1024 f32 matrices on the mesh (a = 2, b = 2), on `h100x8`, has among others the states

    a: R            b: R                            47.8 µs
    a: rows         b: R                            24.9 µs
    a: rows         b: rows, a outside b            13.4 µs
    a: rows         b: rows, b outside a            13.4 µs
    a: rows         b: the summed dimension         13.4 µs, one state: the axes shard different factors

Each state has the seconds that the op takes, and the numbers of the joint placements of its operands and results.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import attrs
import numpy as np

from spmdir.rules.strategies.strategy import Strategy
from spmdir.search.joint_cost import node_seconds
from spmdir.search.joint_placements import JointPlacements, Numbers
from spmdir.search.joint_strategies import Joint, idle_strategies, joint_strategies
from spmdir.search.merged_nodes import Quotient
from spmdir.search.problem import Problem, StrategySource, fractions
from spmdir.search.roofline import NO_WORK

MOST_NESTED = 3
"""If more axes than this shard a node, only the axes of the block change their nesting order."""


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
class NumberedStrategy:
    """A strategy of a node on one axis, with the numbers that the arrays of all states are computed from.

    Attributes:
        placement_numbers: for each operand, then each result, the number of its placement in the catalogue; -1 for a
            placement that the catalogue does not contain.
        shards: for each operand, then each result, 1.0 if the strategy shards it, else 0.0.
        factor: the first factor that the strategy shards, or -1.
        fraction: the fraction of the work that the busiest rank does, if this axis alone shards the factor.
        is_known: whether the catalogue contains all placements.
        shards_several: whether the strategy shards several factors.
        sends: whether the op communicates inside.
        nests_as_mesh: whether axes with this strategy nest in the order of the mesh, as one of its placements requires.
    """

    strategy: Strategy
    placement_numbers: tuple[int, ...]
    shards: tuple[float, ...]
    factor: int
    fraction: float
    is_known: bool
    shards_several: bool
    sends: bool
    nests_as_mesh: bool


@attrs.frozen(eq=False)
class StateTable:
    """The states of the nodes of one source.

    Attributes:
        by_axis: [axis], strategies.
        chosen: [state, axis], indices into `by_axis`.
        order: [state], positions of axes; axes that shard one factor are in nesting order.
        seconds: [state], the time of the op without reshards.
        operands, results: [state, operand] and [state, result], numbers of joint placements.
    """

    by_axis: Sequence[Sequence[Strategy]]
    chosen: Numbers
    order: Sequence[tuple[int, ...]]
    seconds: Numbers
    operands: Numbers
    results: Numbers

    def strategies(self, state: int) -> Joint:
        """Return the strategy on each axis of the state with this number."""
        return tuple(
            [strategies[index] for strategies, index in zip(self.by_axis, self.chosen[state].tolist(), strict=True)]
        )


class StateFinder:
    """Finds the states of nodes on a block of axes, with fixed strategies on the other axes.

    Args:
        shared: the problem with equal nodes merged into parts.
        placements: the joint placements on the axes to consider. `of` numbers the joint placements of the states it
            returns.
    """

    def __init__(self, problem: Problem, shared: Quotient, placements: JointPlacements):
        self.mesh, self.shared, self.placements = problem.mesh, shared, placements
        self.axes = tuple(zip(placements.axes, placements.counts, strict=True))
        self._natural = tuple(range(len(self.axes)))
        self._dims = np.array([-1 if p.dim is None else p.dim for p in placements.catalogue.placements])
        self._tables: dict[object, StateTable] = {}
        self._numbered: dict[tuple[Strategy, int], NumberedStrategy] = {}
        no_idle = (frozenset[Strategy](),) * len(shared.nodes)
        idle = [no_idle if problem.is_small else self._idle_on(axis, count) for axis, count in self.axes]
        self._idle = list(zip(*idle, strict=True))

    def of(self, part: int, block: Sequence[int], fixed: Sequence[Strategy | None] | None) -> StateTable:
        """Return the states of a part of the program. Parts of equal sources and fixed strategies share one table.

        Args:
            block: positions of axes in `placements.axes`.
            fixed: the strategy of the part on each axis; those on axes of the block are ignored. None if no axis is
                fixed.

        Raises:
            Unsolvable: the part has no state.
        """
        source, idle = self.shared.nodes[part].source, self._idle[part]
        outside_block = tuple(None if axis in block or fixed is None else fixed[axis] for axis in range(len(self.axes)))
        key = source, tuple(block), outside_block, idle
        table = self._tables.get(key)
        if table is None:
            joint = joint_strategies(source, self.axes, idle, outside_block)
            counts = self.placements.counts
            by_axis = [
                [self._numbered_strategy(strategy, count) for strategy in strategies]
                for strategies, count in zip(joint.by_axis, counts, strict=True)
            ]
            rows = joint.chosen
            if not all(strategy.is_known for strategies in by_axis for strategy in strategies):
                rows = [
                    row
                    for row in rows
                    if all(strategies[index].is_known for strategies, index in zip(by_axis, row, strict=True))
                ]
            if not rows:
                raise Unsolvable(self.shared.members[part][0], self._axis_without_strategy(source, block))
            table = self._tables[key] = self._states(source, block, by_axis, np.array(rows))
        return table

    def _idle_on(self, axis: str, count: int) -> list[frozenset[Strategy]]:
        """Return [part], the strategies on an axis of `count` ranks that `idle_strategies` finds idle."""
        shared = self.shared
        producers = [[(operand_index, shared.producer[value]) for operand_index, value in uses] for uses in shared.uses]
        candidates: dict[StrategySource, Sequence[Strategy]] = {}
        for node in shared.nodes:
            if node.source not in candidates:
                candidates[node.source] = node.source.candidates(axis, count)
        return idle_strategies([candidates[node.source] for node in shared.nodes], producers)

    def _axis_without_strategy(self, source: StrategySource, block: Sequence[int]) -> str:
        """Return the first axis of the block without a strategy; the last one if each has some, but none together."""
        for axis, count in [self.axes[position] for position in block]:
            candidates = source.candidates(axis, count)
            if not any(self._numbered_strategy(strategy, count).is_known for strategy in candidates):
                return axis
        return self.axes[block[-1]][0]

    def _numbered_strategy(self, strategy: Strategy, count: int) -> NumberedStrategy:
        """Return a strategy on an axis of `count` ranks, with the numbers of its placements."""
        numbered = self._numbered.get((strategy, count))
        if numbered is None:
            index = self.placements.catalogue.index
            placements = (*strategy.operands, *strategy.results)
            placement_numbers = tuple([index.get(placement, -1) for placement in placements])
            numbered = NumberedStrategy(
                strategy,
                placement_numbers,
                shards=tuple([float(placement.trait == "shard") for placement in placements]),
                factor=strategy.factors[0] if strategy.factors else -1,
                fraction=fractions([strategy], [count], self.shared.topology.imbalance)[0],
                is_known=-1 not in placement_numbers,
                shards_several=len(strategy.factors) > 1,
                sends=bool(strategy.sent or strategy.inner_bytes),
                nests_as_mesh=any(placement.nests_as_mesh for placement in placements),
            )
            self._numbered[strategy, count] = numbered
        return numbered

    def _states(
        self, source: StrategySource, block: Sequence[int], by_axis: Sequence[Sequence[NumberedStrategy]], rows: Numbers
    ) -> StateTable:
        """Return the states of joint strategies: one for each legal nesting order of each joint strategy.

        Args:
            by_axis: [axis], the strategies of the source.
            rows: [joint strategy, axis], indices into `by_axis`.
        """
        strategies = [[strategy.strategy for strategy in strategies_on_axis] for strategies_on_axis in by_axis]
        columns = list(zip(by_axis, rows.T, strict=True))
        # [joint strategy, value, axis], numbers of placements in the catalogue
        placed = np.stack(
            [
                np.array([strategy.placement_numbers for strategy in strategies_on_axis])[index]
                for strategies_on_axis, index in columns
            ],
            axis=-1,
        )
        seconds, placements = self._seconds(source, by_axis, rows), self.placements.numbers(placed)
        orders = [self._natural] * len(rows)
        nested_rows = self._find_nested_rows(placed)
        if nested_rows:
            ordered_rows: list[tuple[int, tuple[int, ...]]] = []  # for each state, the row and the order
            orders_by_key: dict[object, list[tuple[int, ...]]] = {}
            for index, row in enumerate(rows.tolist()):
                row_orders = orders[:1]
                if index in nested_rows:
                    chosen = [numbered[number] for numbered, number in zip(by_axis, row, strict=True)]
                    factors = tuple([strategy.factor for strategy in chosen])
                    fixed_axes = tuple([axis for axis in self._natural if chosen[axis].nests_as_mesh])
                    if (factors, fixed_axes) not in orders_by_key:
                        orders_by_key[factors, fixed_axes] = self._orders(source, block, factors, fixed_axes)
                    row_orders = orders_by_key[factors, fixed_axes]
                ordered_rows += [(index, order) for order in row_orders]
            row_of_state, orders = map(list, zip(*ordered_rows, strict=True))
            rows, seconds, placements = rows[row_of_state], seconds[row_of_state], placements[row_of_state]
            for state, (index, order) in enumerate(ordered_rows):
                if order != self._natural:
                    placements[state] = [self.placements.number(tuple(axes), order) for axes in placed[index].tolist()]
        operands = len(strategies[0][0].operands)
        return StateTable(strategies, rows, orders, seconds, placements[:, :operands], placements[:, operands:])

    def _find_nested_rows(self, placed: Numbers) -> frozenset[int]:
        """Return the joint strategies that shard a dimension of some value over several axes.

        Args:
            placed: [joint strategy, value, axis], numbers of placements in the catalogue.
        """
        dims = self._dims[placed]
        is_nested = np.zeros(len(placed), dtype=bool)
        for axis, other_axis in itertools.combinations(self._natural, 2):
            is_nested |= ((dims[..., axis] >= 0) & (dims[..., axis] == dims[..., other_axis])).any(1)
        return frozenset(np.flatnonzero(is_nested).tolist())

    def _seconds(
        self,
        source: StrategySource,
        by_axis: Sequence[Sequence[NumberedStrategy]],
        rows: Numbers,
    ) -> Numbers:
        """Return [joint strategy], the seconds of the op without reshards.

        If the time is not measured and the op sends nothing inside, all times are computed at once as arrays. The
        result is the same as that of `node_seconds`.
        """
        work, topology = source.work, self.shared.topology
        is_measured = topology.costs is not None and work.op
        if is_measured or any(strategy.sends for strategies_on_axis in by_axis for strategy in strategies_on_axis):
            axes = self.placements.axes
            joints = [
                [strategies_on_axis[index].strategy for strategies_on_axis, index in zip(by_axis, row, strict=True)]
                for row in rows.tolist()
            ]
            return np.array([node_seconds(work, joint, axes, self.mesh, self.shared) for joint in joints])
        if work is NO_WORK:
            return np.zeros(len(rows))
        work_fractions = self._fractions_of(by_axis, rows)
        value_fractions = np.ones(1)  # [joint strategy, value]: an axis divides the values that it shards as the work
        for axis, strategies in enumerate(by_axis):
            shards = np.array([strategy.shards for strategy in strategies])[rows[:, axis]]
            value_fractions = value_fractions * (1.0 - shards + shards * work_fractions[:, axis, None])
        fractions_by_value, operand_count = list(value_fractions.T), len(by_axis[0][0].strategy.operands)
        launches, arithmetic, traffic = work.terms(
            topology,
            work_fractions.prod(1),
            fractions_by_value[: len(work.operand_bytes)],
            fractions_by_value[operand_count : operand_count + len(work.result_bytes)],
        )
        return launches + np.maximum(arithmetic, traffic)

    def _fractions_of(self, by_axis: Sequence[Sequence[NumberedStrategy]], rows: Numbers) -> Numbers:
        """Return [joint strategy, axis], the fraction of the work that each axis leaves to the busiest rank."""
        counts, columns = self.placements.counts, list(zip(by_axis, rows.T, strict=True))
        fraction_by_axis = np.stack(
            [np.array([strategy.fraction for strategy in strategies])[index] for strategies, index in columns], axis=1
        )
        factors = np.stack(
            [np.array([strategy.factor for strategy in strategies])[index] for strategies, index in columns], axis=1
        )
        # Where several axes shard one factor, the fraction on an axis depends on the axes before it.
        shares_factor = np.full(
            len(rows), any(strategy.shards_several for strategies in by_axis for strategy in strategies)
        )
        for axis, other_axis in itertools.combinations(self._natural, 2):
            shares_factor |= (factors[:, axis] == factors[:, other_axis]) & (factors[:, axis] >= 0)
        for row in np.flatnonzero(shares_factor).tolist():
            joint = [strategies[index].strategy for strategies, index in zip(by_axis, rows[row].tolist(), strict=True)]
            fraction_by_axis[row] = fractions(joint, counts, self.shared.topology.imbalance)
        return fraction_by_axis

    def _orders(
        self, source: StrategySource, block: Sequence[int], factors: Sequence[int], fixed_axes: Sequence[int]
    ) -> list[tuple[int, ...]]:
        """Return the legal nesting orders of all axes, outermost first; that of the mesh if none is legal.

        Legal orders are those that annotations and major factors permit. Only axes that shard something change places.
        If more than `MOST_NESTED` axes do, axes outside the block keep their places.

        Args:
            factors: the factor that each axis shards, or -1.
            fixed_axes: the axes that nest in the order of the mesh.
        """
        permuted_axes = [axis for axis, factor in enumerate(factors) if factor >= 0]
        if len(permuted_axes) > MOST_NESTED:
            permuted_axes = [axis for axis in permuted_axes if axis in block]
        orders = []
        for permutation in itertools.permutations(permuted_axes):
            order = list(self._natural)
            for position, axis in zip(permuted_axes, permutation, strict=True):
                order[position] = axis
            if [axis for axis in order if axis in fixed_axes] != list(fixed_axes):
                continue
            if all(self._may_nest(source, factors, outer, inner) for outer, inner in itertools.combinations(order, 2)):
                orders.append(tuple(order))
        return orders or [self._natural]

    def _may_nest(self, source: StrategySource, factors: Sequence[int], outer: int, inner: int) -> bool:
        """Return whether axis `outer` may precede axis `inner` in a nesting order.

        Axes of one factor may have any order that agrees with the annotations. Of two axes of different factors, that
        of the major factor comes first. All other pairs have the order of the mesh, because their order has no effect.

        Args:
            factors: the factor that each axis shards, or -1.
        """
        outer_factor, inner_factor = factors[outer], factors[inner]
        if outer_factor < 0 or inner_factor < 0:
            return outer < inner
        if outer_factor != inner_factor:
            if outer_factor in source.majors.get(inner_factor, ()):
                return True
            return inner_factor not in source.majors.get(outer_factor, ()) and outer < inner
        names = self.placements.axes[outer], self.placements.axes[inner]
        for sharding in source.annotations:
            for dim in {p.dim for axis, p in sharding.entries if axis in names and p.dim is not None}:
                axes = [axis for axis in sharding.dim_axes(dim) if axis in names]
                if len(axes) == 2 and tuple(axes) != names:
                    return False
        return True
