"""Element types of results."""

from __future__ import annotations

from spmdir.core import dtype as dt
from spmdir.core.dtype import DTYPES, RANKING, DType, as_dtype
from spmdir.core.placement.tensor import TensorMeta
from spmdir.rules.language.binding import Binding

REAL = "real"
"""Declared of a result: the type of its real part, as an absolute value has."""

COMPLEX_OF = "complex"
"""Declared of a result: the complex type whose parts have the operands' promoted type."""

TRUTH = "truth"
"""Declared of a result: what torch's tests of truth give, the bytes 0 and 1 for bytes and truth values for others."""

WIDE = "wide"
"""Declared of a result: the type in which sums are taken, f32 for halves and otherwise the operands' promoted type."""

DERIVED = (REAL, COMPLEX_OF, TRUTH, WIDE)
"""What may be declared besides element types, arguments and tensors."""


def is_finite(number: complex, dtype: DType) -> bool:
    """Return whether `number` is finite in element type `dtype`."""
    return abs(number) < dtype.largest


def sums_exactly(source: DType, target: DType) -> bool:
    """Return whether the sum of numbers of type `source` may be taken after they are cast to `target`.

    Integers wrap modulo 2^n, so that only those of as many bits or fewer have the same sum; floating numbers keep
    theirs in a type that rounds less, and complex ones in that of their parts.
    """
    if source == target:
        return True
    if source.is_integer or source.is_bool:
        return target.is_integer and target.itemsize <= source.itemsize
    mine, theirs = source.real, target.real
    return mine == theirs or (theirs.is_float and theirs.itemsize > mine.itemsize)


def widened(dtype: DType) -> DType:
    """Return the element type in which sums of `dtype` are taken: f32 of f16 and bf16, else itself."""
    return dt.F32 if dtype in (dt.BF16, dt.F16) else dtype


def result_dtype(declared: str | None, binding: Binding, operands: tuple[TensorMeta, ...]) -> DType:
    """Return what `declared` (the name after `as`) means for a call; without it, the operands' promoted type.

    An op without operands has the type of its first number, as torch's factories do.
    """
    if declared == REAL:
        return result_dtype("dtype", binding, operands).real
    if declared == COMPLEX_OF:
        return result_dtype("dtype", binding, operands).complex
    if declared == TRUTH:
        return dt.UI8 if result_dtype("dtype", binding, operands) == dt.UI8 else dt.I1
    if declared == WIDE:
        return widened(result_dtype("dtype", binding, operands))
    if declared in DTYPES:
        return DTYPES[declared]
    if declared and binding.operands(declared):
        return operands[binding.operands(declared)[0]].dtype
    if declared and binding.arguments.get(declared) is not None:
        return as_dtype(binding.arguments[declared])  # type: ignore[arg-type]  # the kind of argument was checked
    if not operands:
        literal = next((v for v in binding.arguments.values() if isinstance(v, (bool, int, float))), 0.0)
        return dt.I1 if isinstance(literal, bool) else dt.I64 if isinstance(literal, int) else dt.F32
    numbers = [v for name, v in binding.arguments.items() if name in binding.tensors and v is not None]
    found = promote(operands, any(isinstance(v, (float, complex)) for v in numbers))
    return found.complex if any(isinstance(v, complex) for v in binding.arguments.values()) else found


def expected_dtype(
    found: DType, declared: str | None, index: int, binding: Binding, operands: tuple[TensorMeta, ...]
) -> DType | None:
    """Return what result `index` should be if `found` is an element type that it cannot have; None if it can have it.

    What a rule declares must hold. Where it declares nothing, the first result has the element type of an operand
    or the promoted one, or what torch widens that to: integers to i64 and to floats, halves to f32, complex numbers
    to their parts, unless a number among the arguments is complex. Further results, such as statistics and seeds,
    are the op's own.
    """
    given = declared is not None and (
        declared in DTYPES or declared in DERIVED or binding.operands(declared) or binding.arguments.get(declared)
    )
    real = not any(isinstance(value, complex) for value in binding.arguments.values())
    if not given and (index or not operands or (real and found in {operand.dtype for operand in operands})):
        return None
    expected = result_dtype(declared, binding, operands)
    is_wider = (
        ((expected.is_integer or expected.is_bool) and (found == dt.I64 or found.is_float))
        or (expected in (dt.BF16, dt.F16) and found == dt.F32)
        or (expected.is_complex and found.is_inexact and real)
    )
    return None if found == expected or (is_wider and not given) else expected


def promote(operands: tuple[TensorMeta, ...], float_number: bool) -> DType:
    """Return the element type of an elementwise op as torch promotes: rank 0 counts only in a higher category."""

    with_dims = [m.dtype for m in operands if m.rank] or [m.dtype for m in operands]
    highest = max(map(_category, with_dims))
    candidates = with_dims + [m.dtype for m in operands if _category(m.dtype) > highest]
    if any(dtype.is_complex for dtype in candidates):
        precise = [dtype for dtype in with_dims if dtype.is_inexact] or candidates
        return dt.COMPLEX_F64 if any(dtype.real == dt.F64 for dtype in precise) else dt.COMPLEX_F32
    if {dt.BF16, dt.F16} <= set(candidates):
        return dt.F32
    best = max(candidates, key=RANKING.index)
    return best if best.is_inexact or not float_number else dt.F32


def _category(dtype: DType) -> int:
    return ("bool", "int", "float", "complex").index(dtype.kind)
