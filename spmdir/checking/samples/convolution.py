"""Convolution."""

from __future__ import annotations

from spmdir.checking.sample import Sample, f, sample

CONV = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "transposed": False, "output_padding": (0, 0)}
BACK = {**CONV, "groups": 1, "output_mask": (True, True, True)}


def samples() -> list[Sample]:
    return [
        sample("convolution", f(5, 4, 6, 6), f(3, 4, 3, 3), f(3), **CONV, groups=1),
        sample("convolution", f(5, 4, 6, 6), f(4, 3, 3, 3), f(3), **{**CONV, "transposed": True}, groups=1),
        sample("convolution", f(5, 4, 6, 6), f(6, 2, 3, 3), f(6), **CONV, groups=2),
        sample("conv2d", f(5, 4, 6, 6), f(3, 4, 3, 3), f(3), stride=(3, 3)),
        sample("conv2d", f(4, 6, 6), f(3, 4, 3, 3), f(3)),
        sample("conv1d", f(5, 4, 6), f(3, 4, 3)),
        sample("conv1d", f(5, 4, 6), f(4, 1, 3), groups=4),
        sample("convolution_backward", f(5, 3, 6, 6), f(5, 4, 6, 6), f(3, 4, 3, 3), **BACK, bias_sizes=(3,)),
        sample("convolution_backward", f(5, 6, 6, 6), f(5, 4, 6, 6), f(6, 2, 3, 3), **{**BACK, "groups": 2},
               bias_sizes=(6,)),
    ]  # fmt: skip
