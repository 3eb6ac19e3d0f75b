"""Applies the first of several rewrites that pays at an op; what it makes of it is found once for equal ops."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from xdsl.ir import SSAValue

from spmdir.dialects.names import Names
from spmdir.dialects.value_op import ValueOp
from spmdir.passes.fusion.engine import Candidate, Engine
from spmdir.passes.fusion.neighbourhood import LOCAL, Neighbourhood, Neighbourhoods, op_kind, term_kind
from spmdir.passes.fusion.replacement import moved, replace
from spmdir.passes.fusion.terms import Rewrite, Value, subterms


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
        self._by_kinds: dict[tuple[str | None, frozenset[str | None]], list[Rewrite]] = {}
        self._neighbourhoods = Neighbourhoods(rewrites)
        self._known: dict[Hashable, tuple[Neighbourhood, Candidate | None]] = {}

    def apply(self, root: ValueOp) -> list[SSAValue]:
        """Replace `root` by what the first rewrite that pays makes of it.

        Returns: the values whose users changed; none if `root` stays.
        """
        tried = self._tried(op_kind(type(root)), frozenset(op_kind(type(value.owner)) for value in root.operands))
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
        replacement = tuple(moved(node, ops, values) for node in candidate.replacement)
        return replace(root, replacement, [ops[op] for op in candidate.dying], self._names)

    def _tried(self, root: str | None, below: frozenset[str | None]) -> Sequence[Rewrite]:
        """Return the rewrites for roots of kind `root` on whose operands are made by ops of the kinds `below`."""
        if (root, below) not in self._by_kinds:
            rewrites = self._index.get(root or LOCAL, ())
            self._by_kinds[root, below] = [rewrite for inner, rewrite in rewrites if inner is None or inner in below]
        return self._by_kinds[root, below]
