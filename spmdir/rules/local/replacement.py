"""The two rewrites of a rule: `expand` into ordinary ops on global tensors, `local` into ops on one rank's tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs

from spmdir.core.call import Local
from spmdir.core.tensor import TensorMeta
from spmdir.rules.instance import Ops, RuleInstance
from spmdir.rules.language.expressions import holds
from spmdir.rules.language.syntax_tree import RuleClause, TextStrategy
from spmdir.rules.local.emitter import Emitter
from spmdir.rules.local.expansion import Expansion


def expand(owner: RuleInstance, ops: Ops, factor: int) -> Expansion:
    """Return the ops on global tensors that replace `owner` when `factor` is sharded."""
    emitter = Emitter(owner, ops, owner.scope)
    returned = emitter.run(_clause(owner, "expand", factor).body)
    results = tuple(map(emitter.returned, returned, owner.call.results))
    return Expansion(tuple(emitter.made), results)


def localize(
    owner: RuleInstance,
    ops: Ops,
    axes: Mapping[int, tuple[str, ...]],
    operands: tuple[TensorMeta, ...],
    value: Callable[[Local], int],
    texts: Mapping[int, TextStrategy],
) -> Expansion | None:
    """Return the ops on one rank's tensors that replace `owner` when `axes` shard its factors.

    None if none of these factors needs a local form.

    Args:
        texts: factor → the strategy, written as text, by which it is sharded.
    """
    bodies = [text.body for text in texts.values() if text.body]
    needing = [f for f in axes if axes[f] and owner.factors[f].rewrite == "local" and f not in texts]
    if not needing and not bodies:
        return None

    def meant(reference: str) -> tuple[int, ...]:
        found = owner.layout.refer(reference)
        return tuple(f for f in found if axes.get(f)) or found

    def factors(reference: str) -> tuple[tuple[int, tuple[str, ...]], ...]:
        return tuple((owner.factors[f].size, tuple(axes.get(f, ()))) for f in meant(reference))

    def dims(tensor: str, references: tuple[str, ...]) -> tuple[int, ...]:
        chosen = {f for reference in references for f in meant(reference)}
        return tuple(d for d, made_of in enumerate(owner.layout.dims(tensor)) if chosen & set(made_of))

    def inner() -> tuple[int, ...] | None:
        sharded = {window.from_end for f, window in owner.layout.windows.items() if window and axes.get(f)}
        pads = owner.layout.paddings
        return tuple(0 if len(pads) - d in sharded else p for d, p in enumerate(pads)) if sharded else None

    scope = attrs.evolve(owner.scope, factors=factors, dims=dims, inner=inner)
    emitter = Emitter(owner, ops, scope, value, operands, axes)
    results = emitter.run(bodies[0] if bodies else _clause(owner, "local", needing[0]).body)
    return Expansion(tuple(emitter.made), results)


def _clause(owner: RuleInstance, kind: str, factor: int) -> RuleClause:
    clauses = [c for c in owner.rule.of_kind(kind) if any(factor in owner.layout.refer(n) for n in c.names)]
    return next(c for c in clauses if holds(c.condition, owner.scope))
