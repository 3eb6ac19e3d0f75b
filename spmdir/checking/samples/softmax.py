"""Softmax and its backward."""

from __future__ import annotations

from spmdir.checking.sample import F64, Sample, f, h, sample


def samples() -> list[Sample]:
    return [
        *(sample(op, f(5, 4), dim=d, half_to_float=False) for op in ("_softmax", "_log_softmax") for d in (0, -1)),
        *(sample(op, h(4, 6), dim=1, dtype=F64) for op in ("softmax.int", "log_softmax.int")),
        sample("_safe_softmax", f(5, 4), dim=1),
        *(
            sample(op, f(5, 4), f(5, 4), dim=1, input_dtype=F64)
            for op in ("_softmax_backward_data", "_log_softmax_backward_data")
        ),
    ]  # fmt: skip
