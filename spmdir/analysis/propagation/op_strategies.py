"""The strategies of torch ops: those of their rules that fit the user annotations."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence

import attrs

from spmdir.core.axes import axis_part
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Placement, ShardPlacement
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.standard import R
from spmdir.rules import OpRule, Strategy
from spmdir.rules.strategies.strategy import UNSHARDED, ShardCounts, shard_counts
from spmdir.search.problem import NO_PLACEMENTS, AxisPlacements, Problem, parts_of, splits
from spmdir.search.work import Work

_ADDING = ("sum", "avg", "product")


@attrs.frozen(cache_hash=True)
class OpStrategies:
    """The strategies of a torch op: its rule's strategies, or replicated if it has no rule.

    Attributes:
        rule: the instantiated rule; compared by identity, since instantiation is memoised.
        operands: the number of operands.
        results: the user annotation of each result, None where there is none.
        kept: the sharding in which each operand is to be used, open along axes that are not kept; () for none.
        work: what the unsharded op computes.
        keep_sum_order: avoid strategies that add in another order than one device, unless there are no others.
        parts: the axes that are sub-axes; those of one axis shard a factor evenly together.
        sizes: those of all axes, if a result has a user annotation.
        plugin_placements: the plug-in placements that its values may have on each axis.
        apart: axes that shard rows of a batch alone: those along which ranks have batches of their own.
        rows: of each result the dimensions that have these rows; () if the op is not about a batch.
    """

    rule: OpRule | None = attrs.field(eq=id)
    operands: int
    results: tuple[Sharding | None, ...]
    work: Work
    kept: tuple[Sharding | None, ...] = attrs.field(default=(), kw_only=True)
    keep_sum_order: bool = False
    parts: tuple[str, ...] = ()
    sizes: tuple[tuple[str, int], ...] = ()
    plugin_placements: AxisPlacements = NO_PLACEMENTS
    apart: tuple[str, ...] = ()
    rows: tuple[frozenset[int], ...] = ()
    _known: dict[object, tuple[Strategy, ...]] = attrs.field(factory=dict, eq=False, init=False, repr=False)
    _made: dict[object, Strategy] = attrs.field(factory=dict, eq=False, init=False, repr=False)

    @property
    def annotations(self) -> Collection[Sharding]:
        return [sharding for sharding in self.results if sharding is not None]

    @property
    def _asked(self) -> tuple[Sharding | None, ...]:
        return self.results + self.kept

    @property
    def majors(self) -> Mapping[int, Collection[int]]:
        return self.rule.majors if self.rule is not None else {}

    def strategies(self, axis: str, count: int, sharded: ShardCounts) -> tuple[Strategy, ...]:
        if self.rule is None:
            return tuple(self._giving((Strategy((R,) * self.operands, (R,) * len(self.results)),), axis))
        key = (
            axis if any(self._asked) or axis in self.parts or self.rows else "",
            count,
            sharded.key,
            self.plugin_placements.on(axis),
        )
        if key not in self._known:
            self._known[key] = self._strategies(self.rule, axis, count, sharded)
        return self._known[key]

    def candidates(self, axis: str, count: int) -> tuple[Strategy, ...]:
        listed = self.strategies(axis, count, UNSHARDED)
        if not self.majors:
            return listed
        finished = [self.strategies(axis, count, self._finished(majors)) for majors in self.majors.values()]
        return tuple(dict.fromkeys(itertools.chain(listed, *finished)))

    def _strategies(self, rule: OpRule, axis: str, count: int, sharded: ShardCounts) -> tuple[Strategy, ...]:
        fitting = self._giving(rule.strategies(count, sharded, self.plugin_placements.on(axis)), axis)
        if not fitting and self.sizes:
            sharded = sharded.over(self._beside(rule, axis))
            fitting = self._giving(rule.strategies(count, sharded, self.plugin_placements.on(axis)), axis)
        if self.keep_sum_order:
            fitting = [s for s in fitting if not self._reorders_a_sum(s)] or fitting
        idle = {f for f, one in enumerate(rule.factors) if one.size < count * sharded.of(f)}  # for some ranks
        fitting = [s for s in fitting if idle.isdisjoint(s.factors)] or fitting
        if self.rows and (axis_part(axis) or (axis,))[0] in self.apart:
            fitting = [s for s in fitting if self._shards_rows(s)] or fitting
        if axis in self.parts:
            fitting = [s for s in fitting if all(splits(rule.factors[f].size, count, sharded.of(f)) for f in s.factors)]
        return tuple(self._with_sizes(s, count) for s in fitting)

    def _shards_rows(self, strategy: Strategy) -> bool:
        return all(p.dim is None or p.dim in rows for p, rows in zip(strategy.results, self.rows, strict=True))

    def _finished(self, factors: Collection[int]) -> ShardCounts:
        """Return the counts where other axes shard `factors` to single elements."""
        assert self.rule is not None
        return ShardCounts({factor: self.rule.factors[factor].size for factor in sorted(factors)})

    def _giving(self, strategies: Sequence[Strategy], axis: str) -> Sequence[Strategy]:
        """Return those of `strategies` that agree on `axis` with the user annotations and with what is kept."""
        made, taken = _on_axis(self.results, axis), _on_axis(self.kept, axis)
        if not made and not taken:
            return strategies
        fitting = [s for s in strategies if all(s.results[at] == placement for at, placement in made)]
        return [s for s in fitting if all(s.operands[at] == placement for at, placement in taken)]

    def _beside(self, rule: OpRule, axis: str) -> ShardCounts:
        """Return the number of shards of each factor by the axes other than `axis`, as far as user annotations tell."""
        beside: list[tuple[Strategy, int]] = []
        named = [a for annotation in self._asked if annotation for a, _ in annotation.entries]
        others = [other for other in dict.fromkeys(named) if other != axis]
        sizes = dict(self.sizes)
        for _ in range(len(others)):
            for other in others:
                strategies = rule.strategies(sizes[other], shard_counts(beside), self.plugin_placements.on(other))
                strategies = self._giving(strategies, other)
                if strategies:
                    beside.append((strategies[0], sizes[other]))
                    others.remove(other)
                    break
        return shard_counts(beside)

    def doing(self, work: Work) -> OpStrategies:
        """Return this source for an op that does `work`, on which strategies, listed once, do not depend."""
        made = attrs.evolve(self, work=work)
        object.__setattr__(made, "_known", self._known)
        object.__setattr__(made, "_made", self._made)
        return made

    def on(self, mesh: Mesh) -> OpStrategies:
        """Return this source on a mesh that splits some axes."""
        results = tuple(sharding.refined(mesh) if sharding else None for sharding in self.results)
        kept = tuple(sharding.refined(mesh) if sharding else None for sharding in self.kept)
        sizes = mesh.axes if any(results) or any(kept) else ()
        return attrs.evolve(self, results=results, kept=kept, parts=parts_of(mesh), sizes=sizes)

    def _with_sizes(self, strategy: Strategy, count: int) -> Strategy:
        """Return a strategy of the rule with the bytes that it sends inside the op and the elements that it shards."""
        key = strategy, count
        if key not in self._made:
            self._made[key] = self._sized(strategy, count)
        return self._made[key]

    def _sized(self, strategy: Strategy, count: int) -> Strategy:
        if not strategy.factors or self.rule is None:
            return Strategy(strategy.operands, strategy.results)
        factor = strategy.factors[0]
        placement = strategy.placement_of(factor)
        assert isinstance(placement, ShardPlacement)
        return attrs.evolve(
            strategy,
            inner_bytes=self._inner(factor) if strategy.rewrite == "expand" else self._halos(factor),
            sent_bytes=self.rule.rotated(strategy, count),
            partition=(placement, self.rule.factors[factor].size),
        )

    def _reorders_a_sum(self, strategy: Strategy) -> bool:
        """Return whether ranks may add in another order than one device.

        They do where the sum is split, here or before, unless one rank alone has what is added, as in a lookup; and
        kernels add the columns of a matrix in blocks, so that the order depends on how many there are.
        """
        rule = self.rule
        if rule is None or not strategy.factors:
            return any(p.op in _ADDING for p in strategy.results)
        factor, adds = strategy.factors[0], any(p.op in _ADDING for p in strategy.results)
        if strategy.rewrite == "local":
            return rule.has_ring(strategy) or (adds and strategy.text is not None)
        if strategy.rewrite == "expand" or adds:
            return True
        summed = {f for f, one in enumerate(rule.factors) if one.kind in _ADDING and one.size > 1}
        orders = [[f for dim in dims for f in dim] for dims in rule.operand_dims]
        if rule.contracts:
            return bool(summed) and not all(factor in order for order in orders)
        return any(factor in order and summed & {*order[: order.index(factor)]} for order in orders)

    def _halos(self, factor: int) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Return the halos that windows along `factor` exchange, priced as an all-reduce, which sends about as much."""
        assert self.rule is not None
        size = self.rule.layout.halo_bytes.get(factor, 0)
        if not size:
            return ()
        others = {f for dims in self.rule.operand_dims for d in dims for f in d} - {factor}
        return ((size, tuple(sorted(others))),)

    def _inner(self, factor: int) -> tuple[tuple[int, tuple[int, ...]], ...]:
        assert self.rule is not None
        reduced = self.rule.internal_reductions(factor)
        return tuple((r.meta.bytes, tuple(f for dim in r.dims for f in dim)) for r in reduced)


def _on_axis(shardings: Sequence[Sharding | None], axis: str) -> list[tuple[int, Placement]]:
    """Return (index, placement on `axis`) of those of `shardings` that say one."""
    return [(at, s[axis]) for at, s in enumerate(shardings) if s is not None and axis not in s.open_axes]


def rules_of(problem: Problem) -> list[OpRule | None]:
    """Return, by node, the rule of its op; None where it is no torch op or has no rule."""
    return [node.source.rule if isinstance(node.source, OpStrategies) else None for node in problem.nodes]
