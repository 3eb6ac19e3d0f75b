"""Run the rewrites of a rule: `expand` into ops on global tensors, `local` into ops on the local tensors of a rank."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import attrs

from spmdir.core.placement.call import Local
from spmdir.core.placement.tensor import TensorMeta
from spmdir.rules.language.syntax_tree import Statement
from spmdir.rules.local.emitter import Emitter
from spmdir.rules.local.expansion import Expansion
from spmdir.rules.local.packed_states import packed_by_name
from spmdir.rules.local.rank import Rank
from spmdir.rules.local.suitability import usable_clauses
from spmdir.rules.product_rings import product_ring
from spmdir.rules.shapes.instance import Ops, RuleInstance
from spmdir.rules.strategies.split_products import SPLIT
from spmdir.rules.strategies.strategy import Strategy


def expand(owner: RuleInstance, ops: Ops, factor: int) -> Expansion:
    """Return the ops on global tensors that replace `owner` if `factor`, which has an `expand` clause, is sharded."""
    clauses = [owner.rule.clauses[number] for number in owner.factors[factor].clauses]
    emitter = Emitter(owner, ops, owner.scope)
    *_, last_expansion = [clause for clause in clauses if clause.kind == "expand"]
    returned = emitter.run(last_expansion.body)
    results = tuple(map(emitter.cast_result, returned, owner.call.results))
    return Expansion(tuple(emitter.emitted), results)


def localize(
    owner: RuleInstance,
    ops: Ops,
    shards: Mapping[int, Local],
    scattered: frozenset[int],
    operands: tuple[TensorMeta, ...],
    rank: Rank,
    strategies: Iterable[Strategy],
    axes: tuple[str, ...] = (),
) -> Expansion | None:
    """Return the ops on the local tensors of `rank` that replace `owner`; None if it needs no local form.

    The local form is that of the first strategy with one, else that of the last suitable `local` clause of the rule.

    Args:
        owner: the rule of the op on global types.
        shards: sharded factor → its shard, a Local of kind "shard".
        scattered: the factors of which a rank may have several ranges.
        operands: the types of the local operands.
        strategies: the strategies in use. A text strategy, or one that splits a product, has its own local form.
        axes: the mesh axes whose strategy is a text strategy with a local form.
    """
    strategies = tuple(strategies)
    for strategy in strategies:
        if strategy.rewrite == SPLIT:
            return product_ring(owner, ops, strategy, shards[strategy.factors[-1]], operands, rank)
    text_strategy_of_factor = {
        factor: strategy for strategy in strategies if strategy.text for factor in strategy.factors
    }
    other_factors = [factor for factor in shards if factor not in text_strategy_of_factor]
    body = _local_body(owner, strategies, other_factors, scattered)
    if body is None:
        return None

    current_shards = dict(shards)  # a ring changes the block that a rank has

    def shard_of_factor(factor: int) -> Local:
        """Return the shard of a factor; the whole factor if it is not sharded."""
        return current_shards.get(factor) or Local("shard", owner.factors[factor].size, ())

    def referred_factors(reference: str) -> tuple[int, ...]:
        """Return the sharded factors of a reference such as `*b`; all its factors if none is sharded."""
        named_factors = owner.layout.refer(reference)
        return tuple(factor for factor in named_factors if factor in shards) or named_factors

    def shards_of_reference(reference: str) -> tuple[Local, ...]:
        """Return the shards of the factors that `reference` refers to."""
        return tuple(map(shard_of_factor, referred_factors(reference)))

    def dims_with(tensor: str, references: tuple[str, ...]) -> tuple[int, ...]:
        """Return the dimensions of operand `tensor` that have a factor of `references`."""
        wanted_factors = {factor for reference in references for factor in referred_factors(reference)}
        dims = enumerate(owner.layout.dims(tensor))
        return tuple(dim for dim, factors in dims if wanted_factors.intersection(factors))

    def shards_of_parts(dim: int) -> tuple[Local, ...]:
        """Return the shard of each result of a list along `dim`."""
        return tuple(shard_of_factor(factor) for result in owner.result_dims for factor in (result or ())[dim])

    def remaining_padding() -> tuple[int, ...] | None:
        """Return the padding before each dimension, 0 where halos contain it; None if no window is sharded."""
        windows = owner.layout.windows.items()
        sharded_from_end = {window.from_end for factor, window in windows if window and factor in shards}
        paddings = owner.layout.paddings
        if not sharded_from_end:
            return None
        return tuple(0 if len(paddings) - dim in sharded_from_end else padding for dim, padding in enumerate(paddings))

    scope = attrs.evolve(
        owner.scope, factors=shards_of_reference, dims=dims_with, parts=shards_of_parts, inner=remaining_padding
    )
    emitter = Emitter(
        owner,
        ops,
        scope,
        rank,
        operands,
        current_shards,
        packed_by_name(placement for strategy in text_strategy_of_factor.values() for placement in strategy.results),
        axes,
    )
    results = tuple(map(emitter.cast_result, emitter.run(body), owner.call.results))
    form = Expansion(tuple(emitter.emitted), results)
    has_ring = any(statement.ring is not None for statement in body)
    return form.without_unused() if has_ring else form  # steps of a ring may compute values that no later step needs


def _local_body(
    owner: RuleInstance, strategies: Sequence[Strategy], factors: Collection[int], scattered: Collection[int]
) -> tuple[Statement, ...] | None:
    """Return the statements of the local form of `owner`; None if it needs none.

    They are those of the first text strategy with a local form, else those of the last `local` clause that supports the
    sharded factors.

    Args:
        factors: the sharded factors that no text strategy shards.
        scattered: the factors of which a rank may have several ranges.
    """
    for strategy in strategies:
        if strategy.text and strategy.text.body:
            return strategy.text.body
    clause_indices = usable_clauses(owner, factors, scattered)
    if not clause_indices:
        return None
    clause = owner.rule.clauses[clause_indices[-1]]
    return clause.body if clause.kind == "local" else None
