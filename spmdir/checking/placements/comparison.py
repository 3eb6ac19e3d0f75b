"""When two values are the same: bit for bit, or to rounding and declared error."""

from __future__ import annotations

from typing import Any

import torch

from spmdir.core.placement.base import Placement

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def difference(found: Any, right: Any, limit: float) -> str | None:
    """Return how `found` differs from `right`: bit for bit where `limit` is 0, else by more than it.

    None if it does not.
    """
    if not isinstance(found, torch.Tensor):
        return f"is a {type(found).__name__}; expected a tensor"
    if found.dtype != right.dtype or found.shape != right.shape:
        return f"is {list(found.shape)} of {found.dtype}; expected {list(right.shape)} of {right.dtype}"
    if limit == 0:
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


def rounding(placement: Placement, count: int, tensor: torch.Tensor) -> float:
    """By how much values may differ that `count` ranks reduced in another order, or by an inexact placement."""
    if tensor.dtype == torch.bool:
        return 0.0
    finite = tensor.abs()[tensor.isfinite()]
    # Partial values are up to a few times larger than their sum.
    size = 4 * max(1.0, float(finite.max()) if finite.numel() else 1.0)
    exact = not (tensor.is_floating_point() or tensor.is_complex())
    return size * count * (placement.error + (0.0 if exact else 16 * torch.finfo(tensor.dtype).eps))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.contiguous().view(_BITS[tensor.element_size()])
