"""Normalization: layer, RMS, group, instance, batch and weight norm."""

from __future__ import annotations

from typing import Any

import torch

from spmdir.checking.rules.samples.sample import Sample, f, positive, sample

Settings = dict[str, Any]


def samples() -> list[Sample]:
    """Return calls of normalizations and of their backward."""
    norm = torch.ops.aten.native_layer_norm(f(5, 4, 3), [3], f(3), f(3), 1e-5)
    rms = torch.ops.aten._fused_rms_norm(f(5, 4, 3), [3], f(3), 1e-5)
    return [
        sample("layer_norm", f(5, 4, 3), f(3), f(3), normalized_shape=(3,)),
        sample("layer_norm", f(5, 4, 3), None, None, normalized_shape=(4, 3)),
        sample("native_layer_norm", f(5, 4, 3), f(3), None, normalized_shape=(3,), eps=1e-5),
        sample("native_layer_norm_backward", f(5, 4, 3), f(5, 4, 3), norm[1], norm[2], f(3), f(3),
               normalized_shape=(3,), output_mask=(True, True, True)),
        sample("native_layer_norm_backward", f(5, 4, 3), f(5, 4, 3), norm[1], norm[2], None, None,
               normalized_shape=(3,), output_mask=(True, False, False)),
        sample("rms_norm", f(5, 4, 3), f(3), normalized_shape=(3,), eps=1e-5),
        sample("_fused_rms_norm", f(5, 4, 3), f(3), normalized_shape=(3,), eps=1e-5),
        sample("_fused_rms_norm_backward", f(5, 4, 3), f(5, 4, 3), rms[1], f(3), normalized_shape=(3,),
               output_mask=(True, True)),
        sample("group_norm", f(5, 4, 3, 3), f(4), f(4), num_groups=2),
        sample("native_group_norm", f(5, 4, 3, 3), f(4), f(4), N=5, C=4, HxW=9, group=2, eps=1e-5),
        sample("batch_norm", f(5, 4, 3), f(4), f(4), f(4), positive(4), training=False, momentum=0.1, eps=1e-5,
               cudnn_enabled=False),
        sample("batch_norm", f(5, 4, 3), f(4), f(4), None, None, training=True, momentum=0.1, eps=1e-5,
               cudnn_enabled=False),
        sample("_native_batch_norm_legit_no_training", f(5, 4, 3), f(4), f(4), f(4), positive(4), momentum=0.1,
               eps=1e-5),
        *_layer_norms_of_all_dimensions(), *_group_norms(), *_weight_norms(), *_instance_norms(), *_batch_norms(),
    ]  # fmt: skip


def _layer_norms_of_all_dimensions() -> list[Sample]:
    """Return calls that normalise over all dimensions of the input, or over the last one without a weight."""
    mean, rstd = torch.ops.aten.native_layer_norm(x := f(4, 6), [4, 6], None, None, 1e-5)[1:]
    return [
        sample("native_layer_norm", x, f(4, 6), f(4, 6), normalized_shape=(4, 6), eps=1e-5),
        sample("native_layer_norm_backward", f(4, 6), x, mean, rstd, f(4, 6), f(4, 6),
               normalized_shape=(4, 6), output_mask=(True, True, True)),
        sample("_fused_rms_norm", f(5, 4), None, normalized_shape=(4,), eps=None),
        sample("rms_norm", f(5, 4), None, normalized_shape=(4,)),
    ]  # fmt: skip


def _weight_norms() -> list[Sample]:
    """Return calls of the backward of weight norm: the weight is `direction / norm * magnitude`."""
    calls = []
    for shape, dim in (((5, 4, 3), 0), ((5, 6), 1), ((4, 1, 3), 2)):
        direction = f(*shape)
        norms = torch.linalg.vector_norm(direction, dim=[d for d in range(len(shape)) if d != dim], keepdim=True)
        magnitude = f(*norms.shape)
        calls.append(sample("_weight_norm_interface_backward", f(*shape), direction, magnitude, norms, dim=dim))
    return calls


def _group_norms() -> list[Sample]:
    """Return calls of group norm and of its backward, for several numbers of groups."""
    calls = []
    for groups, channels in ((2, 4), (4, 12), (6, 6)):
        sizes: Settings = {"N": 5, "C": channels, "HxW": 6, "group": groups}
        x, weight = f(5, channels, 2, 3), f(channels)
        _, mean, rstd = torch.ops.aten.native_group_norm(x, weight, weight, 5, channels, 6, groups, 1e-5)
        calls += [
            sample("group_norm", x, weight, None, num_groups=groups),
            sample("native_group_norm", x, weight, f(channels), **sizes, eps=1e-5),
            sample("native_group_norm_backward", f(5, channels, 2, 3), x, mean, rstd, weight, **sizes,
                   output_mask=(True, True, True)),
            sample("native_group_norm_backward", f(5, channels, 2, 3), x, mean, rstd, None, **sizes,
                   output_mask=(True, False, False)),
        ]  # fmt: skip
    return calls


def _instance_norms() -> list[Sample]:
    """Return calls of instance norm with the statistics of the input, and with running statistics."""
    settings: Settings = {"momentum": 0.1, "eps": 1e-5, "cudnn_enabled": False}
    return [
        sample("instance_norm", f(5, 4, 6, 2), f(4), f(4), None, None, use_input_stats=True, **settings),
        sample("instance_norm", f(5, 6, 4), None, None, f(6), positive(6), use_input_stats=False, **settings),
    ]


def _batch_norms() -> list[Sample]:
    """Return calls of the forms of batch norm and of their backward; `c` is the number of channels."""
    calls, unused = [], torch.empty(0, dtype=torch.uint8)
    step: Settings = {"momentum": 0.1, "eps": 1e-5}
    for shape in ((5, 4), (6, 4, 3), (4, 6, 3, 4)):
        x, c = f(*shape), shape[1]
        mean, rstd = torch.ops.aten.native_batch_norm(x, None, None, None, None, True, 0.1, 1e-5)[1:]
        backward: Settings = {"train": True, "eps": 1e-5, "output_mask": (True, True, True)}
        calls += [
            sample("native_batch_norm", x, f(c), f(c), None, None, training=True, **step),
            sample("native_batch_norm", x, f(c), f(c), f(c), positive(c), training=False, **step),
            sample("_native_batch_norm_legit.no_stats", x, f(c), None, training=True, **step),
            sample("_native_batch_norm_legit_functional", x, f(c), f(c), f(c), positive(c), training=True, **step),
            sample("_native_batch_norm_legit_functional", x, None, None, f(c), positive(c), training=False, **step),
            sample("_batch_norm_with_update_functional", x, f(c), f(c), f(c), positive(c), **step),
            sample("native_batch_norm_backward", f(*shape), x, f(c), f(c), positive(c), mean, rstd, **backward),
            sample("native_batch_norm_backward", f(*shape), x, None, None, None, mean, rstd,
                   **{**backward, "output_mask": (True, False, False)}),
            sample("native_batch_norm_backward", f(*shape), x, f(c), f(c), positive(c), f(0), f(0),
                   **{**backward, "train": False}),
            sample("batch_norm_backward", f(*shape), x, f(c), f(c), positive(c), mean, rstd, unused, update=True,
                   eps=1e-5, output_mask=(True, True, True)),
            sample("cudnn_batch_norm", x, f(c), f(c), None, None, training=True, exponential_average_factor=0.1,
                   epsilon=1e-5),
            sample("cudnn_batch_norm_backward", x, f(*shape), f(c), None, None, mean, rstd, unused, epsilon=1e-5),
        ]  # fmt: skip
    return calls
