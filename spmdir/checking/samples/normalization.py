"""Normalization."""

from __future__ import annotations

import torch

from spmdir.checking.sample import Sample, f, positive, sample


def samples() -> list[Sample]:
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
    ]  # fmt: skip
