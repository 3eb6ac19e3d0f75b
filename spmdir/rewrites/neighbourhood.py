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
        # Kind of a root → for each distance from the root, the kinds of producers that left sides contain there.
        self._producer_kinds: dict[str, list[set[str]]] = {}
        for rewrite in rewrites:
            kinds_by_depth = self._producer_kinds.setdefault(term_kind(rewrite.left), [])
            for depth, term in enumerate(list(subterms(rewrite.left))[1:]):
                if depth == len(kinds_by_depth):
                    kinds_by_depth.append(set())
                if not isinstance(term, Value):
                    kinds_by_depth[depth].add(term_kind(term))
        self._op_numbers: dict[ValueOp, int] = {}
        self._value_numbers: dict[SSAValue, int] = {}
        self._numbers: dict[Hashable, int] = {}

    def of(self, root: ValueOp) -> Neighbourhood:
        """Return the neighbourhood of `root` in the current program.

        Values are numbered in the order of their first occurrence. For each op, the key has the number of its name and
        attributes, the numbers of its results and operands, and whether it has users outside. The types and shardings
        of the values follow. For example, `%2 = neg(%1)` as the root, with the producer `%1 = exp(%0)`, has the key
        (neg, 0, 1, True, exp, 1, 2, False, None, type of %2, type of %1, type of %0).
        """
        ops, level = {root: None}, [root]
        for kinds in self._producer_kinds.get(op_kind(type(root)) or LOCAL, ()):
            producers: Any = (value.owner for op in level for value in op.operands)
            level = list(dict.fromkeys(producer for producer in producers if op_kind(type(producer)) in kinds))
            ops.update(dict.fromkeys(level))
        values: dict[SSAValue, int] = {}
        key: list[int] = []
        for op in ops:
            key.append(self._op_number(op))
            key += [values.setdefault(value, len(values)) for value in (*op.results, *op.operands)]
            # A rewrite of the root removes the ops without users outside, so the key contains whether there are any.
            key.append(op is root or any(use.operation not in ops for value in op.results for use in value.uses))
        # None separates the numbers of ops and values from those of types.
        return Neighbourhood((*key, None, *map(self._value_number, values)), tuple(ops), tuple(values))

    def _op_number(self, op: ValueOp) -> int:
        """Return a number that is equal for ops with equal names and attributes."""
        if op not in self._op_numbers:
            literals = tuple(op.properties.items()), tuple(op.attributes.items())
            self._op_numbers[op] = self._number((op.name, len(op.results), len(op.operands), *literals))
        return self._op_numbers[op]

    def _value_number(self, value: SSAValue) -> int:
        """Return a number that is equal for values of equal type and sharding."""
        if value not in self._value_numbers:
            self._value_numbers[value] = self._number((meta_of(value.type), sharding_of(value)))
        return self._value_numbers[value]

    def _number(self, key: Hashable) -> int:
        """Return the number of a key. A new key gets the next number."""
        return self._numbers.setdefault(key, len(self._numbers))
