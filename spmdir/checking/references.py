"""What attention kernels without a CPU version give, in plain torch, where every rank can run it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def _attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, causal: bool, scale: float | None
) -> tuple[Tensor, Tensor]:
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if bias is not None:
        scores = scores + bias
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), float("-inf"))
    return torch.softmax(scores, -1) @ value, torch.logsumexp(scores, -1)


def efficient(query: Tensor, key: Tensor, value: Tensor, attn_bias: Tensor | None, compute_log_sumexp: bool,
              dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None) -> Any:  # fmt: skip
    out, total = _attention(query, key, value, attn_bias, is_causal, scale)
    padded = torch.nn.functional.pad(total, (0, -total.shape[-1] % 32), value=float("inf"))
    return out, padded, torch.zeros(()), torch.zeros(())


def efficient_backward(grad_out_: Tensor, query: Tensor, key: Tensor, value: Tensor, attn_bias: Tensor | None,
                       out: Tensor, logsumexp: Tensor, philox_seed: Tensor, philox_offset: Tensor, dropout_p: float,
                       grad_input_mask: Any, is_causal: bool = False, scale: float | None = None) -> Any:  # fmt: skip
    query, key, value = (t.detach().requires_grad_() for t in (query, key, value))
    with torch.enable_grad():
        made, _ = _attention(query, key, value, attn_bias, is_causal, scale)
    return (*torch.autograd.grad(made, (query, key, value), grad_out_), None)


def flash(query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, is_causal: bool = False,
          return_debug_mask: bool = False, scale: float | None = None) -> Any:  # fmt: skip
    out, total = _attention(query, key, value, None, is_causal, scale)
    return out, total, None, None, None, None, torch.zeros(2), torch.zeros(()), torch.zeros(0)


def flash_backward(grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor,
                   cum_seq_q: Tensor | None, cum_seq_k: Tensor | None, max_q: int, max_k: int, dropout_p: float,
                   is_causal: bool, philox_seed: Tensor, philox_offset: Tensor,
                   scale: float | None = None) -> Any:  # fmt: skip
    empty = torch.zeros(())
    return efficient_backward(grad_out, query, key, value, None, out, logsumexp, empty, empty, dropout_p, (), is_causal,
                              scale)[:3]  # fmt: skip


REFERENCES = {
    "aten._scaled_dot_product_efficient_attention": efficient,
    "aten._scaled_dot_product_efficient_attention_backward": efficient_backward,
    "aten._scaled_dot_product_flash_attention": flash,
    "aten._scaled_dot_product_flash_attention_backward": flash_backward,
}
