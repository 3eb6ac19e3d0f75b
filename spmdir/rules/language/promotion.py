"""Derive and check the element types of results: declarations of rules, and torch's promotion."""

from __future__ import annotations

from spmdir.core import dtype as dt
from spmdir.core.dtype import DTYPES, RANKING, DType, as_dtype
from spmdir.core.placement.tensor import TensorMeta
from spmdir.rules.language.binding import Binding

REAL = "real"
"""A declaration: the type of the real part, as for an absolute value."""

COMPLEX_OF = "complex"
"""A declaration: the complex type whose parts have the operands' promoted type."""

TRUTH = "truth"
"""A declaration: the type of torch's truth tests, ui8 for ui8 and i1 for other types."""

WIDE = "wide"
"""A declaration: the type for sums, f32 for f16 and bf16, else the operands' promoted type."""

DERIVED = (REAL, COMPLEX_OF, TRUTH, WIDE)
"""The declarations other than element types, arguments and tensors."""


def is_finite(number: complex, dtype: DType) -> bool:
    """Return whether `number` is finite in element type `dtype`."""
    return abs(number) < dtype.largest


def sums_exactly(source: DType, target: DType) -> bool:
    """Return whether casting from `source` to `target` before a sum gives the same result as casting the sum.

    For example, it does from bf16 to f32 and from i64 to i32, but not from f32 to bf16, nor from i32 to i64. Integers
    wrap modulo 2^n, so `target` must not have more bits. Floating-point numbers require a type that rounds less.
    Complex numbers may also be cast to the type of their parts.
    """
    if source == target:
        return True
    if source.is_integer or source.is_bool:
        return target.is_integer and target.itemsize <= source.itemsize
    source_real, target_real = source.real, target.real
    return source_real == target_real or (target_real.is_float and target_real.itemsize > source_real.itemsize)


def widened(dtype: DType) -> DType:
    """Return the element type for sums of `dtype`: f32 for f16 and bf16, else `dtype`."""
    return dt.F32 if dtype in (dt.BF16, dt.F16) else dtype


def result_dtype(declared: str | None, binding: Binding, operands: tuple[TensorMeta, ...]) -> DType:
    """Return the element type of a result: the declared one, or else the operands' promoted type.

    An op without operands has the type of its first number, as torch's factories do; f32 if there is no number.

    Args:
        declared: the name after `as` in the rule: one of DERIVED, an element type, a tensor parameter, or an argument.
            It does not count if it is None, or if the call does not have it. The types in DERIVED are derived from the
            argument `dtype`, else from the promoted type.
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
        literals = (value for value in binding.arguments.values() if isinstance(value, (bool, int, float)))
        first_literal = next(literals, 0.0)
        if isinstance(first_literal, bool):
            return dt.I1
        return dt.I64 if isinstance(first_literal, int) else dt.F32
    numbers = [value for name, value in binding.arguments.items() if name in binding.tensors and value is not None]
    promoted = promote(operands, any(isinstance(number, (float, complex)) for number in numbers))
    has_complex_argument = any(isinstance(value, complex) for value in binding.arguments.values())
    return promoted.complex if has_complex_argument else promoted


def dtype_mismatch(
    dtype: DType, declared: str | None, index: int, binding: Binding, operands: tuple[TensorMeta, ...]
) -> DType | None:
    """Return the element type that result `index` must have, if it cannot have `dtype`; None if it can.

    A declared type must hold. Without one, the first result may have the type of an operand, the promoted type, or a
    wider one: i64 or a float for integers, f32 for f16 and bf16, the type of the parts for complex numbers. If an
    argument is a complex number, the type of an operand or of the parts does not suffice. Other results without a
    declared type, such as statistics and seeds, are not checked.
    """
    is_declared = declared is not None and (
        declared in DTYPES or declared in DERIVED or binding.operands(declared) or binding.arguments.get(declared)
    )
    if is_declared:
        declared_type = result_dtype(declared, binding, operands)
        return None if dtype == declared_type else declared_type
    has_complex_argument = any(isinstance(value, complex) for value in binding.arguments.values())
    is_operand_type = dtype in {operand.dtype for operand in operands}
    if index > 0 or not operands or (is_operand_type and not has_complex_argument):
        return None
    expected = result_dtype(None, binding, operands)
    is_wider = (
        ((expected.is_integer or expected.is_bool) and (dtype == dt.I64 or dtype.is_float))
        or (expected in (dt.BF16, dt.F16) and dtype == dt.F32)
        or (expected.is_complex and dtype.is_inexact and not has_complex_argument)
    )
    return None if dtype == expected or is_wider else expected


def promote(operands: tuple[TensorMeta, ...], float_number: bool) -> DType:
    """Return the type to which torch promotes operands.

    Operands of rank 0 count only if their category (bool < int < float < complex) is higher than that of the others, or
    if all operands have rank 0.

    Args:
        float_number: whether a Python number with a fraction is an operand too. It promotes integers to f32.
    """
    with_dims = [operand.dtype for operand in operands if operand.rank] or [operand.dtype for operand in operands]
    highest_category = max(map(_category, with_dims))
    candidates = with_dims + [operand.dtype for operand in operands if _category(operand.dtype) > highest_category]
    if any(dtype.is_complex for dtype in candidates):
        # The precision is that of the operands with dimensions, if these are floating-point or complex.
        precise = [dtype for dtype in with_dims if dtype.is_inexact] or candidates
        return dt.COMPLEX_F64 if any(dtype.real == dt.F64 for dtype in precise) else dt.COMPLEX_F32
    if {dt.BF16, dt.F16} <= set(candidates):
        return dt.F32
    highest = max(candidates, key=RANKING.index)
    return highest if highest.is_inexact or not float_number else dt.F32


def _category(dtype: DType) -> int:
    """Return the position of the kind of `dtype` in the order bool < int < float < complex of promotion."""
    return ("bool", "int", "float", "complex").index(dtype.kind)
