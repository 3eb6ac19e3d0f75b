"""Pooling and upsampling."""

from __future__ import annotations

from spmdir.checking.sample import Sample, f, sample


def samples() -> list[Sample]:
    return [
        sample("max_pool2d", f(5, 4, 6, 6), kernel_size=(2, 2)),
        sample("max_pool2d_with_indices", f(5, 4, 6, 6), kernel_size=(2, 2)),
        sample("avg_pool2d", f(5, 4, 6, 6), kernel_size=(2, 2)),
        *(sample(op, f(5, 4, 6, 6), output_size=(2, 3)) for op in ("adaptive_avg_pool2d", "_adaptive_avg_pool2d")),
        sample("upsample_nearest2d", f(5, 4, 3, 3), output_size=(6, 6)),
        sample("upsample_bilinear2d", f(5, 4, 3, 3), output_size=(6, 6), align_corners=False),
    ]  # fmt: skip
