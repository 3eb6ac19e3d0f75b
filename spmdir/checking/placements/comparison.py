"""When two values are the same: bit for bit, or to rounding and declared error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from spmdir.core.placement.error import ENDS, Error

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


def rounding(count: int, tensor: torch.Tensor) -> float:
    """By how much values may differ that `count` ranks reduced in another order."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return 0.0
    finite = tensor.abs()[tensor.isfinite()]
    # Partial values are up to a few times larger than their sum.
    size = 4 * max(1.0, float(finite.max()) if finite.numel() else 1.0)
    return size * count * 16 * torch.finfo(tensor.dtype).eps


def inexact_difference(
    found: Any, right: Any, error: Error, count: int, shards: Sequence[torch.Tensor], limit: float
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
    norm = measured(error.norm, found - right)
    size = measured(error.norm, right) if error.of == "result" else sum(measured(error.norm, s) for s in shards)
    most = bound * size + limit * (right.numel() ** 0.5 if error.norm == "l2" else 1)
    if norm <= most:
        return None
    return f"is off by {norm:.2g} ({error.norm}); expected at most {most:.2g}, which is {bound:.3g} of {ENDS[error.of]}"


def measured(norm: str, tensor: torch.Tensor) -> float:
    """Return a norm of a tensor, by its name in `spmdir.core.placement.error.NORMS`."""
    wide = tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
    return float(torch.linalg.vector_norm(wide, math.inf if norm == "max" else 2)) if tensor.numel() else 0.0


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.contiguous().view(_BITS[tensor.element_size()])
