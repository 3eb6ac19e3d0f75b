"""The table of reductions by which a value can be partial: what each does, and what process groups are asked for.

Tensors are used by their methods alone, so this module needs no tensor library.
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
        op: the `aten` op that does that.
        scatter: (value, noise) → (value of one rank, value of another) whose reduction is `value`.
        identity: what leaves the other operand as it is, zero with its sign: -0.0 + -0.0 is -0.0, -0.0 + 0.0 is not.
            Integers have their least and greatest for the infinities. An average has none, since it counts every value.
        kinds: the kinds of element types that can be partial by it.
        group: what process groups call it; they reduce truth values as 0 and 1 in bytes.
        of_bool: the name of what it is of truth values; None if it is not a reduction of these.
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


def _added(value: Any, noise: Any) -> tuple[Any, Any]:
    return noise, value - noise


REDUCTIONS: dict[str, Reduction] = {
    "sum": Reduction(
        lambda a, b: a + b, "add.Tensor", _added, -0.0, ("int", "float", "complex"), "sum", is_linear=True
    ),
    "avg": Reduction(
        lambda a, b: a + b, "add.Tensor", _added, None, ("float", "complex"), "avg", is_linear=True, is_idempotent=True
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
    """Return the reductions by which a tensor of this element type can be partial."""
    return tuple(name for name, reduction in REDUCTIONS.items() if dtype.kind in reduction.kinds)


REDUCED_AS: dict[DType, DType] = {I16: I32, F8E4M3FN: F32, F8E5M2: F32}
"""Element types that neither gloo nor NCCL reduces → one that has all their values, which both reduce."""


def unreduced(name: str, dtype: DType) -> str | None:
    """Return why process groups cannot reduce `dtype` by `name`, and what to do; None if they can.

    Complex numbers are reduced as pairs of real ones, which adds them up right, and nothing else.
    """
    if dtype in REDUCED_AS:
        remedy = f"convert to {REDUCED_AS[dtype]} where the value becomes partial"
    elif dtype.is_complex and not REDUCTIONS[name].is_linear:
        remedy = "only by sum and avg; replicate the operands of the op that makes it partial"
    elif dtype.is_bool and REDUCTIONS[name].of_bool is None:
        remedy = "only by any and all; convert to an integer type before"
    else:
        return None
    return f"neither gloo nor NCCL reduces {dtype} by {name}{',' if dtype not in REDUCED_AS else ';'} {remedy}"


def group_reduction(name: str, is_bool: bool) -> str | None:
    """Return what process groups are asked for to reduce by `name`; None if truth values have no such reduction."""
    if not is_bool:
        return REDUCTIONS[name].group
    of_bool = REDUCTIONS[name].of_bool
    return None if of_bool is None else REDUCTIONS[of_bool].group


def average_divisors(count: int) -> tuple[int, float]:
    """Return what each of `count` values is divided by before they are added up, and the sum after it: their average.

    The first is a power of two, so that it rounds nothing but subnormal numbers, and as large as keeps the sum finite
    where the average is; the second, of 1/2 to 1, is exact.
    """
    power = 1 << (count - 1).bit_length()
    return power, count / power
