"""Softmax and its backward."""

from __future__ import annotations

import torch

from spmdir.checking.rules.samples.sample import Sample, b, f, h, sample
from spmdir.core.dtype import F64

NAMED = ("softmax.int", "special_softmax", "log_softmax.int", "special_log_softmax")


def hidden(*shape: int) -> torch.Tensor:
    """Return numbers with a row and some others of -inf."""
    numbers = torch.where(torch.rand(shape) > 0.6, float("-inf"), f(*shape))
    numbers[1] = float("-inf")
    return numbers


def samples() -> list[Sample]:
    """Return calls of forms of softmax and of their backward."""
    return [
        *(sample(op, f(5, 4), dim=d, half_to_float=False) for op in ("_softmax", "_log_softmax") for d in (0, -1)),
        *(sample(op, x, dim=1, dtype=d) for op in NAMED for x, d in ((h(4, 6), F64), (f(4, 6), None))),
        sample("_safe_softmax", f(5, 4), dim=1),
        sample("_safe_softmax", hidden(4, 6), dim=1),
        sample("_safe_softmax", h(4, 6), dim=0, dtype=F64),
        *(sample("_masked_softmax", f(2, 3, 4, 4), b(2, 3, 4, 4), dim=d, mask_type=2) for d in (-1, 1)),
        sample("_masked_softmax", f(2, 3, 4, 4), b(4, 4), mask_type=0),
        sample("_masked_softmax_backward", f(2, 4), f(2, 4), b(2, 4), dim=1),
        *(
            sample(op, f(5, 4), f(5, 4), dim=1, input_dtype=F64)
            for op in ("_softmax_backward_data", "_log_softmax_backward_data")
        ),
    ]
