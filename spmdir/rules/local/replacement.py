"""The two rewrites of a rule: `expand` into ordinary ops on global tensors, `local` into ops on one rank's tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import attrs

from spmdir.core.call import Local, TensorMeta
from spmdir.rules.language.expressions import holds
from spmdir.rules.language.syntax_tree import Clause
from spmdir.rules.local.emitter import Emitter
from spmdir.rules.local.expansion import Expansion

if TYPE_CHECKING:
    from spmdir.rules.op_rule import OpRule


def expand(owner: OpRule, factor: int) -> Expansion:
    """The expansion of `owner` over `factor`."""
    emitter = Emitter(owner, owner.scope)
    made = emitter.run(_clause(owner, "expand", factor).body)
    results = tuple(map(emitter.returned, made, owner.call.results))
    return Expansion(tuple(emitter.pieces), results)


def localize(
    owner: OpRule,
    axes: Mapping[int, tuple[str, ...]],
    operands: tuple[TensorMeta, ...],
    value: Callable[[Local], int],
) -> Expansion | None:
    """The local form of `owner` when `axes` divide its factors; None if none of these factors needs one."""
    needing = [f for f in axes if axes[f] and owner.factors[f].rewrite == "local"]
    if not needing:
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
        divided = {window.from_end for f, window in owner.layout.windows.items() if window and axes.get(f)}
        pads = owner.layout.paddings
        return tuple(0 if len(pads) - d in divided else p for d, p in enumerate(pads)) if divided else None

    scope = attrs.evolve(owner.scope, factors=factors, dims=dims, inner=inner)
    emitter = Emitter(owner, scope, value, operands, axes)
    results = emitter.run(_clause(owner, "local", needing[0]).body)
    return Expansion(tuple(emitter.pieces), results)


def _clause(owner: OpRule, kind: str, factor: int) -> Clause:
    clauses = [c for c in owner.rule.of_kind(kind) if any(factor in owner.layout.refer(n) for n in c.names)]
    return next(c for c in clauses if holds(c.condition, owner.scope))
