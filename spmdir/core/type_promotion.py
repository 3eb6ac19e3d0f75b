"""Type promotion as in torch: the element type of the result of an op with several operands."""

from __future__ import annotations

from collections.abc import Iterable

from spmdir.core import dtype as dt
from spmdir.core.dtype import RANKING, DType

_EIGHT_BITS = (dt.F8E4M3FN, dt.F8E5M2)

COMPLEX_F16 = DType("complex<f16>", "complex", 4)
"""The promotion of f16 and a complex number. No value of the IR has this type."""

_OF_NUMBER: dict[type, DType] = {bool: dt.I1, int: dt.I64, float: dt.F32, complex: dt.COMPLEX_F32}
"""Type of a Python number → its element type in type promotion."""


def common_type(left: DType, right: DType) -> DType | None:
    """Return the element type of `torch.promote_types`; None if torch rejects the pair.

    Torch promotes an 8-bit float only with its own type.
    """
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
    """Return the element type of an elementwise op, as `torch.result_type` does; None if torch rejects the operands.

    There are three classes of operands: tensors with dimensions, tensors of rank 0, and Python numbers. A later class
    changes the type only if its category (bool < int < float < complex) is higher than that of the earlier classes.

    Args:
        tensors: (element type, rank) of each tensor.
        numbers: the Python numbers among the operands.

    Example:
        >>> str(result_type([(dt.I32, 2), (dt.F64, 0)], [1j]))
        'complex<f64>'
    """
    with_dimensions: list[DType] = []
    of_rank_zero: list[DType] = []
    for dtype, rank in tensors:
        (with_dimensions if rank else of_rank_zero).append(dtype)
    of_numbers = [_OF_NUMBER[type(number)] for number in numbers]
    result: DType | None = None
    for dtypes in (of_numbers, of_rank_zero, with_dimensions):  # from the last class to the first
        if not dtypes:
            continue
        class_type = _common_type_of_all(dtypes)
        result = class_type if class_type is None or result is None else _combine_classes(class_type, result)
        if result is None:
            return None
    return result


def _common_type_of_all(dtypes: list[DType]) -> DType | None:
    """Return the common type of several element types; None if there is none."""
    result: DType | None = dtypes[0]
    for dtype in dtypes[1:]:
        result = common_type(result, dtype) if result is not None else None
    return result


def _combine_classes(higher: DType, lower: DType) -> DType | None:
    """Combine the type of one class of operands with that of the classes after it.

    Args:
        higher: the type of this class.
        lower: the type of the later classes. It counts only if its category (bool < int < float < complex) is higher.
    """
    if higher.is_float and lower.is_complex:
        if higher in _EIGHT_BITS:
            return None
        return COMPLEX_F16 if higher == dt.F16 else higher.complex
    if higher.is_inexact:
        return higher
    # Only integers and booleans are left. A boolean is in the lowest category.
    return common_type(higher, lower) if higher.is_bool or lower.is_inexact else higher
