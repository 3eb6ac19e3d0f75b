"""Pooling and resampling. With some plane sizes, windows stay inside the blocks of ranks, with others not."""

from __future__ import annotations

from typing import Any

import torch

from spmdir.checking.rules.samples.sample import Sample, f, i, sample

PLANES = {1: (12,), 2: (12, 8), 3: (4, 12, 3)}
Settings = dict[str, Any]
ODD_PLANES = {1: (7,), 2: (5, 7), 3: (3, 5, 7)}


def samples() -> list[Sample]:
    return [*_maxima(), *_averages(), *_adaptive(), *_resampling(), *_grids(), *_rearrangements(), *_pads()]


def _overload(name: str) -> Any:
    """Return the default overload of an aten op."""
    return getattr(torch.ops.aten, name).default


def _maxima() -> list[Sample]:
    """Return calls of max pooling and of its backward in one, two and three dimensions."""
    calls = []
    for rank, plane in PLANES.items():
        cases: list[tuple[tuple[int, ...], Settings]] = [
            (plane, {"kernel_size": (2,) * rank, "stride": (2,) * rank}),
            (plane, {"kernel_size": (3,) * rank, "stride": (1,), "padding": (1,) * rank}),
            (plane, {"kernel_size": (3,) * rank, "stride": (2,) * rank, "padding": (1,) * rank}),
            (ODD_PLANES[rank], {"kernel_size": (2,) * rank, "ceil_mode": True}),
        ]
        for size, settings in cases:
            x = f(5, 4, *size)
            calls.append(sample(f"max_pool{rank}d", x, **settings))
            calls.append(sample(f"max_pool{rank}d_with_indices", x, **settings))
            if rank > 1:
                arguments = {"stride": settings["kernel_size"], "padding": (0,) * rank, "ceil_mode": False, **settings}
                arguments["dilation"] = (1,) * rank
                names = "kernel_size stride padding dilation ceil_mode"
                out, indices = _overload(f"max_pool{rank}d_with_indices")(
                    x, *(arguments[name] for name in names.split())
                )
                backward = f"max_pool{rank}d_with_indices_backward"
                calls.append(Sample(f"aten.{backward}", (f(*out.shape), x, indices), arguments))
    return calls


def _averages() -> list[Sample]:
    """Return calls of average pooling and of its backward in one, two and three dimensions."""
    calls = []
    for rank, plane in PLANES.items():
        divisor: Settings = {"divisor_override": None} if rank > 1 else {}
        cases: list[tuple[tuple[int, ...], Settings]] = [
            (plane, {"kernel_size": (2,) * rank, "stride": (2,) * rank}),
            (plane, {"kernel_size": (3,) * rank, "stride": (1,) * rank, "padding": (1,) * rank}),
            (plane, {"kernel_size": (3,) * rank, "stride": (1,) * rank, "padding": (1,) * rank,
                     "count_include_pad": False}),
            (ODD_PLANES[rank], {"kernel_size": (2,) * rank, "stride": (2,) * rank, "ceil_mode": True}),
        ]  # fmt: skip
        for size, settings in cases:
            x = f(5, 4, *size)
            arguments = {"padding": (0,) * rank, "ceil_mode": False, "count_include_pad": True, **divisor, **settings}
            calls.append(sample(f"avg_pool{rank}d", x, **settings))
            if rank > 1:
                names = "kernel_size stride padding ceil_mode count_include_pad divisor_override"
                out = _overload(f"avg_pool{rank}d")(x, *(arguments[name] for name in names.split()))
                calls.append(sample(f"avg_pool{rank}d_backward", f(*out.shape), x, **arguments))
    return calls


def _adaptive() -> list[Sample]:
    """Return calls of adaptive and fractional pooling, and of unpooling."""
    calls = []
    for rank, plane in PLANES.items():
        for size in ((1,) * rank, (2, 3, 2)[:rank]):
            x = f(5, 4, *plane)
            names = [f"adaptive_avg_pool{rank}d"] + ([f"_adaptive_avg_pool{rank}d"] if rank > 1 else [])
            calls += [sample(name, x, output_size=size) for name in names]
            calls.append(sample(f"adaptive_max_pool{rank}d", x, output_size=size))
            if rank > 1:
                calls.append(sample(f"_adaptive_avg_pool{rank}d_backward", f(5, 4, *size), x))
                indices = _overload(f"adaptive_max_pool{rank}d")(x, size)[1]
                backward = f"adaptive_max_pool{rank}d_backward"
                calls.append(Sample(f"aten.{backward}", (f(5, 4, *size), x, indices), {}))
    x, random_samples = f(5, 4, 6, 6), torch.rand(5, 4, 2, dtype=torch.float64)
    calls.append(sample("fractional_max_pool2d", x, random_samples, kernel_size=(2, 2), output_size=(3, 3)))
    indices = torch.ops.aten.max_pool2d_with_indices(x, [2, 2])[1]
    calls.append(sample("max_unpool2d", f(5, 4, 3, 3), indices, output_size=(6, 6)))
    x = f(5, 4, 2, 4, 6)
    indices = torch.ops.aten.max_pool3d_with_indices(x, [2, 2, 2])[1]
    calls.append(sample("max_unpool3d", f(5, 4, 1, 2, 3), indices, output_size=(2, 4, 6), stride=(2, 2, 2),
                        padding=(0, 0, 0)))  # fmt: skip
    return calls


def _resampling() -> list[Sample]:
    """Return calls of interpolation and of its backward."""
    calls = []
    kinds: list[tuple[str, int, Settings]] = [
        (f"{kind}{rank}d", rank, {}) for kind in ("upsample_nearest", "_upsample_nearest_exact") for rank in PLANES
    ]
    smooth = ("upsample_bilinear2d", "upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa")
    kinds += [(kind, 2, {"align_corners": False}) for kind in smooth]
    kinds += [("upsample_linear1d", 1, {"align_corners": True}), ("upsample_trilinear3d", 3, {"align_corners": False})]
    for kind, rank, settings in kinds:
        size, resized = (3, 2, 2)[:rank], (6, 3, 4)[:rank]
        if kind.endswith("_aa"):
            # Downsample, because `number_variants` also sets the scales to 1. With a scale of 1, these kernels read and
            # write out of bounds if the output is larger than the input.
            size, resized = resized, size
        vector = {"output_size": resized, **settings, "scale_factors": None}
        calls += [
            sample(kind, f(5, 4, *size), output_size=resized, **settings),
            sample(f"{kind}.vec", f(5, 4, *size), **vector),
            sample(f"{kind}.vec", f(4, 3, *size), **{**vector, "output_size": None, "scale_factors": (2.0,) * rank}),
            sample(f"{kind}_backward", f(5, 4, *resized), output_size=resized, input_size=(5, 4, *size), **settings),
        ]
    return calls


def _grids() -> list[Sample]:
    """Return calls of grid sampling and of affine grids, with their backward."""
    calls = []
    settings: Settings = {"interpolation_mode": 0, "padding_mode": 0, "align_corners": False}
    for rank, plane in ((2, (4, 5)), (3, (2, 3, 4))):
        x, grid = f(5, 4, *plane), torch.rand(5, 4, *(6, 3)[: rank - 1], rank, dtype=torch.float64) * 2 - 1
        calls += [
            sample(f"grid_sampler_{rank}d", x, grid, **settings),
            sample("grid_sampler", x, grid, **settings),
            sample(f"grid_sampler_{rank}d_backward", f(5, 4, *grid.shape[1:-1]), x, grid, **settings,
                   output_mask=(True, True)),
        ]  # fmt: skip
    calls.append(sample("affine_grid_generator", f(4, 2, 3), size=(4, 3, 5, 6), align_corners=False))
    calls.append(sample("affine_grid_generator_backward", f(4, 5, 6, 2), size=(4, 3, 5, 6), align_corners=False))
    return calls


def _rearrangements() -> list[Sample]:
    """Return calls that move elements between channels, blocks and pixels."""
    blocks: Settings = {"kernel_size": (2, 3), "dilation": (1, 1), "padding": (1, 0), "stride": (2, 1)}
    return [
        sample("pixel_shuffle", f(5, 16, 4, 3), upscale_factor=2),
        sample("pixel_unshuffle", f(5, 4, 6, 8), downscale_factor=2),
        sample("channel_shuffle", f(5, 6, 4, 3), groups=2),
        sample("im2col", f(5, 4, 6, 8), **blocks),
        sample("im2col", f(6, 4, 6), **blocks),
        sample("col2im", f(5, 24, 24), output_size=(6, 8), **blocks),
        sample("one_hot", i(4, 5, 3), num_classes=4),
    ]


def _pads() -> list[Sample]:
    """Return calls of padding by reflection and replication, and of their backward."""
    calls = []
    for kind in ("reflection", "replication"):
        for rank in PLANES:
            plane, pads = (4, 3, 3)[:rank], (1, 2, 0, 1, 1, 1)[: 2 * rank]
            # Pads list the last dimension first.
            pads_of_dims = [pads[2 * index : 2 * index + 2] for index in reversed(range(rank))]
            padded = [size + sum(dim_pads) for size, dim_pads in zip(plane, pads_of_dims, strict=True)]
            calls += [
                sample(f"{kind}_pad{rank}d", f(5, 4, *plane), padding=pads),
                sample(f"{kind}_pad{rank}d_backward", f(5, 4, *padded), f(5, 4, *plane), padding=pads),
            ]
    return calls
