"""Run the rewrites of a rule: `expand` into ops on global tensors, `local` into ops on the local tensors of a rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from spmdir.core.placement.call import Local
from spmdir.core.placement.tensor import TensorMeta
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
    """Return the ops on global tensors that replace `owner` if `factor` is sharded."""
    clauses = [owner.rule.clauses[number] for number in owner.factors[factor].clauses]
    emitter = Emitter(owner, ops, owner.scope)
    returned = emitter.run([clause for clause in clauses if clause.kind == "expand"][-1].body)
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

    Args:
        shards: sharded factor → its shard, a Local of kind "shard".
        scattered: the factors of which a rank may have several ranges.
        operands: the types of the local operands.
        strategies: the strategies in use. A text strategy, or one that splits a product, has its own local form.
        axes: the mesh axes whose strategy is the local form of a text strategy.
    """
    strategies = tuple(strategies)
    for strategy in strategies:
        if strategy.rewrite == SPLIT:
            return product_ring(owner, ops, strategy, shards[strategy.factors[-1]], operands, rank)
    texts = {factor: strategy for strategy in strategies if strategy.text for factor in strategy.factors}
    bodies = [strategy.text.body for strategy in strategies if strategy.text and strategy.text.body]
    clause_indices = usable_clauses(owner, [f for f in shards if f not in texts], scattered)
    if clause_indices and owner.rule.clauses[clause_indices[-1]].kind == "local":
        bodies.append(owner.rule.clauses[clause_indices[-1]].body)
    if not bodies:
        return None

    current_shards = dict(shards)  # a ring changes the block that a rank has

    def referred_factors(reference: str) -> tuple[int, ...]:
        named_factors = owner.layout.refer(reference)
        return tuple(f for f in named_factors if f in shards) or named_factors

    def factors(reference: str) -> tuple[Local, ...]:
        return tuple(
            current_shards.get(f) or Local("shard", owner.factors[f].size, ()) for f in referred_factors(reference)
        )

    def dims(tensor: str, references: tuple[str, ...]) -> tuple[int, ...]:
        wanted_factors = {f for reference in references for f in referred_factors(reference)}
        return tuple(d for d, dim_factors in enumerate(owner.layout.dims(tensor)) if wanted_factors & set(dim_factors))

    def parts(dim: int) -> tuple[Local, ...]:
        dim_factors = [factor for result in owner.result_dims for factor in (result or ())[dim]]
        return tuple(current_shards.get(f) or Local("shard", owner.factors[f].size, ()) for f in dim_factors)

    def inner() -> tuple[int, ...] | None:
        sharded = {window.from_end for f, window in owner.layout.windows.items() if window and f in shards}
        pads = owner.layout.paddings
        return tuple(0 if len(pads) - d in sharded else p for d, p in enumerate(pads)) if sharded else None

    scope = attrs.evolve(owner.scope, factors=factors, dims=dims, parts=parts, inner=inner)
    emitter = Emitter(
        owner,
        ops,
        scope,
        rank,
        operands,
        current_shards,
        packed_by_name(p for strategy in texts.values() for p in strategy.results),
        axes,
    )
    results = tuple(map(emitter.cast_result, emitter.run(bodies[0]), owner.call.results))
    form = Expansion(tuple(emitter.emitted), results)
    return form.without_unused() if any(statement.ring is not None for statement in bodies[0]) else form
