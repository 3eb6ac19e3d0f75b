"""Compare tensors: bit by bit, or within rounding and the declared error of a placement."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from spmdir.core.placement.base import PartialPlacement, Placement
from spmdir.core.placement.error_bound import ENDS, ErrorBound
from spmdir.core.placement.reductions import REDUCTIONS
from spmdir.simulator.measured_errors import tensor_norm

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Bytes of an element → the integer type of this size."""


def difference(actual: Any, expected: Any, limit: float) -> str | None:
    """Return the first difference of `actual` from `expected` that exceeds `limit`, else None.

    If `limit` is 0, values are compared bit by bit. Otherwise, where NaN or an infinity is expected, any value that is
    not finite is accepted.
    """
    if not isinstance(actual, torch.Tensor):
        return f"is a {type(actual).__name__}; expected a tensor"
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return f"is {list(actual.shape)} of {actual.dtype}; expected {list(expected.shape)} of {expected.dtype}"
    if limit == 0 or expected.dtype == torch.bool:
        wrong = _bits(actual) != _bits(expected)
    else:
        wide = torch.complex128 if expected.is_complex() else torch.float64
        distance = (actual.to(wide) - expected.to(wide)).abs()
        exceeds_limit = ~(distance <= limit) & expected.isfinite()
        wrong = exceeds_limit | (actual.isfinite() & ~expected.isfinite())
    if not wrong.any():
        return None
    index = tuple(wrong.nonzero()[0].tolist())
    where = f" at {list(index)}" if expected.dim() else ""
    tolerance = f" within {limit:.2g}" if limit else ""
    return f"is {actual[index].item()}{where}; expected {expected[index].item()}{tolerance}"


def difference_beyond_error(
    placement: Placement, actual: Any, expected: Any, count: int, shards: Sequence[torch.Tensor]
) -> str | None:
    """Return a difference that exceeds rounding and the declared error of `placement`, else None.

    Args:
        actual: the tensor that `count` ranks computed from `shards`.
        expected: the exact tensor.
    """
    limit = rounding_limit(placement, count, [expected, *shards])
    if not placement.error:
        return difference(actual, expected, limit)
    return inexact_difference(actual, expected, placement.error, count, shards, limit)


def rounding_limit(placement: Placement, count: int, shards: Sequence[torch.Tensor]) -> float:
    """Return the largest rounding difference between values that `count` ranks reduce in different orders.

    It is relative to the largest local value. If the reduction is not homogeneous, such as a sum of logarithms, its
    result may be near 0. Then the difference is relative to at least 1.
    """
    finite = [shard[shard.isfinite()] for shard in shards if shard.dtype.is_floating_point or shard.dtype.is_complex]
    if not finite:
        return 0.0
    largest = max((float(shard.abs().max()) for shard in finite if shard.numel()), default=0.0)
    # The magnitude must not be 0, so that values that round to 0 are accepted.
    least_magnitude = torch.finfo(torch.float64).tiny if _is_homogeneous(placement) else 1.0
    # `before` and `after` round several times each.
    roundings = 16 if is_mapped(placement) else 4
    return roundings * count * max(largest, least_magnitude) * max(torch.finfo(shard.dtype).eps for shard in finite)


def is_mapped(placement: Placement) -> bool:
    """Return whether a partial placement defines `before` or `after`."""
    kind, base = type(placement), PartialPlacement
    return issubclass(kind, base) and (kind.before, kind.after) != (base.before, base.after)


@cache
def _is_homogeneous(placement: Placement) -> bool:
    """Return whether twice the partial values reduce to twice the value."""
    if not isinstance(placement, PartialPlacement):
        return True
    combine = REDUCTIONS[placement.reduce].combine
    partials = [torch.tensor([1.0, 3.0, 2.0]), torch.tensor([2.0, 1.0, 2.0])]
    value = placement.after(combine(*map(placement.before, partials)), 2)
    value_of_doubled = placement.after(combine(*(placement.before(2 * partial) for partial in partials)), 2)
    return torch.allclose(2 * value, value_of_doubled)


def inexact_difference(
    actual: Any, expected: Any, error: ErrorBound, count: int, shards: Sequence[torch.Tensor], limit: float
) -> str | None:
    """Return a difference that exceeds an error bound, else None.

    Args:
        error: the declared bound. If its factor is unknown, only shapes and element types are compared.
        count: the number of ranks of the step.
        shards: the local tensors before the step.
        limit: the largest difference of an element by rounding, which is added to the bound.
    """
    if fault := difference(actual, expected, math.inf):
        return fault
    factor = error.bound(max((tuple(shard.shape) for shard in shards), key=math.prod), count)
    if factor is None:
        return None
    error_norm = tensor_norm(error.norm, actual - expected)
    operands = [expected] if error.of == "result" else shards
    operand_norm = sum(tensor_norm(error.norm, operand) for operand in operands)
    # If each element is wrong by `limit`, the l2 norm of the error is the square root of their number times `limit`.
    bound = factor * operand_norm + limit * (expected.numel() ** 0.5 if error.norm == "l2" else 1)
    if error_norm <= bound:
        return None
    reference = f"which is {factor:.3g} times {ENDS[error.of]}"
    return f"has an error of {error_norm:.2g} ({error.norm}); expected at most {bound:.2g}, {reference}"


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements of a tensor as integers of the same bits, real and imaginary parts apart."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.contiguous().view(_BITS[tensor.element_size()])
