"""Expressions of symbolic sizes, which are only known when a program runs.

    s0 · 2*s0*s1 + 3 · (s0 + 1) // 2 · max(s0, 8) · 1 / s0

Integers are polynomials in canonical form, so equal integers have equal texts. Their variables are symbols, and
functions such as `floordiv` of polynomials. Floats keep the order of their operations, because another order would
round differently.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, Union

import attrs

from spmdir.core.errors import SpmdirError
from spmdir.core.limits import DIGITS, TERMS

Number = Union[int, float, "Size", "Real"]
"""A number that may depend on symbolic sizes."""


def _power(base: int | float, exponent: int | float) -> int | float:
    """Return a power; raise OverflowError if the result could be a huge integer."""
    if abs(exponent) > 64 and isinstance(base, int):
        raise OverflowError("the exponent is too large")
    return base**exponent


_PYTHON: dict[str, Callable[..., Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "neg": operator.neg, "pow": _power,
    "floordiv": operator.floordiv, "mod": operator.mod, "truediv": operator.truediv,
    "max": max, "min": min, "float": float, "sqrt": math.sqrt,
    "floor": math.floor, "ceil": math.ceil, "trunc": math.trunc, "round": round,
}  # fmt: skip
"""Name of a function → the Python function."""


_PLAIN = re.compile(r"[\w.]*(?:\([^()]*\))?")
"""The text of a name, a number or a call, which needs no brackets as an operand."""

INFIX = {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%", "truediv": "/", "pow": "**"}
"""Name of a function → its operator."""

_TO_FLOAT = frozenset({"truediv", "float", "sqrt"})
"""The functions that return floats for integers."""

_TO_INT = frozenset({"floor", "ceil", "trunc", "round"})
"""The functions that return integers for floats."""


class _Arithmetic:
    """Python's operators on symbolic numbers."""

    __slots__ = ()

    def __add__(self: Any, right: Any) -> Any:
        return apply("add", self, right)

    def __radd__(self: Any, left: Any) -> Any:
        return apply("add", left, self)

    def __sub__(self: Any, right: Any) -> Any:
        return apply("sub", self, right)

    def __rsub__(self: Any, left: Any) -> Any:
        return apply("sub", left, self)

    def __mul__(self: Any, right: Any) -> Any:
        return apply("mul", self, right)

    def __rmul__(self: Any, left: Any) -> Any:
        return apply("mul", left, self)

    def __floordiv__(self: Any, right: Any) -> Any:
        return apply("floordiv", self, right)

    def __mod__(self: Any, right: Any) -> Any:
        return apply("mod", self, right)

    def __truediv__(self: Any, right: Any) -> Any:
        return apply("truediv", self, right)

    def __neg__(self: Any) -> Any:
        return apply("neg", self)


@attrs.frozen(cache_hash=True)
class Function:
    """An integer function, as a variable of a polynomial: `floordiv`, `mod`, `max`, `min`, `trunc`, …"""

    name: str
    arguments: tuple[Number, ...]

    def __str__(self) -> str:
        return _call_text(self.name, self.arguments)


Atom = str | Function
"""A variable of a polynomial: the name of a symbol, or an integer function."""

Monomial = tuple[Atom, ...]
"""A product of atoms, with repeated ones for powers; () is 1."""


@attrs.frozen(cache_hash=True)
class Size(_Arithmetic):
    """A symbolic integer: a polynomial that is not a constant.

    Attributes:
        terms: (factors, coefficient) pairs. Terms are sorted, and so are the factors of each term.
    """

    terms: tuple[tuple[Monomial, int], ...]

    def __str__(self) -> str:
        """Return the sum of the terms as text, as in `2*s0 + s1 - 1`."""
        if len(self.terms) == 1 and self.terms[0][1] == 1 and len(self.terms[0][0]) == 1:
            return str(self.terms[0][0][0])
        text = ""
        for monomial, coefficient in self.terms:
            factors = [_atom_text(atom) for atom in monomial]
            if abs(coefficient) != 1 or not factors:
                factors = [str(abs(coefficient)), *factors]
            sign = (" - " if text else "-") if coefficient < 0 else (" + " if text else "")
            text += sign + "*".join(factors)
        return text


@attrs.frozen(cache_hash=True)
class Real(_Arithmetic):
    """A symbolic float: a function of numbers. Its operations keep their order."""

    name: str
    arguments: tuple[Number, ...]

    def __str__(self) -> str:
        return _call_text(self.name, self.arguments)


def _atom_text(atom: Atom) -> str:
    """Return an atom as a factor of a product: in round brackets if it is written with an operator."""
    text = str(atom)
    return f"({text})" if isinstance(atom, Function) and atom.name in INFIX else text


def _call_text(name: str, arguments: tuple[Number, ...]) -> str:
    """Return a call as text, with an operator if the function has one."""
    if name == "neg":
        return f"-{_inner_text(arguments[0])}"
    if name not in INFIX:
        return f"{name}({', '.join(map(str, arguments))})"
    return f" {INFIX[name]} ".join(map(_inner_text, arguments))


def _inner_text(value: Number) -> str:
    """Return an operand as text: in round brackets unless it is a name or a number."""
    text = str(value)
    return text if _PLAIN.fullmatch(text) else f"({text})"


def symbol(name: str) -> Size:
    """Return the size with the name `name`."""
    return Size((((name,), 1),))


def is_symbolic(value: object) -> bool:
    """Return whether `value` is a symbolic number."""
    return isinstance(value, (Size, Real))


def apply(name: str, *arguments: Number) -> Number:
    """Apply the function `name` to numbers, symbolic or not.

    Raises:
        SpmdirError: there is no such function, or it has no value, as for a division by zero.
    """
    if name not in _PYTHON:
        raise SpmdirError(f"'{name}' is not a function of sizes; expected one of {', '.join(_PYTHON)}")
    try:
        if not any(map(is_symbolic, arguments)):
            return _bounded(_PYTHON[name](*arguments))
        is_float = any(isinstance(argument, (float, Real)) for argument in arguments)
        if name in _TO_INT:
            return _of_atom(Function(name, arguments)) if is_float else arguments[0]
        if is_float or name in _TO_FLOAT:
            return Real(name, arguments)
        return _INTEGER[name](*arguments)
    except (ArithmeticError, ValueError, TypeError) as error:
        raise SpmdirError(
            f"{name}({', '.join(map(str, arguments))}) is not a number: {error}; expected arguments for which "
            "it is one: correct them"
        ) from None


def _bounded(value: int | float) -> int | float:
    """Return `value`; raise LimitError for an integer that is far beyond any size."""
    if isinstance(value, int) and abs(value) >= 10**DIGITS.most:
        raise DIGITS.error(f"more than {DIGITS.most}")
    return value


def _terms(value: Number) -> dict[Monomial, int]:
    """Return monomial → coefficient; the monomial of a constant is ()."""
    return dict(value.terms) if isinstance(value, Size) else {(): int(value)}  # type: ignore


def _of_terms(terms: Mapping[Monomial, int]) -> int | Size:
    """Return the sum of coefficient · monomial: an int if it is constant."""
    nonzero = {monomial: coefficient for monomial, coefficient in terms.items() if coefficient}
    if not set(nonzero) - {()}:
        return nonzero.get((), 0)
    order = sorted(nonzero, key=lambda monomial: (-len(monomial), tuple(map(str, monomial))))
    return Size(tuple((monomial, nonzero[monomial]) for monomial in order))


def _of_atom(atom: Atom) -> Size:
    """Return the size that is one atom."""
    return Size((((atom,), 1),))


def _add(*values: Number) -> int | Size:
    """Return the sum of `values`."""
    total: dict[Monomial, int] = {}
    for value in values:
        for monomial, coefficient in _terms(value).items():
            total[monomial] = total.get(monomial, 0) + coefficient
    return _of_terms(total)


def _mul(a: Number, b: Number) -> int | Size:
    """Return a · b, multiplied out."""
    product: dict[Monomial, int] = {}
    left_terms, right_terms = _terms(a), _terms(b)
    TERMS.check(len(left_terms) * len(right_terms))
    for left, left_coefficient in left_terms.items():
        for right, right_coefficient in right_terms.items():
            TERMS.check(len(left) + len(right))
            monomial = tuple(sorted((*left, *right), key=str))
            product[monomial] = product.get(monomial, 0) + left_coefficient * right_coefficient
    return _of_terms(product)


def _sub(a: Number, b: Number) -> int | Size:
    """Return a - b."""
    return _add(a, _mul(b, -1))


def _pow(a: Number, b: Number) -> int | Size:
    """Return a to the power of b, multiplied out for exponents up to 16."""
    if not isinstance(b, int) or not 0 <= b <= 16:
        return _of_atom(Function("pow", (a, b)))
    result: int | Size = 1
    for _ in range(b):
        result = _mul(result, a)
    return result


def _divide(a: Number, b: Number) -> tuple[int | Size, int | Size]:
    """Return a quotient and a remainder with `a == quotient * b + remainder`.

    If `b` is one term, the quotient has the terms of `a` that `b` divides: `4*s0 + 3` by `2` gives `2*s0` and `3`. If
    `b` has several terms, the quotient is 1 for `a == b`, and otherwise 0.
    """
    divisor = list(_terms(b).items())
    if len(divisor) > 1:
        return (1, 0) if a == b else (0, a)  # type: ignore
    monomial, coefficient = divisor[0]
    quotient: dict[Monomial, int] = {}
    remainder: dict[Monomial, int] = {}
    for term, number in _terms(a).items():
        factors = _quotient_of_monomials(term, monomial)
        if factors is not None and coefficient and number % coefficient == 0:
            quotient[factors] = number // coefficient
        else:
            remainder[term] = number
    return _of_terms(quotient), _of_terms(remainder)


def _quotient_of_monomials(term: Monomial, monomial: Monomial) -> Monomial | None:
    """Return term / monomial; None if it is not a monomial. For example, a · a · b / a is a · b."""
    factors = list(term)
    for atom in monomial:
        if atom not in factors:
            return None
        factors.remove(atom)
    return tuple(factors)


def _cancel_common_factor(a: Number, b: Number) -> tuple[Number, Number, int | Size]:
    """Divide both by the greatest common factor of their terms; return the quotients and the factor.

    For `6*s0*s1` and `4*s0` these are `3*s1`, `2` and `2*s0`. If `b` is a constant, the factor is 1.
    """
    left_terms, right_terms = _terms(a), _terms(b)
    if not left_terms or not right_terms or not isinstance(b, Size):
        return a, b, 1
    common_coefficient = math.gcd(*left_terms.values(), *right_terms.values()) or 1
    # Start with the atoms of one term, and keep those that occur in all terms.
    common_atoms: Monomial = next(iter(right_terms))
    for monomial in (*left_terms, *right_terms):
        remaining, shared_atoms = list(monomial), list[Atom]()
        for atom in common_atoms:
            if atom in remaining:
                remaining.remove(atom)
                shared_atoms.append(atom)
        common_atoms = tuple(shared_atoms)

    def divide(terms: Mapping[Monomial, int]) -> int | Size:
        """Return the sum of `terms`, each divided by the common factor."""
        quotient = {}
        for monomial, coefficient in terms.items():
            quotient[_quotient_of_monomials(monomial, common_atoms) or ()] = coefficient // common_coefficient
        return _of_terms(quotient)

    return divide(left_terms), divide(right_terms), _of_terms({common_atoms: common_coefficient})


def _floordiv(a: Number, b: Number) -> int | Size:
    """Return a // b, simplified: `(4*s0 + 3) // 2` is `2*s0 + 1`."""
    a, b, _ = _cancel_common_factor(a, b)
    quotient, remainder = _divide(a, b)
    if isinstance(remainder, int) and isinstance(b, int) and b:
        return _add(quotient, remainder // b)
    return _add(quotient, 0 if remainder == 0 else _of_atom(Function("floordiv", (remainder, b))))


def _mod(a: Number, b: Number) -> int | Size:
    """Return a % b, simplified: `(6*s0) % (4*s0)` is `2*s0`."""
    a, b, factor = _cancel_common_factor(a, b)
    remainder = _divide(a, b)[1]
    if isinstance(remainder, int) and isinstance(b, int) and b:
        return _mul(factor, remainder % b)
    return 0 if remainder == 0 else _mul(factor, _of_atom(Function("mod", (remainder, b))))


def _max_or_min(name: str) -> Callable[..., int | Size]:
    """Return a Python function that computes the expression `max(…)` or `min(…)` of sizes, without redundant operands.

    For example, the maximum of s0, s0 + 1 and s1 is `max(s0 + 1, s1)`.
    """

    def reduce(*values: Number) -> int | Size:
        """Return the maximum or minimum of `values`."""
        operands: list[Any] = []
        for value in values:
            for index, operand in enumerate(operands):
                difference = _sub(value, operand)
                if isinstance(difference, int):  # so one of both is always the larger one
                    operands[index] = value if (difference > 0) == (name == "max") else operand
                    break
            else:
                operands.append(value)
        return operands[0] if len(operands) == 1 else _of_atom(Function(name, tuple(sorted(operands, key=str))))

    return reduce


def cancel_common_terms(left: Number, right: Number) -> tuple[Number, Number]:
    """Cancel the common terms and factors of the two sides of an equation, and return the sides.

    Common factors are assumed to be nonzero: `4*s0 + 2 == 2*s1 + 2` becomes `2*s0 == s1`.
    """
    difference = _sub(left, right)  # 4*s0 - 2*s1 in the example
    if not isinstance(difference, Size):
        return left, right
    first_term = Size((difference.terms[0],))
    _, _, factor = _cancel_common_factor(difference, first_term)  # 2: all terms share it with the first one
    reduced = _terms(_divide(difference, factor)[0])  # 2*s0 - s1
    positive = {monomial: coefficient for monomial, coefficient in reduced.items() if coefficient > 0}
    negative = {monomial: -coefficient for monomial, coefficient in reduced.items() if coefficient < 0}
    return _of_terms(positive), _of_terms(negative)


_INTEGER: dict[str, Callable[..., int | Size]] = {
    "add": _add, "sub": _sub, "mul": _mul, "neg": lambda a: _mul(a, -1), "pow": _pow,
    "floordiv": _floordiv, "mod": _mod, "max": _max_or_min("max"), "min": _max_or_min("min"),
}  # fmt: skip
"""Name of a function → the function of symbolic integers."""


def product(values: Any) -> int | Size:
    """Return the product of sizes."""
    result: int | Size = 1
    for value in values:
        result = _mul(result, value)
    return result


def symbols(value: object) -> tuple[str, ...]:
    """Return the names of the symbols in `value`, sorted."""
    names: set[str] = set()

    def collect(part: object) -> None:
        """Add the symbols in `part` to `names`."""
        if isinstance(part, str):
            names.add(part)
        elif isinstance(part, (Function, Real)):
            for argument in part.arguments:
                collect(argument)
        elif isinstance(part, Size):
            for monomial, _ in part.terms:
                for atom in monomial:
                    collect(atom)

    collect(value)
    return tuple(sorted(names))


def evaluate(value: Number, sizes: Mapping[str, int]) -> Any:
    """Substitute `sizes` for symbols in `value`. Symbols that are not in `sizes` remain.

    Raises:
        SpmdirError: the value is undefined, as for a division by zero.
    """
    if isinstance(value, Size):
        terms = []
        for monomial, coefficient in value.terms:
            factors = [_evaluate_atom(atom, sizes) for atom in monomial]
            terms.append(_mul(coefficient, product(factors)))
        return _add(*terms)
    if isinstance(value, Real):
        return apply(value.name, *(evaluate(argument, sizes) for argument in value.arguments))
    return value


def _evaluate_atom(atom: Atom, sizes: Mapping[str, int]) -> Any:
    """Return the value of an atom for the given sizes."""
    if isinstance(atom, str):
        return sizes[atom] if atom in sizes else symbol(atom)
    return apply(atom.name, *(evaluate(argument, sizes) for argument in atom.arguments))
