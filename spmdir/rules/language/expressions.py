"""Arithmetic of the small expressions in rules: conditions, extents, and the arguments of rewrites."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import attrs

from spmdir.core.dtype import DTYPES
from spmdir.core.errors import Location, RuleError
from spmdir.core.placement.call import Local
from spmdir.rules.language.functions import FUNCTIONS
from spmdir.rules.language.scope import Scope
from spmdir.rules.language.syntax_tree import Binary, Condition, Constant, Expression, Function, Name, Sequence


def _ratio(left: Any, right: Any) -> float:
    return left / right if right else math.inf


def _remainder(left: Any, right: Any) -> float:
    return left % right if right else math.inf


OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": _ratio, "%": _remainder, "==": operator.eq,
    "!=": operator.ne, ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt,
    "and": lambda a, b: a and b,
}  # fmt: skip


def _local_arithmetic(symbol: str, left: Any, right: Any, location: Location | None) -> Local:
    if symbol == "*" and isinstance(left, int):
        left, right = right, left
    if symbol in "+-" and isinstance(left, int) and isinstance(right, Local):
        sign = 1 if symbol == "+" else -1
        return attrs.evolve(right, times=sign * right.times, plus=left + sign * right.plus)
    if isinstance(left, Local) and isinstance(right, int):
        if symbol == "*":
            return attrs.evolve(left, times=left.times * right, plus=left.plus * right)
        if symbol in "+-":
            return attrs.evolve(left, plus=left.plus + (right if symbol == "+" else -right))
    # The shards of a strategy that is only priced are along an axis that no program names.
    left, right = (f"{value.kind}(…)" if isinstance(value, Local) else value for value in (left, right))
    raise RuleError(
        f"a rank's own integers cannot be combined as {left} {symbol} {right}; expected one of them with integers that "
        "all ranks share, by +, - or *, as in 1 - reaches(l, s) where no key is reached",
        location,
    )


def evaluate(expression: Expression, scope: Scope) -> Any:
    """Return the value of `expression`, which calls no op.

    Raises:
        RuleError: it combines the integers of ranks in a way that no Local can hold.
    """
    if isinstance(expression, Constant):
        return expression.value
    if isinstance(expression, Sequence):
        return tuple(evaluate(item, scope) for item in expression.items)
    if isinstance(expression, Function):
        return FUNCTIONS[expression.name](scope, *expression.arguments)
    if isinstance(expression, Name):
        if expression.name in scope.names:
            return scope.names[expression.name]
        return scope.binding.arguments.get(expression.name, DTYPES.get(expression.name))
    assert isinstance(expression, Binary)
    left = evaluate(expression.left, scope)
    if expression.operator == "and" and not left:
        return left
    right = evaluate(expression.right, scope)
    if isinstance(left, Local) or isinstance(right, Local):
        return _local_arithmetic(expression.operator, left, right, expression.location)
    try:
        return OPERATORS[expression.operator](left, right)
    except TypeError:
        raise RuleError(f"no value for {left!r} {expression.operator} {right!r}", expression.location) from None


def holds(condition: Condition | None, scope: Scope) -> bool:
    """Return whether `condition` is true; none is."""
    return condition is None or bool(evaluate(condition.expression, scope)) != condition.negated
