"""The two rewrites of a rule: `expand` into ordinary ops on global tensors, `local` into ops on one rank's tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from spmdir.core.placement.call import Local
from spmdir.core.placement.tensor import TensorMeta
from spmdir.rules.local.emitter import Emitter
from spmdir.rules.local.expansion import Expansion
from spmdir.rules.local.rank import Rank
from spmdir.rules.local.states import joint_of
from spmdir.rules.local.suitability import serving
from spmdir.rules.product_rings import product_ring
from spmdir.rules.shapes.instance import Ops, RuleInstance
from spmdir.rules.strategies.split_products import SPLIT
from spmdir.rules.strategies.strategy import Strategy


def expand(owner: RuleInstance, ops: Ops, factor: int) -> Expansion:
    """Return the ops on global tensors that replace `owner` when `factor` is sharded."""
    clauses = [owner.rule.clauses[number] for number in owner.factors[factor].clauses]
    emitter = Emitter(owner, ops, owner.scope)
    returned = emitter.run([clause for clause in clauses if clause.kind == "expand"][-1].body)
    results = tuple(map(emitter.returned, returned, owner.call.results))
    return Expansion(tuple(emitter.made), results)


def localize(
    owner: RuleInstance,
    ops: Ops,
    shards: Mapping[int, Local],
    scattered: frozenset[int],
    operands: tuple[TensorMeta, ...],
    rank: Rank,
    strategies: Iterable[Strategy],
) -> Expansion | None:
    """Return the ops on one rank's tensors that replace `owner` when its factors are sharded as `shards` say.

    None if none of these factors needs a local form.

    Args:
        shards: factor → its shard, a Local of kind "shard".
        scattered: the factors of which a rank may have several ranges.
        strategies: those in use, of which one that is written as text, or splits a product, brings the local form.
    """
    strategies = tuple(strategies)
    for one in strategies:
        if one.rewrite == SPLIT:
            return product_ring(owner, ops, one, shards[one.factors[-1]], operands, rank)
    texts = {factor: one for one in strategies if one.text for factor in one.factors}
    bodies = [one.text.body for one in texts.values() if one.text and one.text.body]
    numbers = serving(owner, [f for f in shards if f not in texts], scattered)
    if numbers and owner.rule.clauses[numbers[-1]].kind == "local":
        bodies.append(owner.rule.clauses[numbers[-1]].body)
    if not bodies:
        return None

    held = dict(shards)  # which block of them a rank has changes along a ring

    def meant(reference: str) -> tuple[int, ...]:
        found = owner.layout.refer(reference)
        return tuple(f for f in found if f in shards) or found

    def factors(reference: str) -> tuple[Local, ...]:
        return tuple(held.get(f) or Local("shard", owner.factors[f].size, ()) for f in meant(reference))

    def dims(tensor: str, references: tuple[str, ...]) -> tuple[int, ...]:
        chosen = {f for reference in references for f in meant(reference)}
        return tuple(d for d, made_of in enumerate(owner.layout.dims(tensor)) if chosen & set(made_of))

    def parts(dim: int) -> tuple[Local, ...]:
        made_of = [factor for result in owner.result_dims for factor in (result or ())[dim]]
        return tuple(held.get(f) or Local("shard", owner.factors[f].size, ()) for f in made_of)

    def inner() -> tuple[int, ...] | None:
        sharded = {window.from_end for f, window in owner.layout.windows.items() if window and f in shards}
        pads = owner.layout.paddings
        return tuple(0 if len(pads) - d in sharded else p for d, p in enumerate(pads)) if sharded else None

    scope = attrs.evolve(owner.scope, factors=factors, dims=dims, parts=parts, inner=inner)
    emitter = Emitter(
        owner, ops, scope, rank, operands, held, joint_of(p for one in texts.values() for p in one.results)
    )
    results = tuple(map(emitter.returned, emitter.run(bodies[0]), owner.call.results))
    form = Expansion(tuple(emitter.made), results)
    return form.used() if any(statement.ring is not None for statement in bodies[0]) else form
