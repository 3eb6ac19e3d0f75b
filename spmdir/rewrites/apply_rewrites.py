"""Apply the first beneficial rewrite at an op. Ops with equal neighbourhoods share one search for a replacement."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from xdsl.ir import SSAValue

from spmdir.dialects.names import Names
from spmdir.dialects.value_op import ValueOp
from spmdir.rewrites.engine import Candidate, Engine
from spmdir.rewrites.neighbourhood import LOCAL, Neighbourhood, Neighbourhoods, op_kind, term_kind
from spmdir.rewrites.replacement import replace, translate
from spmdir.rewrites.terms import Rewrite, Value, subterms


class Rewriting:
    """Rewrites the ops of one function.

    Attributes:
        reach: the largest distance from the root to an op in the match of a left side.
    """

    def __init__(self, rewrites: Sequence[Rewrite], engine: Engine, names: Names):
        self._engine, self._names = engine, names
        # kind of the root → (kind of the producer of its operand or None for any, rewrite)
        self._index: dict[str, list[tuple[str | None, Rewrite]]] = {}
        for rewrite in rewrites:
            outer = rewrite.left
            inner = None if isinstance(outer.operand, Value) else term_kind(outer.operand)
            self._index.setdefault(term_kind(outer), []).append((inner, rewrite))
        self.reach = max((len(list(subterms(rewrite.left))) - 1 for rewrite in rewrites), default=0)
        self._rewrites_of_classes: dict[tuple[type[Any], tuple[type[Any], ...]], list[Rewrite]] = {}
        self._neighbourhoods = Neighbourhoods(rewrites)
        self._candidate_of: dict[Hashable, tuple[Neighbourhood, Candidate | None]] = {}

    def apply(self, root: ValueOp) -> list[SSAValue]:
        """Apply the first beneficial rewrite at `root`.

        If attempts are traced, equal neighbourhoods are searched again, to record all attempts.

        Returns: the values whose users changed; [] if no rewrite applies.
        """
        producers = tuple([type(value.owner) for value in root.operands])
        rewrites = self._rewrites_of_classes.get((type(root), producers))
        if rewrites is None:
            rewrites = self._rewrites_of_classes[type(root), producers] = self._possible_rewrites(type(root), producers)
        if not rewrites:
            return []
        neighbourhood = self._neighbourhoods.of(root)
        search_outcome = None if self._engine.on_attempt else self._candidate_of.get(neighbourhood.key)
        if search_outcome is None:
            candidates = (self._engine.cheapest_replacement(rewrite, root) for rewrite in rewrites)
            search_outcome = neighbourhood, next((candidate for candidate in candidates if candidate is not None), None)
            self._candidate_of[neighbourhood.key] = search_outcome
        known_neighbourhood, candidate = search_outcome
        if candidate is None:
            return []
        # The candidate may stem from another root with an equal neighbourhood: translate its ops and values.
        ops = dict(zip(known_neighbourhood.ops, neighbourhood.ops, strict=True))
        values = dict(zip(known_neighbourhood.values, neighbourhood.values, strict=True))
        replacement = translate(candidate.replacement, ops, values)
        return replace(root, replacement, [ops[op] for op in candidate.dying], self._names)

    def _possible_rewrites(self, root: type[Any], producers: Sequence[type[Any]]) -> list[Rewrite]:
        """Return the rewrites that may match an op of class `root` whose operands have `producers` of these classes."""
        operand_kinds = {op_kind(producer) for producer in producers}
        rewrites = self._index.get(op_kind(root) or LOCAL, ())
        return [rewrite for inner, rewrite in rewrites if inner is None or inner in operand_kinds]
