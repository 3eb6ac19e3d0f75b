"""The table of reductions of partial values, with their names in process groups.

This module uses tensors only through their methods, so it needs no tensor library.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import attrs

from spmdir.core.dtype import F8E4M3FN, F8E5M2, F32, I16, I32, DType


@attrs.frozen
class Reduction:
    """A reduction over ranks.

    Attributes:
        combine: (a, b) → the reduction of two tensors.
        op: the `aten` op of `combine`.
        scatter: (value, noise) → two tensors whose reduction is `value`.
        identity: the neutral element. For a sum it is -0.0, because -0.0 + 0.0 is 0.0, which has another sign. For
            integers, an infinity is the least or the greatest integer. None for an average, which counts every value.
        kinds: the kinds of element types for which it is defined.
        group: the name of the reduction in process groups, which reduce booleans as bytes 0 and 1.
        of_bool: the name of the same reduction for booleans; None if there is none.
        is_linear: whether sums of partial values are partial values of the sum.
        is_idempotent: whether the reduction of copies of a value is the value.
    """

    combine: Callable[[Any, Any], Any]
    op: str
    scatter: Callable[[Any, Any], tuple[Any, Any]]
    identity: float | None
    kinds: tuple[str, ...]
    group: str
    of_bool: str | None = None
    is_linear: bool = False
    is_idempotent: bool = False


def _split_sum(value: Any, noise: Any) -> tuple[Any, Any]:
    """Return two values whose sum is `value`."""
    return noise, value - noise


REDUCTIONS: dict[str, Reduction] = {
    "sum": Reduction(
        lambda a, b: a + b, "add.Tensor", _split_sum, -0.0, ("int", "float", "complex"), "sum", is_linear=True
    ),
    "avg": Reduction(
        lambda a, b: a + b,
        "add.Tensor",
        _split_sum,
        None,
        ("float", "complex"),
        "avg",
        is_linear=True,
        is_idempotent=True,
    ),
    "max": Reduction(
        lambda a, b: a.maximum(b),
        "maximum.default",
        lambda value, noise: (value.minimum(value - abs(noise)), value),
        -math.inf,
        ("int", "float"),
        "max",
        of_bool="any",
        is_idempotent=True,
    ),
    "min": Reduction(
        lambda a, b: a.minimum(b),
        "minimum.default",
        lambda value, noise: (value.maximum(value + abs(noise)), value),
        math.inf,
        ("int", "float"),
        "min",
        of_bool="all",
        is_idempotent=True,
    ),
    "product": Reduction(
        lambda a, b: a * b,
        "mul.Tensor",
        lambda value, noise: (noise * 0 + 1, value),
        1,
        ("int", "float", "complex"),
        "product",
    ),
    "any": Reduction(
        lambda a, b: a | b,
        "bitwise_or.Tensor",
        lambda value, noise: (value & (noise > 0), value),
        0,
        ("bool",),
        "max",
        of_bool="any",
        is_idempotent=True,
    ),
    "all": Reduction(
        lambda a, b: a & b,
        "bitwise_and.Tensor",
        lambda value, noise: (value | (noise > 0), value),
        1,
        ("bool",),
        "min",
        of_bool="all",
        is_idempotent=True,
    ),
}
"""Name in `P(name)` → reduction."""


@functools.cache
def reductions_of(dtype: DType) -> tuple[str, ...]:
    """Return the names of the reductions that are defined for an element type."""
    return tuple(name for name, reduction in REDUCTIONS.items() if dtype.kind in reduction.kinds)


REDUCED_AS: dict[DType, DType] = {I16: I32, F8E4M3FN: F32, F8E5M2: F32}
"""Element type that neither gloo nor NCCL reduces → one that both reduce and that contains its values."""


def why_not_reduced(name: str, dtype: DType) -> str | None:
    """Return why process groups cannot reduce `dtype` by the reduction `name`, with a remedy; None if they can.

    Process groups reduce complex numbers as pairs of real numbers, which is only correct for sums.
    """
    fault = f"neither gloo nor NCCL reduces {dtype} by {name}"
    if dtype in REDUCED_AS:
        return f"{fault}; convert to {REDUCED_AS[dtype]} where the value becomes partial"
    if dtype.is_complex and not REDUCTIONS[name].is_linear:
        return f"{fault}, only by sum and avg; replicate the operands of the op that makes the value partial"
    if dtype.is_bool and REDUCTIONS[name].of_bool is None:
        return f"{fault}, only by any and all; convert to an integer type before"
    return None


def group_reduction(name: str, is_bool: bool) -> str | None:
    """Return the process groups' name of the reduction `name`; None if booleans have no such reduction."""
    if not is_bool:
        return REDUCTIONS[name].group
    of_bool = REDUCTIONS[name].of_bool
    return None if of_bool is None else REDUCTIONS[of_bool].group


def average_divisors(count: int) -> tuple[int, float]:
    """Return the two divisors of an average of `count` values: of each value before the sum, and of the sum.

    The first is the smallest power of two that is at least `count`. Division by it is exact except for subnormal
    numbers, and the sum is finite if the average is. The second is `count` divided by the first: from 1/2 to 1, exact.
    For 5 values they are 8 and 0.625.
    """
    power = 1 << (count - 1).bit_length()
    return power, count / power
