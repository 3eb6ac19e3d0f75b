"""Joint strategies: combinations of one strategy for each mesh axis that a node may take together.

The search and its certificate use the same joint strategies. So the certificate bounds every decision of the search.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

import attrs

from spmdir.core.placement.base import Placement
from spmdir.rules.strategies.strategy import Strategy, shard_counts
from spmdir.search.problem import StrategySource

Joint = tuple[Strategy, ...]
"""The strategy of a node on each axis."""

Axes = Sequence[tuple[str, int]]
"""Mesh axes, with the number of ranks on each."""

LIMIT = 8192
"""The largest number of combinations of a node, legal or not, that are enumerated without fixed strategies."""


@attrs.frozen(eq=False)
class JointStrategies:
    """Joint strategies of a node.

    Attributes:
        by_axis: [axis], the candidate strategies.
        chosen: [joint strategy], an index into `by_axis` for each axis.
    """

    by_axis: tuple[Sequence[Strategy], ...]
    chosen: Sequence[tuple[int, ...]]

    def joints(self) -> list[Joint]:
        """Return for each joint strategy the strategies on all axes."""
        return [
            tuple([strategies[index] for strategies, index in zip(self.by_axis, row, strict=True)])
            for row in self.chosen
        ]


def joint_strategies(
    source: StrategySource,
    axes: Axes,
    idle: Sequence[frozenset[Strategy]],
    fixed: Sequence[Strategy | None] | None = None,
) -> JointStrategies:
    """Return the legal joint strategies of a node that contain the fixed strategies, without idle ones.

    If there are none, `fixed` is ignored. If there are still none, as with contradictory annotations, every combination
    is returned. The result is empty only if the node has no strategy on some axis. Without `fixed` the result contains
    every result with `fixed`, unless there are more than `LIMIT` combinations.

    Args:
        idle: [axis], see `idle_strategies`.
        fixed: [axis], the strategy that the node must take, or None.
    """
    by_axis = candidates = tuple(source.candidates(axis, count) for axis, count in axes)
    if fixed is not None:
        by_axis = tuple(
            strategies if strategy is None else (strategy,)
            for strategy, strategies in zip(fixed, candidates, strict=True)
        )
    legal = _legal(source, axes, by_axis, idle)
    if not legal and math.prod(map(len, candidates)) <= LIMIT:
        by_axis = candidates
        legal = _legal(source, axes, by_axis, idle)
    every_combination = itertools.product(*[range(len(strategies)) for strategies in by_axis])
    return JointStrategies(by_axis, legal or list(every_combination))


def idle_strategies(
    by_node: Sequence[Sequence[Strategy]], producers: Sequence[Iterable[tuple[int, tuple[int, int]]]]
) -> list[frozenset[Strategy]]:
    """Return for each node its idle strategies on one axis: they pass on a partial value that no node produces.

    An idle strategy can be dropped because the replicated strategy of the node does the same. A node without a
    replicated strategy has no idle ones. Idle and replicated strategies shard no factor, so they are legal with the
    same strategies on the other axes.

    For example, an addition may pass on partial sums. If no producer of its operands can leave them partial, this
    strategy is idle. Then strategies of its users that pass on the partial result may be idle too.

    Args:
        by_node: [node], its strategies.
        producers: [node], pairs of an operand index and the (node, result index) that produces the operand.
    """
    partial_results: set[tuple[int, int, Placement]] = set()  # (node, result index, partial placement) that may occur
    candidates: dict[int, list[Strategy]] = {}  # node → its strategies that may be idle
    # list of strategies → the two results of `_split_partial`, because many nodes share one list
    known: dict[int, tuple[list[Strategy], list[tuple[int, Placement]]]] = {}
    for node, strategies in enumerate(by_node):
        if id(strategies) not in known:
            known[id(strategies)] = _split_partial(strategies)
        passing, created = known[id(strategies)]
        partial_results.update([(node, result_index, placement) for result_index, placement in created])
        if passing:
            candidates[node] = passing
    # A candidate is not idle if a producer may leave its operand partial. Then the results of the candidate may be
    # partial too, so users of these results are checked again, until nothing changes.
    changed = True
    while changed:
        changed = False
        for node, strategies in list(candidates.items()):
            node_producers = list(producers[node])
            idle: list[Strategy] = []
            for strategy in strategies:
                # (producing node, result index, the placement that this strategy needs) of each operand
                needed_results = [(*producer, strategy.operands[index]) for index, producer in node_producers]
                if partial_results.isdisjoint(needed_results):
                    idle.append(strategy)
                    continue
                changed = True
                results = _partial_results(strategy)
                partial_results.update([(node, result_index, placement) for result_index, placement in results])
            candidates[node] = idle
    return [frozenset(candidates.get(node, ())) for node in range(len(by_node))]


def _split_partial(strategies: Sequence[Strategy]) -> tuple[list[Strategy], list[tuple[int, Placement]]]:
    """Return the strategies that pass on a partial value, and the partial results that other strategies may create.

    Returns: the strategies, and (result index, partial placement) pairs.
    """
    passing = _strategies_passing_partial(strategies)
    # No strategy in `passing` shards a factor. Testing this first avoids most comparisons with the list.
    creating = [strategy for strategy in strategies if strategy.kinds and (strategy.factors or strategy not in passing)]
    return passing, list(dict.fromkeys(itertools.chain.from_iterable(map(_partial_results, creating))))


def _strategies_passing_partial(strategies: Sequence[Strategy]) -> list[Strategy]:
    """Return the strategies that shard no factor and have a partial operand.

    The result is empty if the node has no replicated strategy, which has no partial operand or result.
    """
    unsharded = [strategy for strategy in strategies if not strategy.factors]
    has_replicated = any(not strategy.kinds for strategy in unsharded)
    if not has_replicated:
        return []
    # `kinds` lists operands, then results; it is empty without partial values.
    return [strategy for strategy in unsharded if any(strategy.kinds[: len(strategy.operands)])]


def _partial_results(strategy: Strategy) -> list[tuple[int, Placement]]:
    """Return (result index, placement) for each partial result."""
    return [(index, placement) for index, placement in enumerate(strategy.results) if placement.kind is not None]


def _legal(
    source: StrategySource,
    axes: Axes,
    by_axis: Sequence[Sequence[Strategy]],
    idle: Sequence[frozenset[Strategy]],
) -> list[tuple[int, ...]]:
    """Return combinations of strategies, one index for each axis, that are legal together and not idle.

    The axes are added one after another. A strategy is legal if its source lists it for the strategies on the earlier
    axes. If a source has major factors, plug-in placements or strategies in text, a strategy may be legal only with a
    strategy on a later axis. Then all combinations are enumerated, and the source must list each strategy for the
    strategies on all other axes.

    Args:
        by_axis: [axis], the candidate strategies.
        idle: [axis], the strategies to leave out.
    """
    needs_all_axes = bool(source.majors) or any(
        strategy.factor_placements or strategy.text for strategies in by_axis for strategy in strategies
    )
    rows: list[tuple[int, ...]] = [()]
    for position, idle_on_axis in enumerate(idle):
        index_of = {strategy: index for index, strategy in enumerate(by_axis[position]) if strategy not in idle_on_axis}
        rows = _add_axis(None if needs_all_axes else source, axes, by_axis, rows, index_of)
    if not needs_all_axes:
        return rows
    legal_rows: list[tuple[int, ...]] = []
    for row in rows:
        joint = [strategies_on_axis[index] for strategies_on_axis, index in zip(by_axis, row, strict=True)]
        if is_legal(source, axes, joint):
            legal_rows.append(row)
    return legal_rows


def _add_axis(
    source: StrategySource | None,
    axes: Axes,
    by_axis: Sequence[Sequence[Strategy]],
    rows: Sequence[tuple[int, ...]],
    index_of: Mapping[Strategy, int],
) -> list[tuple[int, ...]]:
    """Return the rows with one more index each: that of a strategy on the next axis that is legal with the row.

    For example, the rows (0,) and (1,) on the first axis, and the strategies 0 and 2 on the second. If 2 is not legal
    with 1, the result is (0, 0), (0, 2), (1, 0).

    Args:
        source: lists the legal strategies. If it is None, all in `index_of` are legal, unless a value would be partial
            with different reductions on different axes.
        rows: combinations of strategies on the first axes, as indices into `by_axis`; all rows have one length.
        index_of: strategy on the next axis → its index.
    """
    # the factors that the earlier axes shard → the strategies on this axis that are legal with these
    legal_by_factors: dict[object, list[Strategy]] = {}
    counts = [count for _, count in axes]
    longer_rows: list[tuple[int, ...]] = []
    for row in rows:
        # the strategies on the earlier axes; `row` is shorter than `by_axis`
        joint = [strategies_on_axis[index] for strategies_on_axis, index in zip(by_axis, row, strict=False)]
        key = None if source is None else tuple([strategy.factors for strategy in joint])
        if key not in legal_by_factors:
            legal: Iterable[Strategy] = index_of
            if source is not None:
                axis, count = axes[len(row)]
                legal = source.strategies(axis, count, shard_counts(zip(joint, counts, strict=False)))
            legal_by_factors[key] = [strategy for strategy in legal if strategy in index_of]
        kinds = [strategy.kinds for strategy in joint if strategy.kinds]
        for strategy in legal_by_factors[key]:
            if not kinds or not strategy.kinds or not _mixes([strategy.kinds, *kinds]):
                longer_rows.append((*row, index_of[strategy]))
    return longer_rows


def _mixes(kinds: Sequence[tuple[str | None, ...]]) -> bool:
    """Return whether a value would be partial with different reductions on different axes.

    Args:
        kinds: [axis], the kind of reduction of each operand and result, or None.
    """
    return any(len({*value} - {None}) > 1 for value in zip(*kinds, strict=True))


def is_legal(source: StrategySource, axes: Axes, joint: Sequence[Strategy]) -> bool:
    """Return whether the source lists each strategy for the strategies on all other axes.

    Args:
        joint: one strategy for each of `axes`.
    """
    for position, (axis, count) in enumerate(axes):
        other_strategies = [
            (joint[other_position], ranks)
            for other_position, (_, ranks) in enumerate(axes)
            if other_position != position
        ]
        if joint[position] not in source.strategies(axis, count, shard_counts(other_strategies)):
            return False
    return True
