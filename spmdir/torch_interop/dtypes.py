"""Element types of the IR as torch's own, and the inverse."""

from __future__ import annotations

import torch

from spmdir.core import dtype as dt

TORCH_DTYPES = {
    dt.F64: torch.float64, dt.F32: torch.float32, dt.F16: torch.float16, dt.BF16: torch.bfloat16,
    dt.F8E4M3FN: torch.float8_e4m3fn, dt.F8E5M2: torch.float8_e5m2,
    dt.I64: torch.int64, dt.I32: torch.int32, dt.I16: torch.int16, dt.I8: torch.int8, dt.UI8: torch.uint8,
    dt.I1: torch.bool, dt.COMPLEX_F32: torch.complex64, dt.COMPLEX_F64: torch.complex128,
}  # fmt: skip

DTYPES_OF_TORCH = {torch_dtype: dtype for dtype, torch_dtype in TORCH_DTYPES.items()}
