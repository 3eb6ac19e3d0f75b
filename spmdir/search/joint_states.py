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
        self.axes = tuple(zip(placements.axes, placements.counts, strict=True))  # (name, number of ranks) pairs
        self._natural = tuple(range(len(self.axes)))  # the nesting order of the mesh
        self._dims = np.array([-1 if p.dim is None else p.dim for p in placements.catalogue.placements])
        self._tables: dict[object, StateTable] = {}
        self._numbered: dict[tuple[Strategy, int], NumberedStrategy] = {}  # a cache of `_numbered_strategy`
        # All strategies of small programs are searched, also idle ones.
        no_idle = (frozenset[Strategy](),) * len(shared.nodes)
        idle_by_axis = [no_idle if problem.is_small else self._idle_on(axis, count) for axis, count in self.axes]
        self._idle = list(zip(*idle_by_axis, strict=True))  # [part][axis], the idle strategies

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
            rows = _known_rows(by_axis, joint.chosen)
            if not rows:
                raise Unsolvable(self.shared.members[part][0], self._axis_without_strategy(source, block))
            table = self._tables[key] = self._states(source, block, by_axis, np.array(rows))
        return table

    def _idle_on(self, axis: str, count: int) -> list[frozenset[Strategy]]:
        """Return for each part the strategies on an axis of `count` ranks that `idle_strategies` finds idle."""
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
        """Return a strategy on an axis of `count` ranks, with the numbers of its placements. It is computed once."""
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

        For example, on the axes a and b, the joint strategy (rows, R) is one state, with the order (a, b). The joint
        strategy (rows, rows) is two: one with the order (a, b), and one with (b, a).

        Args:
            by_axis: [axis], the strategies of the source.
            rows: [joint strategy, axis], indices into `by_axis`.
        """
        placement_columns = []
        for strategies, index in zip(by_axis, rows.T, strict=True):
            placement_columns.append(np.array([strategy.placement_numbers for strategy in strategies])[index])
        placed = np.stack(placement_columns, axis=-1)  # [joint strategy, value, axis], numbers in the catalogue
        seconds, joint_placements = self._seconds(source, by_axis, rows), self.placements.numbers(placed)
        # One state for each pair of a joint strategy and an order.
        orders_by_row = self._orders_by_row(source, block, by_axis, rows, self._find_nested_rows(placed))
        row_of_state = [row for row, orders in enumerate(orders_by_row) for _ in orders]
        order_of_state = list(itertools.chain(*orders_by_row))
        rows, seconds, joint_placements = rows[row_of_state], seconds[row_of_state], joint_placements[row_of_state]
        for state, order in enumerate(order_of_state):
            if order != self._natural:
                placed_in_state = placed[row_of_state[state]].tolist()
                joint_placements[state] = [self.placements.number(tuple(axes), order) for axes in placed_in_state]
        strategies_by_axis = [[numbered.strategy for numbered in strategies] for strategies in by_axis]
        # All strategies of a node have the same number of operands.
        operands, results = np.split(joint_placements, [len(strategies_by_axis[0][0].operands)], axis=1)
        return StateTable(strategies_by_axis, rows, order_of_state, seconds, operands, results)

    def _orders_by_row(
        self,
        source: StrategySource,
        block: Sequence[int],
        by_axis: Sequence[Sequence[NumberedStrategy]],
        rows: Numbers,
        nested_rows: Sequence[int],
    ) -> list[list[tuple[int, ...]]]:
        """Return for each joint strategy its legal nesting orders.

        Joint strategies that are not in `nested_rows` have only the order of the mesh, because no order matters.

        Args:
            rows: [joint strategy, axis], indices into `by_axis`.
            nested_rows: the joint strategies that shard one dimension over several axes.
        """
        orders_by_row = [[self._natural]] * len(rows)
        orders_by_key: dict[object, list[tuple[int, ...]]] = {}
        for row in nested_rows:
            joint = [strategies[index] for strategies, index in zip(by_axis, rows[row].tolist(), strict=True)]
            factors = tuple([strategy.factor for strategy in joint])
            fixed_axes = tuple([axis for axis in self._natural if joint[axis].nests_as_mesh])
            if (factors, fixed_axes) not in orders_by_key:
                orders_by_key[factors, fixed_axes] = self._orders(source, block, factors, fixed_axes)
            orders_by_row[row] = orders_by_key[factors, fixed_axes]
        return orders_by_row

    def _find_nested_rows(self, placed: Numbers) -> list[int]:
        """Return the joint strategies that shard a dimension of some value over several axes.

        Args:
            placed: [joint strategy, value, axis], numbers of placements in the catalogue.
        """
        dims = self._dims[placed]
        is_nested = np.zeros(len(placed), dtype=bool)
        for axis, other_axis in itertools.combinations(self._natural, 2):
            is_nested |= ((dims[..., axis] >= 0) & (dims[..., axis] == dims[..., other_axis])).any(1)
        return np.flatnonzero(is_nested).tolist()

    def _seconds(
        self,
        source: StrategySource,
        by_axis: Sequence[Sequence[NumberedStrategy]],
        rows: Numbers,
    ) -> Numbers:
        """Return for each joint strategy the seconds of the op without reshards.

        If the time is not measured and the op sends nothing inside, all times are computed at once as arrays. The
        result is the same as that of `node_seconds`.
        """
        work, topology = source.work, self.shared.topology
        is_measured = topology.costs is not None and work.op
        if is_measured or any(strategy.sends for strategies in by_axis for strategy in strategies):
            seconds: list[float] = []
            for row in rows.tolist():
                joint = [strategies[index].strategy for strategies, index in zip(by_axis, row, strict=True)]
                seconds.append(node_seconds(work, joint, self.placements.axes, self.mesh, self.shared))
            return np.array(seconds)
        if work is NO_WORK:
            return np.zeros(len(rows))
        work_fractions = self._fractions_of(by_axis, rows)
        # [joint strategy, value], the fraction of a value on the busiest rank. An axis divides a value that it shards
        # as it divides the work, and leaves other values whole.
        value_fractions = np.ones(1)
        for axis, strategies in enumerate(by_axis):
            shards = np.array([strategy.shards for strategy in strategies])[rows[:, axis]]  # 1.0 or 0.0
            value_fractions = value_fractions * (shards * work_fractions[:, axis, None] + (1.0 - shards))
        fractions_by_value, operand_count = list(value_fractions.T), len(by_axis[0][0].strategy.operands)
        # `work` may list fewer tensors than the node has: a tie is read and written by no op.
        launches, arithmetic, traffic = work.terms(
            topology,
            work_fractions.prod(1),
            fractions_by_value[: len(work.operand_bytes)],
            fractions_by_value[operand_count : operand_count + len(work.result_bytes)],
        )
        return launches + np.maximum(arithmetic, traffic)

    def _fractions_of(self, by_axis: Sequence[Sequence[NumberedStrategy]], rows: Numbers) -> Numbers:
        """Return an array [joint strategy, axis]: the fraction of the work that the axis leaves to the busiest rank."""
        fraction_columns, factor_columns = [], []
        for strategies, index in zip(by_axis, rows.T, strict=True):
            fraction_columns.append(np.array([strategy.fraction for strategy in strategies])[index])
            factor_columns.append(np.array([strategy.factor for strategy in strategies])[index])
        fraction_by_axis = np.stack(fraction_columns, axis=1)
        # Where several axes shard one factor, the fraction on an axis depends on the axes before it. `factor` is only
        # the first factor of a strategy. If a strategy shards several factors, all rows are computed one by one.
        any_shards_several = any(strategy.shards_several for strategies in by_axis for strategy in strategies)
        shares_factor = np.full(len(rows), any_shards_several)
        for factors, other_factors in itertools.combinations(factor_columns, 2):
            shares_factor |= (factors == other_factors) & (factors >= 0)
        for row in np.flatnonzero(shares_factor).tolist():
            joint = [strategies[index].strategy for strategies, index in zip(by_axis, rows[row].tolist(), strict=True)]
            fraction_by_axis[row] = fractions(joint, self.placements.counts, self.shared.topology.imbalance)
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
        outer_name, inner_name = self.placements.axes[outer], self.placements.axes[inner]
        for sharding in source.annotations:
            for dim in {placement.dim for _, placement in sharding.entries if placement.dim is not None}:
                axes = [axis for axis in sharding.dim_axes(dim) if axis in (outer_name, inner_name)]
                if axes == [inner_name, outer_name]:
                    return False
        return True


def _known_rows(
    by_axis: Sequence[Sequence[NumberedStrategy]], rows: Sequence[tuple[int, ...]]
) -> Sequence[tuple[int, ...]]:
    """Return the joint strategies whose placements are all in the catalogue, each an index into `by_axis` per axis."""
    if all(strategy.is_known for strategies in by_axis for strategy in strategies):
        return rows
    known_rows = []
    for row in rows:
        if all(strategies[index].is_known for strategies, index in zip(by_axis, row, strict=True)):
            known_rows.append(row)
    return known_rows
