"""Pooling and resampling. Planes of one size pool into blocks that correspond, of another they do not."""

from __future__ import annotations

from typing import Any

import torch

from spmdir.checking.rules.samples.sample import Sample, f, i, sample

PLANES = {1: (12,), 2: (12, 8), 3: (4, 12, 3)}
Settings = dict[str, Any]
ODD = {1: (7,), 2: (5, 7), 3: (3, 5, 7)}


def samples() -> list[Sample]:
    return [*_maxima(), *_averages(), *_adaptive(), *_resampling(), *_grids(), *_moves(), *_pads()]


def _overload(name: str) -> Any:
    return getattr(torch.ops.aten, name).default


def _maxima() -> list[Sample]:
    found = []
    for rank, plane in PLANES.items():
        cases: list[tuple[tuple[int, ...], Settings]] = [
            (plane, {"kernel_size": (2,) * rank, "stride": (2,) * rank}),
            (plane, {"kernel_size": (3,) * rank, "stride": (1,), "padding": (1,) * rank}),
            (plane, {"kernel_size": (3,) * rank, "stride": (2,) * rank, "padding": (1,) * rank}),
            (ODD[rank], {"kernel_size": (2,) * rank, "ceil_mode": True}),
        ]
        for size, how in cases:
            x = f(5, 4, *size)
            found.append(sample(f"max_pool{rank}d", x, **how))
            found.append(sample(f"max_pool{rank}d_with_indices", x, **how))
            if rank > 1:
                given = {"stride": how["kernel_size"], "padding": (0,) * rank, "ceil_mode": False, **how}
                given["dilation"] = (1,) * rank
                names = "kernel_size stride padding dilation ceil_mode"
                out, indices = _overload(f"max_pool{rank}d_with_indices")(x, *(given[name] for name in names.split()))
                back = f"max_pool{rank}d_with_indices_backward"
                found.append(Sample(f"aten.{back}", (f(*out.shape), x, indices), given))
    return found


def _averages() -> list[Sample]:
    found = []
    for rank, plane in PLANES.items():
        more: Settings = {"divisor_override": None} if rank > 1 else {}
        cases: list[tuple[tuple[int, ...], Settings]] = [
            (plane, {"kernel_size": (2,) * rank, "stride": (2,) * rank}),
            (plane, {"kernel_size": (3,) * rank, "stride": (1,) * rank, "padding": (1,) * rank}),
            (plane, {"kernel_size": (3,) * rank, "stride": (1,) * rank, "padding": (1,) * rank,
                     "count_include_pad": False}),
            (ODD[rank], {"kernel_size": (2,) * rank, "stride": (2,) * rank, "ceil_mode": True}),
        ]  # fmt: skip
        for size, how in cases:
            x = f(5, 4, *size)
            given = {"padding": (0,) * rank, "ceil_mode": False, "count_include_pad": True, **more, **how}
            found.append(sample(f"avg_pool{rank}d", x, **how))
            if rank > 1:
                names = "kernel_size stride padding ceil_mode count_include_pad divisor_override"
                out = _overload(f"avg_pool{rank}d")(x, *(given[name] for name in names.split()))
                found.append(sample(f"avg_pool{rank}d_backward", f(*out.shape), x, **given))
    return found


def _adaptive() -> list[Sample]:
    found = []
    for rank, plane in PLANES.items():
        for size in ((1,) * rank, (2, 3, 2)[:rank]):
            x = f(5, 4, *plane)
            names = [f"adaptive_avg_pool{rank}d"] + ([f"_adaptive_avg_pool{rank}d"] if rank > 1 else [])
            found += [sample(name, x, output_size=size) for name in names]
            found.append(sample(f"adaptive_max_pool{rank}d", x, output_size=size))
            if rank > 1:
                found.append(sample(f"_adaptive_avg_pool{rank}d_backward", f(5, 4, *size), x))
                indices = _overload(f"adaptive_max_pool{rank}d")(x, size)[1]
                back = f"adaptive_max_pool{rank}d_backward"
                found.append(Sample(f"aten.{back}", (f(5, 4, *size), x, indices), {}))
    x, places = f(5, 4, 6, 6), torch.rand(5, 4, 2, dtype=torch.float64)
    found.append(sample("fractional_max_pool2d", x, kernel_size=(2, 2), output_size=(3, 3), random_samples=places))
    found[-1] = Sample(found[-1].op, (x, places), {"kernel_size": (2, 2), "output_size": (3, 3)})
    indices = torch.ops.aten.max_pool2d_with_indices(x, [2, 2])[1]
    found.append(sample("max_unpool2d", f(5, 4, 3, 3), indices, output_size=(6, 6)))
    x = f(5, 4, 2, 4, 6)
    indices = torch.ops.aten.max_pool3d_with_indices(x, [2, 2, 2])[1]
    found.append(sample("max_unpool3d", f(5, 4, 1, 2, 3), indices, output_size=(2, 4, 6), stride=(2, 2, 2),
                        padding=(0, 0, 0)))  # fmt: skip
    return found


def _resampling() -> list[Sample]:
    found = []
    kinds: list[tuple[str, int, Settings]] = [
        (f"{kind}{rank}d", rank, {}) for kind in ("upsample_nearest", "_upsample_nearest_exact") for rank in PLANES
    ]
    smooth = ("upsample_bilinear2d", "upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa")
    kinds += [(kind, 2, {"align_corners": False}) for kind in smooth]
    kinds += [("upsample_linear1d", 1, {"align_corners": True}), ("upsample_trilinear3d", 3, {"align_corners": False})]
    for kind, rank, how in kinds:
        size, resized = (3, 2, 2)[:rank], (6, 3, 4)[:rank]
        if kind.endswith("_aa"):
            # With a scale of 1 and more outputs than inputs these kernels read and write beyond their input.
            size, resized = resized, size
        vector = {"output_size": resized, **how, "scale_factors": None}
        found += [
            sample(kind, f(5, 4, *size), output_size=resized, **how),
            sample(f"{kind}.vec", f(5, 4, *size), **vector),
            sample(f"{kind}.vec", f(4, 3, *size), **{**vector, "output_size": None, "scale_factors": (2.0,) * rank}),
            sample(f"{kind}_backward", f(5, 4, *resized), output_size=resized, input_size=(5, 4, *size), **how),
        ]
    return found


def _grids() -> list[Sample]:
    found = []
    how: Settings = {"interpolation_mode": 0, "padding_mode": 0, "align_corners": False}
    for rank, plane in ((2, (4, 5)), (3, (2, 3, 4))):
        x, grid = f(5, 4, *plane), torch.rand(5, 4, *(6, 3)[: rank - 1], rank, dtype=torch.float64) * 2 - 1
        found += [
            sample(f"grid_sampler_{rank}d", x, grid, **how),
            sample("grid_sampler", x, grid, **how),
            sample(f"grid_sampler_{rank}d_backward", f(5, 4, *grid.shape[1:-1]), x, grid, **how,
                   output_mask=(True, True)),
        ]  # fmt: skip
    found.append(sample("affine_grid_generator", f(4, 2, 3), size=(4, 3, 5, 6), align_corners=False))
    found.append(sample("affine_grid_generator_backward", f(4, 5, 6, 2), size=(4, 3, 5, 6), align_corners=False))
    return found


def _moves() -> list[Sample]:
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
    found = []
    for kind in ("reflection", "replication"):
        for rank in PLANES:
            plane, pads = (4, 3, 3)[:rank], (1, 2, 0, 1, 1, 1)[: 2 * rank]
            padded = [size + sum(pads[2 * p : 2 * p + 2]) for p, size in zip(range(rank)[::-1], plane, strict=True)]
            found += [
                sample(f"{kind}_pad{rank}d", f(5, 4, *plane), padding=pads),
                sample(f"{kind}_pad{rank}d_backward", f(5, 4, *padded), f(5, 4, *plane), padding=pads),
            ]
    return found
