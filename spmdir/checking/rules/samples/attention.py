"""Attention: every kernel, plain, causal, masked and with grouped queries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from spmdir.checking.rules.samples.sample import Sample, b, f, sample

FLASH = "_scaled_dot_product_flash_attention_for_cpu"


def _random_mask(positions: int, keys: int) -> Tensor:
    """Return a mask that allows key 0 for every position except the last, and no key for the last."""
    mask = b(positions, keys)
    mask[:, 0], mask[-1] = True, False
    return mask


def _bias(mask: Tensor) -> Tensor:
    """Return an attention mask as a bias: 0 where a key is attended to, else -inf."""
    return torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~mask, float("-inf"))


def _heads(batch: int, heads: int, positions: int, keys: int, group_size: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Return query, key and value with 6 features; `group_size` heads of the query share a key and a value."""
    key_shape = (batch, heads // group_size, keys, 6)
    return f(batch, heads, positions, 6), f(*key_shape), f(*key_shape)


def _composite() -> Iterator[Sample]:
    """Yield calls of the op that selects a kernel, and of its formula."""
    op, math = "scaled_dot_product_attention", "_scaled_dot_product_attention_math"
    q, k, v = _heads(2, 4, 5, 3)
    yield sample(op, q, k, v)
    yield sample(op, f(2, 4, 5, 6), f(2, 4, 6, 6), f(2, 4, 6, 7), is_causal=True)
    yield sample(op, f(4, 6, 6), f(4, 3, 6), f(4, 3, 6), is_causal=True, scale=0.3)
    yield sample(op, *_heads(5, 4, 6, 3, group_size=2), f(5, 1, 6, 3), enable_gqa=True)
    yield sample(op, *_heads(5, 4, 6, 4, group_size=2), is_causal=True, enable_gqa=True)
    yield sample(op, q, k, v, _random_mask(5, 3))
    yield sample(op, *_heads(2, 4, 5, 6), f(2, 1, 5, 6))
    yield sample(op, q, k, v, dropout_p=0.5)
    yield sample(op, *(tensor.bfloat16() for tensor in _heads(2, 2, 4, 6)), is_causal=True, compare=False)
    for causal in (False, True):
        yield sample(math, *_heads(2, 4, 6, 5), is_causal=causal)
    yield sample(math, q, k, v, _bias(b(5, 3) | True), scale=0.5)
    yield sample(math, q, k, v, dropout_p=0.5)


def _cpu() -> Iterator[Sample]:
    """Yield calls of the flash attention of the CPU, with their backward."""
    for heads in (_heads(2, 4, 5, 3), _heads(3, 2, 8, 8), _heads(2, 4, 6, 4, group_size=2)):
        for causal in (False, True):
            results = getattr(torch.ops.aten, FLASH)(*heads, 0.0, causal)
            yield sample(FLASH, *heads, is_causal=causal)
            yield sample(f"{FLASH}_backward", f(*heads[0].shape), *heads, *results, dropout_p=0.0, is_causal=causal)
    heads = _heads(2, 4, 6, 4)
    for mask in (_bias(_random_mask(6, 4)), f(2, 1, 6, 4)):
        for causal in (False, True):
            results = getattr(torch.ops.aten, FLASH)(*heads, 0.0, causal, attn_mask=mask)
            yield sample(FLASH, *heads, mask, is_causal=causal)
            yield sample(f"{FLASH}_backward", f(2, 4, 6, 6), *heads, *results, mask, dropout_p=0.0, is_causal=causal)


def _cuda() -> Iterator[Sample]:
    """Yield calls of CUDA kernels, which the checker runs by `references.py`."""
    zero = torch.zeros(())
    for causal in (False, True):
        q, k, v = _heads(5, 4, 3, 6)
        grouped = _heads(5, 4, 4, 6, group_size=2)
        # `total` is the logsumexp: larger than the scores, so probabilities are below 1. Some kernels pad it to 32.
        grad, out, total = f(5, 4, 4, 6), f(5, 4, 4, 6), f(5, 4, 4).abs() + 9
        kernel: dict[str, Any] = {"dropout_p": 0.0, "is_causal": causal}
        sizes = {"max_q": 4, "max_k": 6}
        yield sample("_scaled_dot_product_efficient_attention", q, k, v, f(3, 6), compute_log_sumexp=True, **kernel)
        yield sample(
            "_scaled_dot_product_efficient_attention_backward",
            f(5, 4, 3, 6),
            q,
            k,
            v,
            None,
            f(5, 4, 3, 6),
            f(5, 4, 32).abs() + 9,
            zero,
            zero,
            grad_input_mask=(True, True, True, False),
            **kernel,
        )
        yield sample("_scaled_dot_product_flash_attention", *grouped, **kernel)
        yield sample(
            "_scaled_dot_product_flash_attention_backward",
            grad,
            *grouped,
            out,
            total,
            None,
            None,
            f(2),
            zero,
            **sizes,
            **kernel,
        )
        cudnn, fused = "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_fused_attention_overrideable"
        yield sample(cudnn, *grouped, f(4, 6), compute_log_sumexp=True, **kernel)
        yield sample(
            f"{cudnn}_backward",
            grad,
            *grouped,
            out,
            total.unsqueeze(-1),
            zero,
            zero,
            f(4, 6),
            None,
            None,
            **sizes,
            **kernel,
        )
        yield sample(fused, *grouped, f(4, 6), **kernel)
        yield sample(
            f"{fused}_backward",
            grad,
            *grouped,
            None,
            out,
            total,
            None,
            None,
            zero,
            zero,
            grad_input_mask=(True, True, True, False),
            **sizes,
            **kernel,
        )
        heads_last = tuple(t.transpose(1, 2).contiguous() for t in grouped)
        grad, out = (t.transpose(1, 2).contiguous() for t in (grad, out))
        yield sample("_flash_attention_forward", *heads_last, **sizes, **kernel, return_debug_mask=False)
        yield sample(
            "_flash_attention_backward", grad, *heads_last, out, total, None, None, f(2), zero, **sizes, **kernel
        )
        heads_last = tuple(t.transpose(1, 2).contiguous() for t in _heads(5, 4, 4, 6))
        memory: dict[str, Any] = {"dropout_p": 0.0, "custom_mask_type": int(causal)}
        longest = {"max_seqlen_q": 4, "max_seqlen_k": 6}
        yield sample("_efficient_attention_forward", *heads_last, compute_log_sumexp=True, **longest, **memory)
        yield sample(
            "_efficient_attention_backward",
            grad,
            *heads_last,
            None,
            out,
            None,
            None,
            f(5, 4, 32).abs() + 9,
            zero,
            zero,
            bias_requires_grad=False,
            **longest,
            **memory,
        )


def _layer() -> Iterator[Sample]:
    """Yield calls of the fused layer of nn.MultiheadAttention."""
    weights = f(12, 4), f(12), f(4, 4), f(4)
    x = f(5, 3, 4)
    for needed, average in ((True, True), (True, False), (False, False)):
        yield sample(
            "_native_multi_head_attention",
            x,
            x,
            x,
            *weights,
            embed_dim=4,
            num_head=2,
            need_weights=needed,
            average_attn_weights=average,
        )


def samples() -> list[Sample]:
    return [*_composite(), *_cpu(), *_cuda(), *_layer()]
