"""The error of an output on the ranks, relative to one device, and the error that rounding may cause."""

from __future__ import annotations

from typing import Any

import torch

from spmdir.core.dtype import DTYPES
from spmdir.torch_interop.dtypes import TORCH_DTYPES

TOLERANCES = {"f64": 1e-9, "f32": 1e-4, "f16": 1e-2, "bf16": 5e-2, "complex<f64>": 1e-9, "complex<f32>": 1e-4}
"""Element type → the default tolerance, for sums of a few thousand terms in another order. Other types are exact."""


def relative_error(output: Any, reference: Any) -> float:
    """Return the largest difference of an element over the largest element of `reference`.

    It is infinite if the outputs differ in type or in the places of infinities. It is NaN if `reference` has no finite
    element, and the infinities and NaNs agree.
    """
    if not isinstance(output, torch.Tensor) or not isinstance(reference, torch.Tensor):
        return 0.0 if output == reference else float("inf")
    if output.shape != reference.shape or output.dtype != reference.dtype:
        return float("inf")
    wide = torch.complex128 if reference.is_complex() else torch.float64
    output, reference = output.to(wide), reference.to(wide)
    finite = torch.isfinite(reference)
    # Infinities and NaNs must be at the same places. `nan_to_num(1)` makes NaNs comparable.
    are_others_equal = torch.equal(output[~finite].nan_to_num(1), reference[~finite].nan_to_num(1))
    if not are_others_equal or not output[finite].isfinite().all():
        return float("inf")
    if not finite.any():
        return float("nan") if reference.numel() else 0.0
    difference, size = (output - reference)[finite].abs().max().item(), reference[finite].abs().max().item()
    if not size:
        return float("inf") if difference else 0.0
    return difference / size


def tolerance_of(value: Any) -> float:
    """Return the default tolerance for an output, by its element type."""
    dtype = getattr(value, "dtype", None)
    return next((limit for name, limit in TOLERANCES.items() if TORCH_DTYPES[DTYPES[name]] == dtype), 0.0)
