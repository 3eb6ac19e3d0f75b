"""Conditions between sizes, as `s0 % 4 == 0`."""

from __future__ import annotations

import operator
from collections.abc import Mapping

import attrs

from spmdir.core.symbolic.expressions import Number, cancel_common_terms, evaluate, is_symbolic

_COMPARE = {"==": operator.eq, "!=": operator.ne, ">=": operator.ge, ">": operator.gt}


@attrs.frozen(cache_hash=True)
class Condition:
    """A condition on sizes, as `s0 % 4 == 0`."""

    left: Number
    relation: str
    right: Number

    def __str__(self) -> str:
        return f"{self.left} {self.relation} {self.right}"

    def holds(self, sizes: Mapping[str, int]) -> bool | None:
        """Return whether the condition holds; None if `sizes` do not determine it."""
        left, right = evaluate(self.left, sizes), evaluate(self.right, sizes)
        if self.relation in ("==", ">=") and left == right:
            return True  # equal expressions are equal for all sizes
        if is_symbolic(left) or is_symbolic(right):
            return None
        return _COMPARE[self.relation](left, right)


def condition(left: Number, relation: str, right: Number) -> Condition:
    """Return the condition in canonical form, without `<` and `<=`."""
    if relation in ("<", "<="):
        return Condition(right, relation.replace("<", ">"), left)
    return Condition(left, relation, right)


def equality(left: Number, right: Number) -> Condition:
    """Return the condition `left == right`, without common terms and factors."""
    left, right = cancel_common_terms(left, right)
    return Condition(left, "==", right)
