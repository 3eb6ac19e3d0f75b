"""Evaluate the expressions of rules: conditions, extents, and arguments in rewrites."""

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
    """Return `left / right`, infinite for a division by zero."""
    return left / right if right else math.inf


def _remainder(left: Any, right: Any) -> float:
    """Return `left % right`, infinite for a division by zero, so no condition such as `n % 0 == 0` holds."""
    return left % right if right else math.inf


OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": _ratio, "%": _remainder, "==": operator.eq,
    "!=": operator.ne, ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt,
    "and": lambda left, right: left and right,
}  # fmt: skip


def _local_arithmetic(symbol: str, left: Any, right: Any, location: Location | None) -> Local:
    """Return `left symbol right`, where one of both is a Local: an integer that differs between ranks.

    A Local is `times * value + plus`. For the result to be one again, the other operand must be an integer. For
    example, `2 * offset(f) + 3` has `times` 2 and `plus` 3, and `1 - reaches(l, s)` has `times` -1 and `plus` 1.
    """
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
    # Axes are left out, because a strategy that is only priced has an axis that the program lacks.
    left, right = (f"{value.kind}(…)" if isinstance(value, Local) else value for value in (left, right))
    raise RuleError(
        f"values that differ between ranks cannot be combined as {left} {symbol} {right}; expected one such value, "
        "and an integer that is equal on all ranks, with +, - or *, as in 1 - reaches(l, s)",
        location,
    )


def evaluate(expression: Expression, scope: Scope) -> Any:
    """Evaluate an expression that calls no op.

    Raises:
        RuleError: an operator does not support its operands.
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
        raise RuleError(
            f"cannot compute {left!r} {expression.operator} {right!r}; expected operands to which Python "
            "can apply this operator: correct their types",
            expression.location,
        ) from None


def holds(condition: Condition | None, scope: Scope) -> bool:
    """Return whether `condition` holds; a missing condition holds."""
    return condition is None or bool(evaluate(condition.expression, scope)) != condition.negated
