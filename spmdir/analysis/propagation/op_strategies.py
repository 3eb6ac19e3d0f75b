"""The strategies of torch ops that agree with the user annotations."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence

import attrs

from spmdir.core.axes import axis_part
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Placement
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.shards import ShardPlacement
from spmdir.core.placement.standard import R
from spmdir.rules import OpRule, Strategy
from spmdir.rules.strategies.strategy import UNSHARDED, ShardCounts, shard_counts
from spmdir.search.problem import NO_PLACEMENTS, AxisPlacements, Problem, parts_of, splits
from spmdir.search.roofline import Work

_ADDITIVE = ("sum", "avg", "product")
"""The reductions whose floating-point result depends on the order of their operands."""


@attrs.frozen(cache_hash=True)
class OpStrategies:
    """The strategies of a torch op: its rule's strategies, or replicated if it has no rule.

    Attributes:
        rule: the instantiated rule, compared by identity because instantiation is memoised.
        operands: the number of operands.
        results: for each result, its user annotation or None.
        kept_shardings: for each operand, the sharding that the op must use, open along axes that are not kept; () if
            none is kept.
        work: the work of the unsharded op.
        keep_sum_order: avoid strategies that change the order of additions, unless there are no others.
        parts: the sub-axes of the mesh. Sub-axes of one axis must shard a factor evenly.
        sizes: (axis, size) of all axes, if a result has a user annotation or an operand is kept.
        plugin_placements: for each axis, the candidate plug-in placements of the op's values.
        apart: the axes whose ranks have separate batches. They shard only rows of the batch.
        rows: for each result, the dimensions with rows of the batch; () if the op does not depend on the batch.
        mixes_routes: whether operands may have rows of several routes, so that no placement may be routed.
    """

    rule: OpRule | None = attrs.field(eq=id)
    operands: int
    results: tuple[Sharding | None, ...]
    work: Work
    kept_shardings: tuple[Sharding | None, ...] = attrs.field(default=(), kw_only=True)
    keep_sum_order: bool = False
    parts: tuple[str, ...] = ()
    sizes: tuple[tuple[str, int], ...] = ()
    plugin_placements: AxisPlacements = NO_PLACEMENTS
    apart: tuple[str, ...] = ()
    rows: tuple[frozenset[int], ...] = ()
    mixes_routes: bool = False
    _strategies_of_key: dict[object, tuple[Strategy, ...]] = attrs.field(factory=dict, eq=False, init=False, repr=False)
    _sized_strategies: dict[object, Strategy] = attrs.field(factory=dict, eq=False, init=False, repr=False)

    @property
    def annotations(self) -> Collection[Sharding]:
        """Return the user annotations of the results."""
        return [sharding for sharding in self.results if sharding is not None]

    @property
    def _annotations(self) -> tuple[Sharding | None, ...]:
        """Return the shardings that strategies must agree with, of results and of kept operands."""
        return self.results + self.kept_shardings

    @property
    def majors(self) -> Mapping[int, Collection[int]]:
        """Return factor → the factors that are outside it in some dimension."""
        return self.rule.majors if self.rule is not None else {}

    def strategies(self, axis: str, count: int, sharded: ShardCounts) -> tuple[Strategy, ...]:
        """Return the strategies on an axis of `count` ranks that agree with the annotations.

        Args:
            sharded: the number of shards of each factor along other axes.
        """
        if self.rule is None:
            return tuple(self._fitting((Strategy((R,) * self.operands, (R,) * len(self.results)),), axis))
        key = (  # the name of the axis matters only for annotations, sub-axes and rows of the batch
            axis if any(self._annotations) or axis in self.parts or self.rows else "",
            count,
            sharded.key,
            self.plugin_placements.on(axis),
        )
        if key not in self._strategies_of_key:
            self._strategies_of_key[key] = self._strategies(self.rule, axis, count, sharded)
        return self._strategies_of_key[key]

    def candidates(self, axis: str, count: int) -> tuple[Strategy, ...]:
        """Return the strategies on an axis of `count` ranks that are legal for some choice on other axes."""
        unsharded = self.strategies(axis, count, UNSHARDED)
        if not self.majors:
            return unsharded
        # A minor factor can be sharded once its major factors are.
        with_sharded_majors = [
            self.strategies(axis, count, self._fully_sharded(majors)) for majors in self.majors.values()
        ]
        return tuple(dict.fromkeys(itertools.chain(unsharded, *with_sharded_majors)))

    def _strategies(self, rule: OpRule, axis: str, count: int, sharded: ShardCounts) -> tuple[Strategy, ...]:
        """Return `strategies` of an op with a rule.

        Some conditions are preferences: to keep the order of sums, to leave no rank idle, and to shard only rows of the
        batch along `apart`. A preference is dropped if no strategy meets it.
        """
        fitting = self._fitting(rule.strategies(count, sharded, self.plugin_placements.on(axis)), axis)
        if not fitting and self.sizes:
            # The annotated placement may be legal only with the annotated placements on other axes.
            sharded = sharded.with_fallback(self._shards_on_other_axes(rule, axis))
            fitting = self._fitting(rule.strategies(count, sharded, self.plugin_placements.on(axis)), axis)
        if self.mixes_routes:
            fitting = [s for s in fitting if not any(p.is_routed for p in (*s.operands, *s.results))]
        if self.keep_sum_order:
            fitting = [strategy for strategy in fitting if not self._reorders_a_sum(strategy)] or fitting
        # Some ranks would be idle if one of these factors were sharded.
        too_small = {number for number, factor in enumerate(rule.factors) if factor.size < count * sharded.of(number)}
        fitting = [strategy for strategy in fitting if too_small.isdisjoint(strategy.factors)] or fitting
        # `axis_part` returns the mesh axis first; an axis whose name it cannot parse is a mesh axis.
        root_axis = (axis_part(axis) or (axis,))[0]
        if self.rows and root_axis in self.apart:
            fitting = [strategy for strategy in fitting if self._shards_rows(strategy)] or fitting
        if axis in self.parts:
            fitting = [
                strategy
                for strategy in fitting
                if all(splits(rule.factors[number].size, count, sharded.of(number)) for number in strategy.factors)
            ]
        return tuple(self._with_sizes(strategy, count) for strategy in fitting)

    def _shards_rows(self, strategy: Strategy) -> bool:
        """Return whether a strategy shards only dimensions with rows of the batch."""
        return all(
            placement.dim is None or placement.dim in rows
            for placement, rows in zip(strategy.results, self.rows, strict=True)
        )

    def _fully_sharded(self, factors: Collection[int]) -> ShardCounts:
        """Return shard counts with `factors` sharded down to single elements by other axes."""
        assert self.rule is not None
        return ShardCounts({factor: self.rule.factors[factor].size for factor in sorted(factors)})

    def _fitting(self, strategies: Sequence[Strategy], axis: str) -> Sequence[Strategy]:
        """Return the strategies that agree on `axis` with the user annotations and with the kept operands."""
        result_placements, operand_placements = _on_axis(self.results, axis), _on_axis(self.kept_shardings, axis)
        if not result_placements and not operand_placements:
            return strategies
        return [
            strategy
            for strategy in strategies
            if all(strategy.results[index] == placement for index, placement in result_placements)
            and all(strategy.operands[index] == placement for index, placement in operand_placements)
        ]

    def _shards_on_other_axes(self, rule: OpRule, axis: str) -> ShardCounts:
        """Return the number of shards of each factor along axes other than `axis`, according to the annotations.

        A factor may only be sharded after its major factors, and the order of the axes in the annotations may differ.
        So each round decides the first axis that has a fitting strategy, given those of the decided axes.
        """
        decided: list[tuple[Strategy, int]] = []  # the strategy and the size of each decided axis
        annotated_axes = [
            annotated_axis for annotation in self._annotations if annotation for annotated_axis, _ in annotation.entries
        ]
        undecided_axes = [other_axis for other_axis in dict.fromkeys(annotated_axes) if other_axis != axis]
        sizes = dict(self.sizes)
        for _round in range(len(undecided_axes)):
            for other_axis in undecided_axes:
                count, placements = sizes[other_axis], self.plugin_placements.on(other_axis)
                strategies = self._fitting(rule.strategies(count, shard_counts(decided), placements), other_axis)
                if strategies:
                    decided.append((strategies[0], count))
                    undecided_axes.remove(other_axis)
                    break
        return shard_counts(decided)

    def with_work(self, work: Work) -> OpStrategies:
        """Return a copy with another `work`. It shares the cached strategies, which do not depend on `work`."""
        copy = attrs.evolve(self, work=work)
        object.__setattr__(copy, "_strategies_of_key", self._strategies_of_key)
        object.__setattr__(copy, "_sized_strategies", self._sized_strategies)
        return copy

    def on(self, mesh: Mesh) -> OpStrategies:
        """Return this source on a mesh that splits some axes into sub-axes."""
        results = tuple(sharding.refined(mesh) if sharding else None for sharding in self.results)
        kept_shardings = tuple(sharding.refined(mesh) if sharding else None for sharding in self.kept_shardings)
        sizes = mesh.axes if any(results) or any(kept_shardings) else ()
        return attrs.evolve(self, results=results, kept_shardings=kept_shardings, parts=parts_of(mesh), sizes=sizes)

    def _with_sizes(self, strategy: Strategy, count: int) -> Strategy:
        """Return a strategy with the bytes that it sends inside the op, and with the dimension that it shards."""
        key = strategy, count
        if key not in self._sized_strategies:
            self._sized_strategies[key] = self._sized(strategy, count)
        return self._sized_strategies[key]

    def _sized(self, strategy: Strategy, count: int) -> Strategy:
        """Return `strategy` on `count` ranks with inner bytes, sent tensors and partition.

        If the strategy expands the op, `inner_bytes` lists the reductions inside the op; otherwise it lists halos. A
        strategy without a sharded factor gets only its placements.
        """
        if not strategy.factors or self.rule is None:
            return Strategy(strategy.operands, strategy.results)
        factor = strategy.factors[0]
        placement = strategy.placement_of(factor)
        assert isinstance(placement, ShardPlacement)
        return attrs.evolve(
            strategy,
            inner_bytes=self._inner_reductions(factor) if strategy.rewrite == "expand" else self._halos(factor),
            sent=self.rule.sent_tensors(strategy, count),
            partition=(placement, self.rule.factors[factor].size),
        )

    def _reorders_a_sum(self, strategy: Strategy) -> bool:
        """Return whether a strategy may change the order in which a sum adds its terms, and so its rounding.

        - Ranks add parts of the sum: `sum(x, 1)` with sharded columns, whose result is partial. A lookup is an
          exception: all ranks but one add zeros.
        - A kernel adds in blocks that depend on the number of columns: `sum(x, 0)` with sharded columns. For the same
          reason, a matrix product may change it unless only its batch is sharded.

        `sum(x, 1)` with sharded rows keeps the order.
        """
        rule = self.rule
        has_partial_result = any(placement.op in _ADDITIVE for placement in strategy.results)
        if rule is None or not strategy.factors:
            return has_partial_result
        if strategy.rewrite == "local":  # a form from a strategy in text may add; all others are lookups
            return rule.has_ring(strategy) or (has_partial_result and strategy.text is not None)
        if strategy.rewrite == "expand" or has_partial_result:
            return True
        sharded_factor = strategy.factors[0]
        summed_factors = {
            number for number, factor in enumerate(rule.factors) if factor.kind in _ADDITIVE and factor.size > 1
        }
        factors_of_operands = [[number for dim in dims for number in dim] for dims in rule.operand_dims]
        if rule.contracts:  # only a batch factor, which all operands have, leaves the matrices unchanged
            is_batch = all(sharded_factor in factors for factors in factors_of_operands)
            return bool(summed_factors) and not is_batch
        for factors in factors_of_operands:
            if sharded_factor in factors:
                outer_factors = factors[: factors.index(sharded_factor)]
                if not summed_factors.isdisjoint(outer_factors):
                    return True  # each column is summed, and the strategy shards the columns
        return False

    def _halos(self, factor: int) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Return ((bytes, other factors),) for the halos that ranks exchange if `factor` is sharded; () without halos.

        Axes that shard other factors of the op also divide its halos. The result has the form of `_inner_reductions`:
        halos are priced as an all-reduce, which sends about as much.
        """
        assert self.rule is not None
        size = self.rule.layout.halo_bytes.get(factor, 0)
        if not size:
            return ()
        factors_of_operands = {number for dims in self.rule.operand_dims for dim in dims for number in dim}
        return ((size, tuple(sorted(factors_of_operands - {factor}))),)

    def _inner_reductions(self, factor: int) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Return (bytes, factors) for each value that ranks reduce inside the op if `factor` is sharded.

        For example, a softmax over sharded columns reduces the maximum and the sum of each row. `factors` are those of
        the dimensions of the value: axes that shard them divide its bytes.
        """
        assert self.rule is not None
        reductions = self.rule.internal_reductions(factor)
        return tuple(
            (reduction.meta.bytes, tuple(number for dim in reduction.dims for number in dim))
            for reduction in reductions
        )


def _on_axis(shardings: Sequence[Sharding | None], axis: str) -> list[tuple[int, Placement]]:
    """Return (index, placement on `axis`) of each sharding that is present and not open on the axis."""
    return [
        (index, sharding[axis])
        for index, sharding in enumerate(shardings)
        if sharding is not None and axis not in sharding.open_axes
    ]


def rules_of(problem: Problem) -> list[OpRule | None]:
    """Return for each node the rule of its op; None if it is not a torch op or has no rule."""
    return [node.source.rule if isinstance(node.source, OpStrategies) else None for node in problem.nodes]
