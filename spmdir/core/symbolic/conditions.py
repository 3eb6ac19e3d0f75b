"""Conditions between sizes, as `s0 % 4 == 0`."""

from __future__ import annotations

import operator
from collections.abc import Mapping

import attrs

from spmdir.core.symbolic.expressions import Number, evaluate, is_symbolic, without_common_parts

_HOLDS = {"==": operator.eq, "!=": operator.ne, ">=": operator.ge, ">": operator.gt}


@attrs.frozen(cache_hash=True)
class Condition:
    """What must hold between sizes, as `s0 % 4 == 0`."""

    left: Number
    relation: str
    right: Number

    def __str__(self) -> str:
        return f"{self.left} {self.relation} {self.right}"

    def holds(self, sizes: Mapping[str, int]) -> bool | None:
        """Return whether it holds; None where `sizes` do not tell."""
        left, right = evaluate(self.left, sizes), evaluate(self.right, sizes)
        if self.relation in ("==", ">=") and left == right:
            return True
        if is_symbolic(left) or is_symbolic(right):
            return None
        return _HOLDS[self.relation](left, right)


def condition(left: Number, relation: str, right: Number) -> Condition:
    """Return the condition in its one form, which has neither `<` nor `<=`."""
    if relation in ("<", "<="):
        return Condition(right, relation.replace("<", ">"), left)
    return Condition(left, relation, right)


def equality(left: Number, right: Number) -> Condition:
    """Return `left == right` without what both sides have in common."""
    left, right = without_common_parts(left, right)
    return Condition(left, "==", right)
