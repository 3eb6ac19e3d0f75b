"""Values of the small expressions in rules: conditions, extents, and the arguments of rewrites."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from spmdir.call import DTYPE_BYTES, DType, Local, TensorMeta
from spmdir.errors import RuleError
from spmdir.rules.binding import Binding
from spmdir.rules.syntax import Binary, Condition, Constant, Expression, Function, Name, Sequence

ELEMENT_TYPES = frozenset(DTYPE_BYTES)


@attrs.frozen
class Scope:
    """What an expression may look at.

    Attributes:
        binding, operands, results: of the call.
        factors: reference → (size, the axes that divide it, major first) of the factors it means.
        names, meta_of: values that statements before it named, and the types of these.
    """

    binding: Binding
    operands: tuple[TensorMeta, ...]
    results: tuple[TensorMeta | None, ...]
    factors: Callable[[str], tuple[tuple[int, tuple[str, ...]], ...]]
    names: Mapping[str, Any] = {}
    meta_of: Callable[[Any], TensorMeta] | None = None

    def meta(self, name: str) -> TensorMeta:
        if name in self.names and self.meta_of:
            return self.meta_of(self.names[name])
        return self.operands[self.binding.operands(name)[0]]


def _count(scope: Scope, reference: str) -> int:
    return math.prod(size for size, _ in scope.factors(reference))


def _piece(kind: str) -> Callable[[Scope, str], int | Local]:
    def value(scope: Scope, reference: str) -> int | Local:
        found = scope.factors(reference)
        if len(found) != 1:
            raise RuleError(f"{kind}({reference}) needs one factor, found {len(found)}")
        ((size, axes),) = found
        return Local(kind, size, axes) if axes else (size if kind == "size" else 0)

    return value


def _given(scope: Scope, name: str) -> bool:
    return bool(scope.binding.operands(name))


def _half(scope: Scope, name: str) -> bool:
    return scope.meta(name).dtype in ("f16", "bf16")


def _dtype(scope: Scope, name: str) -> DType:
    meta = scope.results[0] if name == "result" else scope.meta(name)
    assert meta is not None
    return DType(meta.dtype)


def _floating(scope: Scope, name: str) -> bool:
    meta = scope.results[0] if name == "result" else scope.meta(name)
    return meta is not None and meta.dtype[0] in "fb"


def _exact_cast(scope: Scope, name: str) -> bool:
    """No sum is rounded otherwise: the result is floating and holds every value of the operand's type."""
    source, target = scope.meta(name).dtype, scope.results[0].dtype if scope.results[0] else ""
    if source == target or (source[0] in "iu" and target[0] in "fb"):
        return source != "i1"
    return source[0] in "fb" and target[0] == "f" and DTYPE_BYTES[target] > DTYPE_BYTES[source]


def _rank(scope: Scope, name: str) -> int:
    return scope.meta(name).rank


def _integral(scope: Scope, name: str) -> bool:
    meta = scope.results[0] if name == "result" else scope.meta(name)
    return meta is not None and meta.dtype[0] in "iu"


def _steps(scope: Scope, *names: str) -> int:
    """The elements of a range: `steps(end)`, `steps(start, end)` or `steps(start, end, step)`."""
    values: list[Any] = [scope.binding.arguments.get(name) for name in names]
    start, end, step = (0, values[0], 1) if len(values) == 1 else [*values, 1][:3]
    if not all(isinstance(value, (int, float)) and math.isfinite(value) for value in (start, end, step)) or not step:
        raise RuleError(f"there is no range from {start} to {end} in steps of {step}")
    return max(0, math.ceil((end - start) / step))


def _ones(scope: Scope, name: str, *argument: str) -> tuple[int, ...]:
    """The dimensions of size 1 over all ranks, among those that a literal argument lists if one is named."""
    shape = scope.operands[scope.binding.operands(name)[0]].shape
    given: Any = scope.binding.arguments.get(argument[0]) if argument else tuple(range(len(shape)))
    return tuple(d for d in (given if isinstance(given, tuple) else (given,)) if shape[d] == 1)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "count": _count,
    "size": _piece("size"),
    "offset": _piece("offset"),
    "given": _given,
    "half": _half,
    "dtype": _dtype,
    "floating": _floating,
    "exact_cast": _exact_cast,
    "integral": _integral,
    "ones": _ones,
    "rank": _rank,
    "steps": _steps,
}
"""Function in a rule → (scope, names) → value.

count(f): elements along f over all ranks. size(f), offset(f): of this rank's piece. given(x): tensor x is present.
half(x): x is f16 or bf16. dtype(x), floating(x), integral(x): element type of x or of `result`. rank(x).
exact_cast(x): from x to the result no sum is rounded. ones(x), ones(x, dim): dimensions of size 1 over all ranks.
steps(end), steps(start, end), steps(start, end, step): elements of a range.
"""


def _ratio(left: Any, right: Any) -> float:
    return left / right if right else math.inf


OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": _ratio, "==": operator.eq,
    "!=": operator.ne, ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt,
    "and": lambda a, b: a and b,
}  # fmt: skip


def _local_arithmetic(symbol: str, left: Any, right: Any) -> Local:
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
    raise RuleError(f"a rank's own integers cannot be combined as {left} {symbol} {right}")


def evaluate(expression: Expression, scope: Scope) -> Any:
    """The value of `expression`, which calls no op.

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
        default = DType(expression.name) if expression.name in ELEMENT_TYPES else None
        return scope.binding.arguments.get(expression.name, default)
    assert isinstance(expression, Binary)
    left, right = evaluate(expression.left, scope), evaluate(expression.right, scope)
    if isinstance(left, Local) or isinstance(right, Local):
        return _local_arithmetic(expression.operator, left, right)
    try:
        return OPERATORS[expression.operator](left, right)
    except TypeError:
        raise RuleError(f"no value for {left!r} {expression.operator} {right!r}", expression.location) from None


def holds(condition: Condition | None, scope: Scope) -> bool:
    """Whether `condition` is true; none is."""
    return condition is None or bool(evaluate(condition.expression, scope)) != condition.negated
