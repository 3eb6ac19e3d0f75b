"""A rule on one call, with the strategies that it allows on one mesh axis and the ops that may replace it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Protocol

import attrs

from spmdir.core.errors import ParseError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.call import Call, Local, shard_of
from spmdir.core.placement.standard import Placement
from spmdir.core.placement.tensor import TensorMeta
from spmdir.rules.language.syntax_tree import TextStrategy
from spmdir.rules.local.expansion import Expansion
from spmdir.rules.local.rank import Alone, Rank
from spmdir.rules.replacement import expand, localize
from spmdir.rules.shapes.instance import Ops, RuleInstance
from spmdir.rules.strategies.expansion_layout import ExpansionLayout, Reduced, lay_out
from spmdir.rules.strategies.obstacle import Dropped
from spmdir.rules.strategies.per_axis import (
    Known,
    factor_strategies,
    partial_strategies,
    plugin_partial_strategies,
    replicated,
    shard_operands,
)
from spmdir.rules.strategies.plugin_declared import combining, declared_strategies, is_pointwise, pointwise
from spmdir.rules.strategies.plugin_placements import NO_PLUGINS, PluginPlacements, at, plugins_among
from spmdir.rules.strategies.plugin_shards import lifted_strategies
from spmdir.rules.strategies.split_products import split_strategies
from spmdir.rules.strategies.strategy import UNSHARDED, ShardCounts, Strategy
from spmdir.rules.strategies.text_strategies import text_strategies


def rotated(
    rule: RuleInstance, local_form: Callable[..., Expansion | None], strategy: Strategy, count: int
) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Return (bytes, factors) of each tensor that a rank sends in the local form of `strategy` on `count` ranks.

    The factors are those by which other axes may make it smaller: of an operand of its shape but for what rotates.
    """
    mesh = Mesh({"ring": count})
    sharded = {f: shard_of(rule.factors[f].size, [("ring", strategy.placement_of(f))]) for f in strategy.factors}
    operands = tuple(
        TensorMeta(*placement.local_type(meta.shape, meta.dtype, count, 0))
        for meta, placement in zip(rule.call.operands, strategy.operands, strict=True)
    )
    scattered = frozenset(f for f, shard in sharded.items() if not shard.is_contiguous(mesh))
    form = local_form(sharded, operands, Rank(mesh, mesh.coordinate(0)), scattered, (strategy,))
    sent = [op.call.operands[0] for op in form.ops if op.call.name == "spmd.rotate"] if form else []
    return tuple((meta.bytes, _factors(rule, strategy, operands, meta)) for meta in sent)


def _factors(
    rule: RuleInstance, strategy: Strategy, operands: tuple[TensorMeta, ...], sent: TensorMeta
) -> tuple[int, ...]:
    for dims, meta in zip(rule.operand_dims, operands, strict=True):
        pairs = list(zip(dims, meta.shape, sent.shape, strict=False))
        alike = all(size == other or set(strategy.factors) & set(factors) for factors, size, other in pairs)
        if meta.rank == sent.rank and alike:
            return tuple(f for factors in dims for f in factors if f not in strategy.factors)
    return ()


class Rules(Ops, Protocol):
    """The rules of all ops, of which those inside an expansion are asked."""

    @property
    def clock(self) -> AbstractContextManager[None]:
        """Counts the time spent on listing strategies."""
        ...

    def text_strategies(self, name: str, kinds: tuple[type[Placement], ...] = ()) -> tuple[TextStrategy, ...]:
        """Return the strategies of op `name` that are written as text, with those of the placements `kinds`."""
        ...

    def instantiate(self, call: Call) -> OpRule | None:
        """Return the rule of `call.name` on `call`; None if that op has no rule."""
        ...


@attrs.define(frozen=True, slots=False, eq=False)
class OpRule(RuleInstance):
    """What a rule says of one call, and what follows from it by the rules of other ops.

    Attributes:
        rule, call, binding, layout, scope, factors, shape_arguments: as of `RuleInstance`.
        rules: those of other ops.
    """

    rules: Rules
    _known: dict[object, tuple[Strategy, ...] | None] = attrs.field(factory=dict)
    _by_factor: Known = attrs.field(factory=dict)
    _expansions: dict[int, Expansion] = attrs.field(factory=dict)
    _inner: dict[tuple[int, int], tuple[Reduced, ...]] = attrs.field(factory=dict)
    _rotated: dict[tuple[Strategy, int], tuple[tuple[int, tuple[int, ...]], ...]] = attrs.field(factory=dict)

    def __repr__(self) -> str:
        return f"<OpRule: {self.name}>"

    def strategies(
        self, count: int, sharded: ShardCounts = UNSHARDED, placements: tuple[Placement, ...] = ()
    ) -> tuple[Strategy, ...]:
        """Return the strategies for an axis of `count` ranks: replicated, then one a factor, then the partial ones.

        Args:
            sharded: how other mesh axes shard the factors, see `shard_counts`. Strategies that are not compatible with
                that are left out: where a factor is sharded that has major ones beside it, these are sharded to single
                elements. An axis of one rank divides nothing, so it has the same strategies whatever others shard.
            placements: those of the program; strategies of the plug-ins among them come last. One that shards a
                dimension stands for any dimension.

        Raises:
            ParseError: the op expands into itself; RuleError: a plug-in adds what is not a strategy of the op.
        """
        plugins = plugins_among(placements) if placements else NO_PLUGINS
        sharded = sharded if count > 1 else UNSHARDED
        key = (count, sharded.key, plugins)
        if key not in self._known:
            self._known[key] = None  # so that an expansion that leads back here is found out
            try:
                with self.rules.clock:
                    listed = [one for one in self._list(count, sharded, plugins) if isinstance(one, Strategy)]
                    self._known[key] = tuple(dict.fromkeys(listed))
            except BaseException:
                del self._known[key]
                raise
        found = self._known[key]
        if found is None:
            raise ParseError(f"{self.rule.op} expands into itself; expand it into other ops", self.rule.location)
        return found

    def split_strategies(self, count: int, sharded: ShardCounts = UNSHARDED) -> tuple[Strategy, ...]:
        """Return the strategies by which an axis of `count` ranks takes a matrix product in steps, block by block.

        Args:
            sharded: how other mesh axes shard the factors.
        """
        return tuple(split_strategies(self, count, sharded, self.strategies(count, sharded)))

    @cached_property
    def evaluated(self) -> OpRule:
        """This rule, of which all conditions and expansions have been evaluated.

        Raises:
            SpmdirError: as `strategies`.
        """
        self.strategies(1)
        return self

    def considered(
        self, count: int, sharded: ShardCounts = UNSHARDED, placements: tuple[Placement, ...] = ()
    ) -> tuple[Strategy | Dropped, ...]:
        """Return the `strategies`, and with its reason each one that is left out of those that were considered.

        Of placements by S all factors are considered, of plug-ins whatever they shard, pass or declare.
        """
        plugins = plugins_among(placements)
        every = [*self._list(count, sharded, NO_PLUGINS), *(self._list(count, sharded, plugins) if plugins else ())]
        used = {factor for dims in self.all_dims for made_of in dims for factor in made_of}
        offered = [one for one in every if isinstance(one, Strategy)]
        passing = {p for one in offered for p in one.operands}
        sharding = {(one.placement_of(factor), factor) for one in offered for factor in one.factors}

        def is_left_out(one: Dropped) -> bool:
            if one.factor is None:
                return one.what not in passing
            return one.factor in used and (one.placement, one.factor) not in sharding

        listed = {str(one): one for one in every}.values()
        return tuple(one for one in listed if isinstance(one, Strategy) or is_left_out(one))

    def why_not(
        self,
        count: int,
        placed: Sequence[Placement | None],
        placements: tuple[Placement, ...] = (),
        sharded: ShardCounts = UNSHARDED,
    ) -> tuple[Dropped, ...]:
        """Return what is left out of the strategies that operands and results `placed` so may have asked for.

        Strategies written as text come first.

        Args:
            placed: the placement of each operand, then of each result; None for any.
        """
        wanted: set[tuple[object, int | None]] = {(p, None) for p in placed}
        for placement, dims in zip(placed, (*self.operand_dims, *self.result_dims), strict=True):
            if placement is not None and placement.dim is not None and placement.dim < len(dims or ()):
                wanted |= {(at(placement, 0), factor) for factor in (dims or ())[placement.dim]}
        dropped = (one for one in self.considered(count, sharded, placements) if isinstance(one, Dropped))
        found = [one for one in dropped if one.placement is None or (one.placement, one.factor) in wanted]
        return tuple(sorted(found, key=lambda one: not isinstance(one.what, TextStrategy)))

    def _list(self, count: int, sharded: ShardCounts, plugins: PluginPlacements) -> Iterator[Strategy | Dropped]:
        """Yield the strategies; where a minor factor is sharded before its major ones are, those that finish these."""
        unfinished = self._unfinished(sharded)
        texts = self.rules.text_strategies(self.name, plugins.declaring)
        if not plugins:
            own = factor_strategies(self, count, sharded, self.expansion_layout, self._by_factor)
            every = (self._replicated, *own, *self._partial, *text_strategies(self, count, sharded, texts, ()))
            if unfinished:
                every = (s for s in every if isinstance(s, Strategy) and unfinished == self._finished_by(s, count))
            yield from every
            return
        known = self.strategies(count, sharded)
        yield from known
        if not unfinished:
            yield from lifted_strategies(self, count, sharded, plugins.shards, self.expansion_layout)
            yield from plugin_partial_strategies(self, plugins.partials)
            yield from declared_strategies(self, count, sharded, known, plugins.lifting)
            yield from text_strategies(self, count, sharded, texts, plugins.shards)

    @cached_property
    def _replicated(self) -> Strategy:
        return replicated(self)

    @cached_property
    def _partial(self) -> tuple[Strategy, ...]:
        return tuple(partial_strategies(self))

    def _finished_by(self, strategy: Strategy, count: int) -> dict[int, int]:
        """Return what `_unfinished` may say for `strategy` to finish it."""
        return {factor: self.factors[factor].size // count for factor in strategy.factors}

    def _unfinished(self, sharded: ShardCounts) -> dict[int, int]:
        """Return the factors of several elements a shard that are major to one sharded by S → their shards."""
        return {
            major: sharded.of(major)
            for factor in sharded.all_axes
            if factor not in sharded.by_plugins
            for major in self.majors.get(factor, ())
            if sharded.of(major) != self.factors[major].size
        }

    def combining(self, result: Placement) -> Iterator[Strategy]:
        """Yield the strategies that shard by S what some result lacks, each rank running the op on its shard.

        `result` is the placement of what ranks then have of such a result. For `Placement.lift`.
        """
        return combining(self, result)

    @property
    def is_pointwise(self) -> bool:
        """Whether the op does the same to each element alone, and broadcasts nothing. For `Placement.lift`."""
        return is_pointwise(self)

    def pointwise(self, placement: Placement) -> Strategy:
        """Return the strategy where every operand and result has `placement`, of an op of any kind: whether it computes
        what the op does is for the caller to know, see `is_pointwise`. For `Placement.lift`.
        """
        return pointwise(self, placement)

    def expansion(self, factor: int) -> Expansion:
        """Return the ops on global tensors that replace this one when `factor`, with rewrite "expand", is sharded."""
        if factor not in self._expansions:
            self._expansions[factor] = expand(self, self.rules, factor)
        return self._expansions[factor]

    def expansion_layout(
        self,
        factor: int,
        count: int,
        sharded: ShardCounts = UNSHARDED,
        operands: tuple[Placement, ...] | None = None,
    ) -> ExpansionLayout | None:
        """Return the placements of the expansion over `factor` on an axis of `count` ranks.

        Args:
            operands: their placements; by default those that shard `factor` by S.
        """
        placements = operands or shard_operands(self, factor)
        return self.lay_out(self.expansion(factor), count, sharded, placements)

    def lay_out(
        self, expansion: Expansion, count: int, sharded: ShardCounts, operands: tuple[Placement, ...]
    ) -> ExpansionLayout | None:
        """Return the placements of an `expansion` of this op for `operands`; None if an op of it has none."""
        return lay_out(self.operand_dims, expansion, self.rules.instantiate, operands, count, sharded)

    def internal_reductions(self, factor: int, count: int = 2) -> tuple[Reduced, ...]:
        """Return the values inside the expansion over `factor` that are reduced over the axis before they are used."""
        key = factor, count
        if key not in self._inner:
            layout = self.expansion_layout(factor, count)
            self._inner[key] = layout.reductions if layout else ()
        return self._inner[key]

    def has_ring(self, strategy: Strategy) -> bool:
        """Return whether something may go round a ring in the local form of a strategy."""
        if strategy.rewrite != "local":
            return False
        bodies = [strategy.text.body] if strategy.text else [clause.body for clause in self.rule.of_kind("local")]
        return any(statement.ring is not None for body in bodies for statement in body)

    def rotated(self, strategy: Strategy, count: int) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Return (bytes of a rank, factors) of what goes round the rings of a strategy for an axis of `count` ranks."""
        if not self.has_ring(strategy):
            return ()
        key = strategy, count
        if key not in self._rotated:
            self._rotated[key] = rotated(self, self.local_form, strategy, count)
        return self._rotated[key]

    def local_form(
        self,
        shards: Mapping[int, Local],
        operands: tuple[TensorMeta, ...] | None = None,
        rank: Rank | None = None,
        scattered: frozenset[int] = frozenset(),
        strategies: Iterable[Strategy] = (),
    ) -> Expansion | None:
        """Return the ops, on local tensors, that replace this one when its factors are sharded.

        None if no sharded factor needs a local form.

        Args:
            shards: factor → its shard, a Local of kind "shard"; factors that no axis shards are left out.
            operands: the types of the local operands, from which local shapes follow; by default the global ones.
            rank: gives a rank's integers; by default those of a rank that has everything.
            scattered: the factors of which a rank may have several ranges.
            strategies: those in use, of which one that is written as text brings the local form.
        """
        return localize(
            self,
            self.rules,
            shards,
            scattered,
            operands or self.call.operands,
            rank or Alone(),
            strategies,
        )
