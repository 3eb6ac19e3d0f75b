"""Attention."""

from __future__ import annotations

import torch

from spmdir.checking.sample import Sample, b, f, sample


def samples() -> list[Sample]:
    q, k, v = f(2, 4, 5, 6), f(2, 4, 3, 6), f(2, 4, 3, 6)
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)
    causal = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True)
    grouped = f(2, 4, 5, 6), f(2, 2, 3, 6), f(2, 2, 3, 6)
    flash_grouped = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*grouped)
    return [
        sample("scaled_dot_product_attention", q, k, v),
        sample("scaled_dot_product_attention", f(2, 4, 5, 6), f(2, 4, 5, 6), f(2, 4, 5, 7), is_causal=True),
        sample("scaled_dot_product_attention", f(5, 4, 5, 6), f(5, 2, 3, 6), f(5, 2, 3, 6), f(5, 1, 5, 3),
               enable_gqa=True),
        sample("scaled_dot_product_attention", q, k, v, b(5, 3) | True),
        sample("scaled_dot_product_attention", q, k, v, dropout_p=0.5, compare=False),
        sample("_scaled_dot_product_flash_attention_for_cpu", q, k, v),
        sample("_scaled_dot_product_flash_attention_for_cpu", q, q, q, f(5, 5)),
        sample("_scaled_dot_product_flash_attention_for_cpu", q, q, q, is_causal=True),
        sample("_scaled_dot_product_flash_attention_for_cpu_backward", f(2, 4, 5, 6), q, k, v, *flash, dropout_p=0.0,
               is_causal=False),
        sample("_scaled_dot_product_flash_attention_for_cpu_backward", f(2, 4, 5, 6), q, k, v, *causal, dropout_p=0.0,
               is_causal=True),
        sample("_scaled_dot_product_flash_attention_for_cpu", *grouped),
        sample("_scaled_dot_product_flash_attention_for_cpu_backward", f(2, 4, 5, 6), *grouped, *flash_grouped,
               dropout_p=0.0, is_causal=False),
        sample("_scaled_dot_product_efficient_attention", f(5, 4, 3, 6), f(5, 4, 2, 6), f(5, 4, 2, 7), f(3, 2),
               compute_log_sumexp=True),
        sample("_scaled_dot_product_efficient_attention_backward", f(5, 4, 3, 6), f(5, 4, 3, 6), f(5, 4, 3, 6),
               f(5, 4, 3, 6), None, f(5, 4, 3, 6), f(5, 4, 32), f(1).sum(), f(1).sum(), dropout_p=0.0,
               grad_input_mask=(True, True, True, False), is_causal=True),
        sample("_scaled_dot_product_flash_attention", f(5, 4, 3, 6), f(5, 2, 2, 6), f(5, 2, 2, 6)),
        sample("_scaled_dot_product_flash_attention_backward", f(5, 4, 3, 6), f(5, 4, 3, 6), f(5, 2, 3, 6),
               f(5, 2, 3, 6), f(5, 4, 3, 6), f(5, 4, 3), None, None, f(2), f(1).sum(), max_q=3, max_k=3,
               dropout_p=0.0, is_causal=True),
    ]  # fmt: skip
