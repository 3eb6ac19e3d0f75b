"""The neighbourhood of an op that rewrites can match, with a key. Ops with equal keys have the same rewrites.

Equal layers have equal keys, so a rewrite is found once for all of them. A key covers an op and its producers, as deep
as left sides of rewrites. The program changes between two ops, so colours of all nodes, as in
`search/colour_refinement.py`, would need a refinement after each rewrite.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from functools import cache
from typing import Any

import attrs
from xdsl.ir import SSAValue

from spmdir.dialects.attributes import meta_of
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import sharding_of
from spmdir.rewrites.terms import Function, Rewrite, Term, Value, subterms

LOCAL = ""
"""The kind of all local ops; the kind of an op of the `spmd` dialect is its name."""


def term_kind(term: Term) -> str:
    """Return the kind of the ops that a term other than `x` matches."""
    return LOCAL if isinstance(term, Function | Value) else term.op_name


@cache
def op_kind(op_class: type[Any]) -> str | None:
    """Return the kind of the ops of a class; None for owners of function arguments."""
    name = getattr(op_class, "name", None)
    return name if name is None or name.startswith("spmd.") else LOCAL


@attrs.frozen(eq=False)
class Neighbourhood:
    """The ops that a left side may match from one root, with their operands and results.

    Attributes:
        key: equal if rewrites have the same effect. Then ops and values correspond by position.
        ops: the root, then the producers of its operands, and so on, as deep as left sides.
        values: the results and operands of the ops.
    """

    key: Hashable
    ops: tuple[ValueOp, ...]
    values: tuple[SSAValue, ...]


class Neighbourhoods:
    """The neighbourhoods of the ops of a program, for some rewrites."""

    def __init__(self, rewrites: Iterable[Rewrite]):
        self._below: dict[str, list[set[str]]] = {}
        for rewrite in rewrites:
            kinds = self._below.setdefault(term_kind(rewrite.left), [])
            for depth, term in enumerate(list(subterms(rewrite.left))[1:]):
                kinds += [set()] if depth == len(kinds) else []
                kinds[depth] |= set() if isinstance(term, Value) else {term_kind(term)}
        self._ops: dict[ValueOp, int] = {}
        self._values: dict[SSAValue, int] = {}
        self._numbers: dict[Hashable, int] = {}

    def of(self, root: ValueOp) -> Neighbourhood:
        """Return the neighbourhood of `root` in the current program."""
        ops, level = {root: None}, [root]
        for kinds in self._below.get(op_kind(type(root)) or LOCAL, ()):
            producers: Any = (value.owner for op in level for value in op.operands)
            level = list(dict.fromkeys(producer for producer in producers if op_kind(type(producer)) in kinds))
            ops.update(dict.fromkeys(level))
        values: dict[SSAValue, int] = {}
        form: list[int] = []
        for op in ops:
            form.append(self._op_number(op))
            form += [values.setdefault(value, len(values)) for value in (*op.results, *op.operands)]
            # A rewrite of the root removes the ops without other users.
            form.append(op is root or any(use.operation not in ops for value in op.results for use in value.uses))
        return Neighbourhood((*form, None, *map(self._value_number, values)), tuple(ops), tuple(values))

    def _op_number(self, op: ValueOp) -> int:
        if op not in self._ops:
            literals = tuple(op.properties.items()), tuple(op.attributes.items())
            self._ops[op] = self._number((op.name, len(op.results), len(op.operands), *literals))
        return self._ops[op]

    def _value_number(self, value: SSAValue) -> int:
        if value not in self._values:
            self._values[value] = self._number((meta_of(value.type), sharding_of(value)))
        return self._values[value]

    def _number(self, key: Hashable) -> int:
        return self._numbers.setdefault(key, len(self._numbers))
