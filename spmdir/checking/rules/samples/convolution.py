"""Convolution. In some samples, the windows of a block of outputs lie in the same block of inputs, in others not."""

from __future__ import annotations

from typing import Any

import torch

from spmdir.checking.rules.samples.sample import Sample, f, sample

CONV = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "transposed": False, "output_padding": (0, 0)}
STRIDED = {**CONV, "stride": (2, 2)}
PATCHES = {**CONV, "stride": (2, 2), "padding": (0, 0)}
DILATED = {**CONV, "padding": (2, 2), "dilation": (2, 2)}
SHIFTED = {**CONV, "stride": (1, 2), "padding": (0, 1)}
TRANSPOSED = {**CONV, "stride": (2, 2), "transposed": True, "output_padding": (1, 1)}
MASKS = ((True, True, True), (True, False, False), (False, True, True))


def samples() -> list[Sample]:
    return [*_general(), *_by_rank(), *_transposed()]


def _general() -> list[Sample]:
    """Return calls of `convolution` and of its backward; a case is (input shape, kernel shape, settings, groups)."""
    cases: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any], int]] = [
        ((5, 4, 6, 6), (3, 4, 3, 3), CONV, 1), ((5, 4, 6, 6), (6, 2, 3, 3), CONV, 2),
        ((4, 6, 5, 7), (6, 1, 3, 3), CONV, 6),
        ((3, 2, 8, 12), (4, 2, 3, 3), STRIDED, 1), ((2, 3, 12, 8), (5, 3, 1, 1), PATCHES, 1),
        ((2, 3, 12, 8), (5, 3, 2, 2), PATCHES, 1), ((2, 4, 12, 7), (4, 2, 3, 3), DILATED, 2),
        ((2, 4, 7, 12), (4, 4, 3, 3), SHIFTED, 1), ((5, 4, 6, 6), (4, 3, 3, 3), TRANSPOSED, 1),
        ((3, 6, 4, 3), (6, 2, 3, 3), TRANSPOSED, 3),
    ]  # fmt: skip
    calls = []
    for shape, kernel, settings, groups in cases:
        outputs = kernel[1] * groups if settings["transposed"] else kernel[0]
        x, weight, arguments = f(*shape), f(*kernel), {**settings, "groups": groups}
        out = torch.ops.aten.convolution(x, weight, None, *settings.values(), groups)
        calls.append(sample("convolution", x, weight, f(outputs) if groups == 1 else None, **arguments))
        calls += [
            sample(
                "convolution_backward", f(*out.shape), x, weight, bias_sizes=(outputs,), **arguments, output_mask=mask
            )
            for mask in MASKS
        ]
    return calls


def _by_rank() -> list[Sample]:
    """Return calls of convolutions in one, two and three dimensions."""
    calls = []
    for op, pixels in (("conv1d", (12,)), ("conv2d", (6, 8)), ("conv3d", (4, 6, 3))):
        kernel = (3,) * len(pixels)
        calls += [
            sample(op, f(5, 4, *pixels), f(3, 4, *kernel), f(3)),
            sample(op, f(4, *pixels), f(6, 2, *kernel), f(6), padding=(1,) * len(pixels), groups=2),
            sample(op, f(2, 3, *pixels), f(5, 3, *kernel), None, padding=(1,)),
            sample(f"{op}.padding", f(5, 4, *pixels), f(6, 2, *kernel), f(6), padding="same", groups=2),
            sample(f"{op}.padding", f(5, 4, *pixels), f(3, 4, *kernel), None, padding="valid"),
            sample(f"{op}.padding", f(2, 4, *pixels), f(4, 1, *(2,) * len(pixels)), None, padding="same", groups=4),
        ]
    calls.append(sample("conv2d", f(5, 4, 6, 6), f(3, 4, 3, 3), f(3), stride=(3, 3)))
    return calls


def _transposed() -> list[Sample]:
    """Return calls of transposed convolutions."""
    calls = []
    for op, pixels in (
        ("conv_transpose1d", (6,)),
        ("conv_transpose2d.input", (3, 4)),
        ("conv_transpose3d.input", (2, 3, 4)),
    ):
        kernel = (3,) * len(pixels)
        calls += [
            sample(op, f(5, 4, *pixels), f(4, 3, *kernel), f(3), stride=(2,) * len(pixels)),
            sample(op, f(5, 4, *pixels), f(4, 3, *kernel), f(6), groups=2),
        ]
    return calls
