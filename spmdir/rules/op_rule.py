"""A rule instantiated on one call: its strategies on a mesh axis, and its rewrites as expansion or local form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Protocol

import attrs

from spmdir.core.errors import ParseError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.call import Call, Local, shard_of
from spmdir.core.placement.standard import Placement, plugins
from spmdir.core.placement.tensor import TensorMeta
from spmdir.rules.language.syntax_tree import OpCall, Statement, TextStrategy, walk
from spmdir.rules.local.expansion import Expansion
from spmdir.rules.local.rank import Rank, SingleRank
from spmdir.rules.replacement import expand, localize
from spmdir.rules.shapes.instance import Ops, RuleInstance
from spmdir.rules.strategies.expansion_layout import ExpansionLayout, InternalReduction, lay_out
from spmdir.rules.strategies.obstacle import Dropped
from spmdir.rules.strategies.per_axis import (
    StrategyCache,
    factor_strategies,
    partial_strategies,
    plugin_partial_strategies,
    replicated,
    shard_operands,
)
from spmdir.rules.strategies.plugin_declared import combining, declared_strategies, is_pointwise, pointwise
from spmdir.rules.strategies.plugin_placements import NO_PLUGINS, PluginPlacements, plugins_among, with_dim
from spmdir.rules.strategies.plugin_shards import substituted_strategies
from spmdir.rules.strategies.split_products import split_strategies
from spmdir.rules.strategies.strategy import EXCHANGES, UNSHARDED, SentTensor, ShardCounts, Strategy
from spmdir.rules.strategies.text_strategies import text_strategies

SENDING = ("spmd.rotate", *EXCHANGES)
"""Ops of local forms that send their first operand."""


def find_sent_tensors(
    rule: RuleInstance, local_form: Callable[..., Expansion | None], strategy: Strategy, count: int
) -> tuple[SentTensor, ...]:
    """Return the tensors that a rank sends in the local form of `strategy` on `count` ranks.

    The local form of rank 0 is emitted on a mesh with one axis, and the operands of its ops that send are listed. For
    example, an attention that is sharded along the keys sends k and v once in each step of its ring.

    Args:
        local_form: the method `OpRule.local_form` of the rule.
    """
    mesh = Mesh({"ring": count})
    shard_of_factor = {
        factor: shard_of(rule.factors[factor].size, [("ring", strategy.placement_of(factor))])
        for factor in strategy.factors
    }
    operands = tuple(
        TensorMeta(*placement.local_type(meta.shape, meta.dtype, count, 0))
        for meta, placement in zip(rule.call.operands, strategy.operands, strict=True)
    )
    # The factors of which a rank has several ranges.
    scattered = frozenset(factor for factor, shard in shard_of_factor.items() if not shard.is_contiguous(mesh))
    form = local_form(shard_of_factor, operands, Rank(mesh, mesh.coordinate(0)), scattered, (strategy,), ("ring",))
    sent_tensors = []
    for op in form.ops if form else ():
        if op.call.name in SENDING:
            meta = op.call.operands[0]
            factors = _shrinking_factors(rule, strategy, operands, meta, op.call.name in EXCHANGES)
            sent_tensors.append(SentTensor(op.call.name, meta.bytes, factors))
    return tuple(sent_tensors)


def _shrinking_factors(
    rule: RuleInstance, strategy: Strategy, operands: tuple[TensorMeta, ...], sent: TensorMeta, is_exchange: bool
) -> tuple[int, ...]:
    """Return the factors by which other axes could shard the tensor `sent`, and so send fewer bytes.

    They are the factors of the first operand whose shape equals that of `sent`, except in the dimension that `strategy`
    shards; () if there is no such operand.
    For example, the ring of an attention over `s` sends k, whose dimensions are b, h, s and e. Axes that shard b, h or
    e shrink it. Exchanged rows may also be sharded by other axes along the dimension that `strategy` shards.

    Args:
        operands: the local types of the operands.
        is_exchange: whether `sent` contains rows that are exchanged.
    """
    sharded_factors = set(strategy.factors)
    for dims, operand in zip(rule.operand_dims, operands, strict=True):
        has_same_shape = operand.rank == sent.rank and all(
            size == sent_size or sharded_factors.intersection(factors)
            for factors, size, sent_size in zip(dims, operand.shape, sent.shape, strict=True)
        )
        if has_same_shape:
            return tuple(
                factor for factors in dims for factor in factors if is_exchange or factor not in sharded_factors
            )
    return ()


def _sends(statement: Statement) -> bool:
    """Return whether a statement of a local form is a ring, or calls an op that sends."""
    calls = (part for value in statement.values for part in walk(value) if isinstance(part, OpCall))
    return statement.ring is not None or any(call.op in SENDING for call in calls)


class Rules(Ops, Protocol):
    """The rules of all ops; an `OpRule` uses them for the ops inside its expansions."""

    @property
    def clock(self) -> AbstractContextManager[None]:
        """The clock of the time spent on listing strategies."""
        ...

    def text_strategies(self, name: str, kinds: tuple[type[Placement], ...] = ()) -> tuple[TextStrategy, ...]:
        """Return the text strategies of op `name`, with those of the placement classes `kinds`."""
        ...

    def instantiate(self, call: Call) -> OpRule | None:
        """Return the rule of `call.name` on `call`; None if that op has no rule."""
        ...


@attrs.define(frozen=True, slots=False, eq=False)
class OpRule(RuleInstance):
    """A rule instantiated on one call, with its strategies and rewrites.

    Attributes:
        rule, call, binding, layout, scope, factors, shape_arguments: see `RuleInstance`.
        rules: the rules of all ops.
    """

    rules: Rules
    _strategies_by_key: dict[object, tuple[Strategy, ...] | None] = attrs.field(factory=dict)
    _factor_cache: StrategyCache = attrs.field(factory=dict)
    _expansions: dict[int, Expansion] = attrs.field(factory=dict)
    _internal_reductions: dict[tuple[int, int], tuple[InternalReduction, ...]] = attrs.field(factory=dict)
    _sent_tensors: dict[tuple[Strategy, int], tuple[SentTensor, ...]] = attrs.field(factory=dict)

    def __repr__(self) -> str:
        return f"<OpRule: {self.name}>"

    def strategies(
        self, count: int, sharded: ShardCounts = UNSHARDED, placements: tuple[Placement, ...] = ()
    ) -> tuple[Strategy, ...]:
        """Return the strategies for an axis of `count` ranks: replicated, one for each factor, then partial ones.

        Args:
            sharded: how other mesh axes shard the factors, see `shard_counts`. Incompatible strategies are omitted. For
                example, a minor factor requires that its major factors are sharded down to single elements. An axis of
                one rank divides nothing, so it has the same strategies for all `sharded`.
            placements: the placements of the program. Strategies of its plug-ins come last. A placement that shards
                may shard any dimension.

        Raises:
            ParseError: the op expands into itself.
            RuleError: a plug-in placement adds an invalid strategy.
        """
        plugins = plugins_among(placements) if placements else NO_PLUGINS
        sharded = sharded if count > 1 else UNSHARDED
        key = (count, sharded.key, plugins)
        if key not in self._strategies_by_key:
            self._strategies_by_key[key] = None  # marks a running call, to detect an expansion that contains the op
            try:
                with self.rules.clock:
                    strategies = [
                        strategy for strategy in self._list(count, sharded, plugins) if isinstance(strategy, Strategy)
                    ]
                    self._strategies_by_key[key] = tuple(dict.fromkeys(strategies))
            except BaseException:
                del self._strategies_by_key[key]
                raise
        known_strategies = self._strategies_by_key[key]
        if known_strategies is None:
            raise ParseError(
                f"{self.rule.op} expands into itself; expected other ops in its expansion: replace the call of "
                f"{self.rule.op}",
                self.rule.location,
            )
        return known_strategies

    def split_strategies(self, count: int, sharded: ShardCounts = UNSHARDED) -> tuple[Strategy, ...]:
        """Return the strategies that split a matrix product into one step for each of `count` ranks.

        Args:
            sharded: how other mesh axes shard the factors.
        """
        return tuple(split_strategies(self, count, sharded, self.strategies(count, sharded)))

    @cached_property
    def evaluated(self) -> OpRule:
        """This rule. Its conditions and expansions are evaluated now, so their errors are raised here.

        Raises:
            SpmdirError: see `strategies`.
        """
        self.strategies(1)
        return self

    def considered(
        self, count: int, sharded: ShardCounts = UNSHARDED, placements: tuple[Placement, ...] = ()
    ) -> tuple[Strategy | Dropped, ...]:
        """Return the `strategies`, and the omitted ones with their reasons.

        Strategies with S of each factor, and with each plug-in placement of `placements`, are considered. The omission
        of a placement is not listed if another strategy has the same placement of the same factor.
        """
        plugins = plugins_among(placements)
        candidates = [
            *self._list(count, sharded, NO_PLUGINS),
            *(self._list(count, sharded, plugins) if plugins else ()),
        ]
        used_factors = {factor for dims in self.all_dims for factors in dims for factor in factors}
        offered = [candidate for candidate in candidates if isinstance(candidate, Strategy)]
        operand_placements = {placement for candidate in offered for placement in candidate.operands}
        offered_shards = {
            (candidate.placement_of(factor), factor) for candidate in offered for factor in candidate.factors
        }

        def is_left_out(dropped: Dropped) -> bool:
            """Return whether no offered strategy has the placement that `dropped` omits."""
            if dropped.factor is None:
                return dropped.subject not in operand_placements
            return dropped.factor in used_factors and (dropped.placement, dropped.factor) not in offered_shards

        distinct = {str(candidate): candidate for candidate in candidates}.values()
        return tuple(candidate for candidate in distinct if isinstance(candidate, Strategy) or is_left_out(candidate))

    def why_not(
        self,
        count: int,
        requested_placements: Sequence[Placement | None],
        placements: tuple[Placement, ...] = (),
        sharded: ShardCounts = UNSHARDED,
    ) -> tuple[Dropped, ...]:
        """Return the omitted strategies, with reasons, that could have led to the requested placements.

        Text strategies come first.

        Args:
            requested_placements: the placement of each operand, then of each result; None for any.
        """
        # (placement, None), and for a shard also (placement with dim 0, factor) of each factor of the dimension.
        requested: set[tuple[object, int | None]] = {(placement, None) for placement in requested_placements}
        for placement, dims in zip(requested_placements, (*self.operand_dims, *self.result_dims), strict=True):
            if placement is not None and placement.dim is not None and placement.dim < len(dims or ()):
                requested |= {(with_dim(placement, 0), factor) for factor in (dims or ())[placement.dim]}
        matching = [
            candidate
            for candidate in self.considered(count, sharded, placements)
            if isinstance(candidate, Dropped)
            and (candidate.placement is None or (candidate.placement, candidate.factor) in requested)
        ]
        return tuple(sorted(matching, key=lambda dropped: not isinstance(dropped.subject, TextStrategy)))

    def _list(self, count: int, sharded: ShardCounts, plugins: PluginPlacements) -> Iterator[Strategy | Dropped]:
        """Yield the strategies for an axis of `count` ranks, and each omitted strategy as `Dropped` with its reason.

        With `plugins`, the strategies without plug-ins come first, then those that the plug-ins add.

        In a dimension `(h g)`, g may be sharded if each shard of h has one element. If another axis already shards g,
        but h is unfinished, only the strategies that finish h are yielded, and no `Dropped`. For example, if 4 shards
        of h have 2 elements each, these are the strategies that shard h over 2 ranks.

        Args:
            sharded: how often other axes shard each factor.
        """
        unfinished = self._unfinished_majors(sharded)
        texts = self.rules.text_strategies(self.name, plugins.declaring)
        if not plugins:
            by_factor = factor_strategies(self, count, sharded, self.expansion_layout, self._factor_cache)
            candidates = (
                self._replicated,
                *by_factor,
                *self._partial,
                *text_strategies(self, count, sharded, texts, ()),
            )
            if unfinished:
                for strategy in candidates:
                    if isinstance(strategy, Strategy) and unfinished == self._counts_finished_by(strategy, count):
                        yield strategy
            else:
                yield from candidates
            return
        strategies = self.strategies(count, sharded)
        yield from strategies
        if not unfinished:
            yield from substituted_strategies(self, count, sharded, plugins.shards, self.expansion_layout)
            yield from plugin_partial_strategies(self, plugins.partials)
            yield from declared_strategies(self, count, sharded, strategies, plugins.lifting)
            yield from text_strategies(self, count, sharded, texts, plugins.shards)

    @cached_property
    def _replicated(self) -> Strategy:
        """Return the strategy in which all operands and results are replicated."""
        return replicated(self)

    @cached_property
    def _partial(self) -> tuple[Strategy, ...]:
        """Return the strategies that pass partial values."""
        return tuple(partial_strategies(self))

    def _counts_finished_by(self, strategy: Strategy, count: int) -> dict[int, int]:
        """Return the value of `_unfinished_majors` for which `strategy` leaves one element in each shard.

        For example, sharding a factor of 8 elements over 2 ranks finishes it if it has 4 shards: `{factor: 4}`.
        """
        return {factor: self.factors[factor].size // count for factor in strategy.factors}

    def _unfinished_majors(self, sharded: ShardCounts) -> dict[int, int]:
        """Return factor → its number of shards, if these have several elements although a minor factor is sharded.

        For example, in a dimension `(h g)` with 8 `h`, `{h: 4}` means that an axis shards `g` by S, but the 4 shards of
        `h` still have 2 elements each.
        """
        return {
            major: sharded.of(major)
            for factor in sharded.all_axes
            if factor not in sharded.by_plugins
            for major in self.majors.get(factor, ())
            if sharded.of(major) != self.factors[major].size
        }

    def combining(self, result: Placement) -> Iterator[Strategy]:
        """Yield the strategies that give `S` to a factor that some result does not have, such as k of a matrix product.

        Each rank runs the op on its shard. A result without the factor gets the placement `result`, such as P(sum).
        `Placement.lift`, which lists the strategies of an op that use a plug-in placement, calls this method.
        """
        return combining(self, result)

    @property
    def is_pointwise(self) -> bool:
        """Whether the op computes each element separately and broadcasts nothing. For `Placement.lift`."""
        return is_pointwise(self)

    def pointwise(self, placement: Placement) -> Strategy:
        """Return the strategy in which every operand and result has `placement`. For `Placement.lift`.

        It is not checked whether the strategy is sound for the op; see `is_pointwise`.
        """
        return pointwise(self, placement)

    def expansion(self, factor: int) -> Expansion:
        """Return the ops on global tensors that replace the op if `factor`, with rewrite "expand", is sharded."""
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
            operands: the placements of the operands; by default those that shard `factor` by S.
        """
        placements = operands or shard_operands(self, factor)
        return self.lay_out(self.expansion(factor), count, sharded, placements)

    def lay_out(
        self, expansion: Expansion, count: int, sharded: ShardCounts, operands: tuple[Placement, ...]
    ) -> ExpansionLayout | None:
        """Return the layout of an `expansion` of this op; None if an op in it has no strategy."""
        return lay_out(self.operand_dims, expansion, self.rules.instantiate, operands, count, sharded)

    def internal_reductions(self, factor: int, count: int = 2) -> tuple[InternalReduction, ...]:
        """Return the partial values in the expansion over `factor` that are reduced over the axis before their use."""
        key = factor, count
        if key not in self._internal_reductions:
            layout = self.expansion_layout(factor, count)
            self._internal_reductions[key] = layout.reductions if layout else ()
        return self._internal_reductions[key]

    def has_ring(self, strategy: Strategy) -> bool:
        """Return whether the local form of a strategy may contain a ring."""
        return any(statement.ring is not None for statement in self._local_body(strategy))

    def may_send(self, placements: Iterable[Placement]) -> bool:
        """Return whether a local form of the op with `placements` may send: in a ring, or rows of experts.

        All local forms of the rule, and of strategies of the plug-ins among `placements`, are considered.
        """
        kinds = tuple(dict.fromkeys(map(type, plugins(placements))))
        texts = self.rules.text_strategies(self.name, kinds)
        bodies = [*(text.body for text in texts), *(clause.body for clause in self.rule.of_kind("local"))]
        return any(_sends(statement) for body in bodies for statement in body)

    def _local_body(self, strategy: Strategy) -> list[Statement]:
        """Return the statements from which the local form of a strategy is made."""
        if strategy.rewrite != "local":
            return []
        bodies = [strategy.text.body] if strategy.text else [clause.body for clause in self.rule.of_kind("local")]
        return [statement for body in bodies for statement in body]

    def sent_tensors(self, strategy: Strategy, count: int) -> tuple[SentTensor, ...]:
        """Return the tensors that a rank sends in the local form of a strategy on `count` ranks."""
        if not any(map(_sends, self._local_body(strategy))):
            return ()
        key = strategy, count
        if key not in self._sent_tensors:
            self._sent_tensors[key] = find_sent_tensors(self, self.local_form, strategy, count)
        return self._sent_tensors[key]

    def local_form(
        self,
        shards: Mapping[int, Local],
        operands: tuple[TensorMeta, ...] | None = None,
        rank: Rank | None = None,
        scattered: frozenset[int] = frozenset(),
        strategies: Iterable[Strategy] = (),
        axes: tuple[str, ...] = (),
    ) -> Expansion | None:
        """Return the ops on local tensors that replace the op; None if no sharded factor needs a local form.

        Args:
            shards: sharded factor → its shard, a Local of kind "shard".
            operands: the types of the local operands; by default the global types.
            rank: the rank whose integers are used; by default a rank that has all elements.
            scattered: the factors of which a rank may have several ranges.
            strategies: the strategies in use. The local form of a text strategy is used instead of that of the rule.
            axes: the mesh axes whose strategy is a text strategy with a local form.
        """
        return localize(
            self,
            self.rules,
            shards,
            scattered,
            operands or self.call.operands,
            rank or SingleRank(),
            strategies,
            axes,
        )
