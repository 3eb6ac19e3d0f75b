"""Type promotion of torch: the element type that operands and numbers have in common."""

from __future__ import annotations

from collections.abc import Iterable

from spmdir.core import dtype as dt
from spmdir.core.dtype import RANKING, DType

_EIGHT_BITS = (dt.F8E4M3FN, dt.F8E5M2)

COMPLEX_F16 = DType("complex<f16>", "complex", 4)
"""What halves and a complex number promote to; no value of the IR has it."""

_OF_NUMBER: dict[type, DType] = {bool: dt.I1, int: dt.I64, float: dt.F32, complex: dt.COMPLEX_F32}
"""Type of a Python number → the element type that it has among tensors."""


def common_type(left: DType, right: DType) -> DType | None:
    """Return the element type that two tensors promote to, as `torch.promote_types`; None if torch rejects the pair."""
    if left == right:
        return left
    if left in _EIGHT_BITS or right in _EIGHT_BITS:
        return None
    if left.is_complex or right.is_complex:
        return dt.COMPLEX_F64 if dt.F64 in (left.real, right.real) else dt.COMPLEX_F32
    if {left, right} == {dt.BF16, dt.F16}:
        return dt.F32
    if {left, right} == {dt.UI8, dt.I8}:
        return dt.I16
    return max(left, right, key=RANKING.index)


def result_type(tensors: Iterable[tuple[DType, int]], numbers: Iterable[complex] = ()) -> DType | None:
    """Return the element type of an elementwise op, as `torch.result_type`; None if torch rejects the operands.

    Tensors of rank 0 count only in a higher category (bool, int, float, complex) than the others; numbers only in a
    higher category than all tensors.

    Args:
        tensors: element type and rank of each.

    Example:
        >>> str(result_type([(dt.I32, 2), (dt.F64, 0)], [1j]))
        'complex<f64>'
    """
    ranked: dict[bool, list[DType]] = {True: [], False: []}
    for dtype, rank in tensors:
        ranked[rank > 0].append(dtype)
    found: DType | None = None
    for dtypes in ([_OF_NUMBER[type(number)] for number in numbers], ranked[False], ranked[True]):
        if dtypes:
            joined = _joined(dtypes)
            found = joined if joined is None or found is None else _over(joined, found)
            if found is None:
                return None
    return found


def _joined(dtypes: list[DType]) -> DType | None:
    found: DType | None = dtypes[0]
    for dtype in dtypes[1:]:
        found = common_type(found, dtype) if found is not None else None
    return found


def _over(higher: DType, lower: DType) -> DType | None:
    """Return the common type of a class of operands and of a class that counts only in a higher category."""
    if higher.is_complex:
        return higher
    if higher.is_float and lower.is_complex:
        return None if higher in _EIGHT_BITS else COMPLEX_F16 if higher == dt.F16 else higher.complex
    if higher.is_float:
        return higher
    return common_type(higher, lower) if higher.is_bool or lower.is_inexact else higher
