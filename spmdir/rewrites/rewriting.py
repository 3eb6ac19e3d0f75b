"""Applies the first of several rewrites that pays at an op; what it makes of it is found once for equal ops."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from xdsl.ir import SSAValue

from spmdir.dialects.names import Names
from spmdir.dialects.value_op import ValueOp
from spmdir.rewrites.engine import Candidate, Engine
from spmdir.rewrites.neighbourhood import LOCAL, Neighbourhood, Neighbourhoods, op_kind, term_kind
from spmdir.rewrites.replacement import moved, replace
from spmdir.rewrites.terms import Rewrite, Value, subterms


class Rewriting:
    """Rewrites the ops of one function.

    Attributes:
        reach: how far from the root the ops are that the left side of a rewrite covers, at most.
    """

    def __init__(self, rewrites: Sequence[Rewrite], engine: Engine, names: Names):
        self._engine, self._names = engine, names
        self._index: dict[str, list[tuple[str | None, Rewrite]]] = {}
        for rewrite in rewrites:
            outer = rewrite.left
            inner = None if isinstance(outer.operand, Value) else term_kind(outer.operand)
            self._index.setdefault(term_kind(outer), []).append((inner, rewrite))
        self.reach = max((len(list(subterms(rewrite.left))) - 1 for rewrite in rewrites), default=0)
        self._tried: dict[tuple[type[Any], tuple[type[Any], ...]], list[Rewrite]] = {}
        self._neighbourhoods = Neighbourhoods(rewrites)
        self._known: dict[Hashable, tuple[Neighbourhood, Candidate | None]] = {}

    def apply(self, root: ValueOp) -> list[SSAValue]:
        """Replace `root` by what the first rewrite that pays makes of it.

        Returns: the values whose users changed; none if `root` stays.
        """
        makers = tuple([type(value.owner) for value in root.operands])
        tried = self._tried.get((type(root), makers))
        if tried is None:
            tried = self._tried[type(root), makers] = self._possible(type(root), makers)
        if not tried:
            return []
        here = self._neighbourhoods.of(root)
        known = None if self._engine.on_attempt else self._known.get(here.key)
        if known is None:
            found = (self._engine.cheaper(rewrite, root) for rewrite in tried)
            known = here, next((candidate for candidate in found if candidate is not None), None)
            self._known[here.key] = known
        there, candidate = known
        if candidate is None:
            return []
        ops, values = dict(zip(there.ops, here.ops, strict=True)), dict(zip(there.values, here.values, strict=True))
        replacement = moved(candidate.replacement, ops, values)
        return replace(root, replacement, [ops[op] for op in candidate.dying], self._names)

    def _possible(self, root: type[Any], makers: Sequence[type[Any]]) -> list[Rewrite]:
        """Return the rewrites whose form an op of class `root` may have, its operands made by ops of `makers`."""
        below = {op_kind(maker) for maker in makers}
        rewrites = self._index.get(op_kind(root) or LOCAL, ())
        return [rewrite for inner, rewrite in rewrites if inner is None or inner in below]
