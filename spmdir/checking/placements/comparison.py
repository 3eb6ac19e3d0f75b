"""When two values are the same: bit for bit, or to rounding and declared error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from spmdir.core.placement.base import PartialPlacement, Placement
from spmdir.core.placement.error import ENDS, ErrorBound
from spmdir.core.placement.reductions import REDUCTIONS
from spmdir.simulator.measured_errors import tensor_norm

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def difference(found: Any, right: Any, limit: float) -> str | None:
    """Return how `found` differs from `right`: bit for bit where `limit` is 0, else by more than it.

    None if it does not.
    """
    if not isinstance(found, torch.Tensor):
        return f"is a {type(found).__name__}; expected a tensor"
    if found.dtype != right.dtype or found.shape != right.shape:
        return f"is {list(found.shape)} of {found.dtype}; expected {list(right.shape)} of {right.dtype}"
    if limit == 0 or right.dtype == torch.bool:
        wrong = _bits(found) != _bits(right)
    else:
        wide = torch.complex128 if right.is_complex() else torch.float64
        apart = (found.to(wide) - right.to(wide)).abs()
        wrong = ~(apart <= limit) & right.isfinite() | (found.isfinite() & ~right.isfinite())
    if not wrong.any():
        return None
    place = tuple(wrong.nonzero()[0].tolist())
    where = f" at {list(place)}" if right.dim() else ""
    by = f" within {limit:.2g}" if limit else ""
    return f"is {found[place].item()}{where}; expected {right[place].item()}{by}"


def apart(placement: Placement, found: Any, right: Any, count: int, shards: Sequence[torch.Tensor]) -> str | None:
    """Return how what `count` ranks made of `shards` differs from `right` by more than by rounding and by what
    `placement` declares; None if it does not."""
    limit = rounding(placement, count, [right, *shards])
    if not placement.error:
        return difference(found, right, limit)
    return inexact_difference(found, right, placement.error, count, shards, limit)


def rounding(placement: Placement, count: int, shards: Sequence[torch.Tensor]) -> float:
    """Return by how much values may differ that `count` ranks made of `shards`, reduced in another order.

    That is relative to the largest of what ranks hold, or to 1 where functions are applied before and after the
    reduction that do not scale with the values, as a logarithm, whose result may be near 0.
    """
    finite = [shard[shard.isfinite()] for shard in shards if shard.dtype.is_floating_point or shard.dtype.is_complex]
    if not finite:
        return 0.0
    largest = max((float(shard.abs().max()) for shard in finite if shard.numel()), default=0.0)
    least = torch.finfo(torch.float64).tiny if _scales(placement) else 1.0
    roundings = 16 if is_mapped(placement) else 4
    return roundings * count * max(largest, least) * max(torch.finfo(shard.dtype).eps for shard in finite)


def is_mapped(placement: Placement) -> bool:
    """Return whether functions are applied before or after a reduction."""
    kind, base = type(placement), PartialPlacement
    return issubclass(kind, base) and (kind.before, kind.after) != (base.before, base.after)


@cache
def _scales(placement: Placement) -> bool:
    """Return whether the reduction of partial values that are twice as large is."""
    if not isinstance(placement, PartialPlacement):
        return True
    combine = REDUCTIONS[placement.reduce].combine
    terms = [torch.tensor([1.0, 3.0, 2.0]), torch.tensor([2.0, 1.0, 2.0])]
    one, two = (placement.after(combine(*(placement.before(n * term) for term in terms)), 2) for n in (1, 2))
    return torch.allclose(2 * one, two)


def inexact_difference(
    found: Any, right: Any, error: ErrorBound, count: int, shards: Sequence[torch.Tensor], limit: float
) -> str | None:
    """Return how `found` differs from `right` by more than the steps of an inexact placement may; None if it does not.

    Args:
        error: what the placement declares; where no bound is known, only shapes and element types are compared.
        count: the number of ranks that take part.
        shards: what ranks hold before.
        limit: by how much each element may differ by rounding.
    """
    if fault := difference(found, right, math.inf):
        return fault
    bound = error.bound(max((tuple(shard.shape) for shard in shards), key=math.prod), count)
    if bound is None:
        return None
    norm = tensor_norm(error.norm, found - right)
    size = tensor_norm(error.norm, right) if error.of == "result" else sum(tensor_norm(error.norm, s) for s in shards)
    most = bound * size + limit * (right.numel() ** 0.5 if error.norm == "l2" else 1)
    if norm <= most:
        return None
    return f"is off by {norm:.2g} ({error.norm}); expected at most {most:.2g}, which is {bound:.3g} of {ENDS[error.of]}"


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.contiguous().view(_BITS[tensor.element_size()])
