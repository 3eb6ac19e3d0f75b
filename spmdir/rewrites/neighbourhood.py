"""What rewrites see around an op, with a key: at ops of equal keys, as in equal layers, the same rewrite applies.

A key covers one op as deep as left sides of rewrites go. The program changes between two questions, so colours of all
its nodes, as in `search/colours.py`, would have to be refined after each rewrite.
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
    """Return the kind of the ops that a term other than `x` may be."""
    return LOCAL if isinstance(term, Function | Value) else term.op_name


@cache
def op_kind(made_by: type[Any]) -> str | None:
    """Return the kind of the ops of a class; None for that of the owners of function arguments."""
    name = getattr(made_by, "name", None)
    return name if name is None or name.startswith("spmd.") else LOCAL


@attrs.frozen(eq=False)
class Neighbourhood:
    """The ops that a left side may cover from one root on, and their operands and results.

    Attributes:
        key: equal where rewrites do the same; ops and values of equal neighbourhoods correspond by position.
        ops: the root, then the ops that make its operands, and so on, as far as left sides go.
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
        """Return the neighbourhood of `root` in the program as it is now."""
        ops, level = {root: None}, [root]
        for kinds in self._below.get(op_kind(type(root)) or LOCAL, ()):
            makers: Any = (value.owner for op in level for value in op.operands)
            level = list(dict.fromkeys(maker for maker in makers if op_kind(type(maker)) in kinds))
            ops.update(dict.fromkeys(level))
        values: dict[SSAValue, int] = {}
        form: list[int] = []
        for op in ops:
            form.append(self._op_number(op))
            form += [values.setdefault(value, len(values)) for value in (*op.results, *op.operands)]
            # A rewrite that replaces the root removes those ops that nothing else uses.
            form.append(op is root or any(use.operation not in ops for value in op.results for use in value.uses))
        return Neighbourhood((*form, None, *map(self._value_number, values)), tuple(ops), tuple(values))

    def _op_number(self, op: ValueOp) -> int:
        if op not in self._ops:
            said = tuple(op.properties.items()), tuple(op.attributes.items())
            self._ops[op] = self._number((op.name, len(op.results), len(op.operands), *said))
        return self._ops[op]

    def _value_number(self, value: SSAValue) -> int:
        if value not in self._values:
            self._values[value] = self._number((meta_of(value.type), sharding_of(value)))
        return self._values[value]

    def _number(self, key: Hashable) -> int:
        return self._numbers.setdefault(key, len(self._numbers))
