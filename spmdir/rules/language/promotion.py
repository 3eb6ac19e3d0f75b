"""Element types of results."""

from __future__ import annotations

import math

from spmdir.core.call import DTYPE_BYTES, TensorMeta
from spmdir.rules.language.binding import Binding

RANKING = ("i1", "ui8", "i8", "i16", "i32", "i64", "f8E5M2", "f8E4M3FN", "bf16", "f16", "f32", "f64")
"""Real element types, each promoted to a later one of its category or of a higher one."""

COMPLEX = ("complex<f32>", "complex<f64>")

REAL = "real"
"""Declared of a result: the type of its real part, as an absolute value has."""

COMPLEX_OF = "complex"
"""Declared of a result: the complex type whose parts have the operands' promoted type."""

TRUTH = "truth"
"""Declared of a result: what torch's tests of truth give, the bytes 0 and 1 for bytes and truth values for others."""

DERIVED = (REAL, COMPLEX_OF, TRUTH)
"""What may be declared besides element types, arguments and tensors."""

LARGEST = {"f16": 65504.0, "bf16": 3.38e38, "f32": 3.40e38, "f64": 1.79e308}
"""Floating element type → a bound below which numbers stay finite in it."""


def is_finite(number: complex, dtype: str) -> bool:
    """Whether `number` is finite in element type `dtype`."""
    return abs(number) < LARGEST.get(dtype.removeprefix("complex<").removesuffix(">"), math.inf)


def sums_exactly(source: str, target: str) -> bool:
    """Whether the sum of numbers of type `source` may be taken after they are cast to `target`.

    Integers wrap modulo 2^n, so that only those of as many bits or fewer have the same sum; floating numbers keep
    theirs in a type that rounds less, and complex ones in that of their parts.
    """
    if source == target:
        return True
    if source[0] in "iu":
        return target[0] in "iu" and target != "i1" and DTYPE_BYTES[target] <= DTYPE_BYTES[source]
    mine, theirs = (name.removeprefix("complex<").removesuffix(">") for name in (source, target))
    wider = theirs[0] in "fb" and DTYPE_BYTES[theirs] > DTYPE_BYTES[mine]
    return wider or (mine == theirs and mine != "i1")


def result_dtype(declared: str | None, binding: Binding, operands: tuple[TensorMeta, ...]) -> str:
    """What `declared` (the name after `as`) means for a call; without it, the operands' promoted type.

    An op without operands has the type of its first number, as torch's factories do.
    """
    if declared == REAL:
        return result_dtype("dtype", binding, operands).removeprefix("complex<").removesuffix(">")
    if declared == COMPLEX_OF:
        found = result_dtype("dtype", binding, operands)
        return found if found in COMPLEX else COMPLEX[found == "f64"]
    if declared == TRUTH:
        return "ui8" if result_dtype("dtype", binding, operands) == "ui8" else "i1"
    if declared in (*RANKING, *COMPLEX):
        return declared
    if declared and binding.operands(declared):
        return operands[binding.operands(declared)[0]].dtype
    if declared and binding.arguments.get(declared) is not None:
        return str(binding.arguments[declared])
    if not operands:
        literal = next((v for v in binding.arguments.values() if isinstance(v, (bool, int, float))), 0.0)
        return "i1" if isinstance(literal, bool) else "i64" if isinstance(literal, int) else "f32"
    numbers = [v for name, v in binding.arguments.items() if name in binding.tensors and v is not None]
    found = promote(operands, any(isinstance(v, (float, complex)) for v in numbers))
    if found not in COMPLEX and any(isinstance(v, complex) for v in binding.arguments.values()):
        return COMPLEX[found == "f64"]
    return found


def refused_dtype(
    found: str, declared: str | None, index: int, binding: Binding, operands: tuple[TensorMeta, ...]
) -> str | None:
    """What result `index` should be if `found` is an element type that it cannot have; None if it can have it.

    What a rule declares must hold. Where it declares nothing, the first result has the element type of an operand
    or the promoted one, or what torch widens that to: integers to i64 and to floats, halves to f32, complex numbers
    to their parts, unless a number among the arguments is complex. Further results, such as statistics and seeds,
    are the op's own.
    """
    given = declared is not None and (
        declared in (*RANKING, *COMPLEX, *DERIVED) or binding.operands(declared) or binding.arguments.get(declared)
    )
    real = not any(isinstance(value, complex) for value in binding.arguments.values())
    if not given and (index or not operands or (real and found in {operand.dtype for operand in operands})):
        return None
    expected = result_dtype(declared, binding, operands)
    widened = (
        (expected[0] in "iu" and (found == "i64" or found[0] in "fb"))
        or (expected in ("bf16", "f16") and found == "f32")
        or (expected.startswith("complex") and found[0] in "fbc" and real)
    )
    return None if found == expected or (widened and not given) else expected


def promote(operands: tuple[TensorMeta, ...], float_number: bool) -> str:
    """The element type of an elementwise op, as torch promotes: tensors of rank 0 count only in a higher category."""

    def category(dtype: str) -> int:
        return 3 if dtype in COMPLEX else 2 if dtype[0] in "fb" else int(dtype != "i1")

    with_dims = [m.dtype for m in operands if m.rank] or [m.dtype for m in operands]
    highest = max(map(category, with_dims))
    candidates = with_dims + [m.dtype for m in operands if category(m.dtype) > highest]
    if any(dtype in COMPLEX for dtype in candidates):
        precise = [dtype for dtype in with_dims if category(dtype) > 1] or candidates
        return COMPLEX[any(dtype in ("f64", "complex<f64>") for dtype in precise)]
    if {"bf16", "f16"} <= set(candidates):
        return "f32"
    best = max(candidates, key=RANKING.index)
    return "f32" if float_number and category(best) < 2 else best
