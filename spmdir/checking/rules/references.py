"""What attention kernels without a CPU version give, in plain torch, where every rank can run it.

Backwards take the softmax from `logsumexp` as the kernels do, not anew, so that a rank with some of the keys gives the
gradients of these.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Scale = float | None


def _scores(query: Tensor, key: Tensor, bias: Tensor | None, causal: bool, scale: Scale) -> tuple[Tensor, Tensor]:
    """Return the scores of (batch, heads, positions, width) and fewer heads of keys, and the keys for each head."""
    key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    scores = scores if bias is None else scores + bias
    hidden = torch.ones(scores.shape[-2:]).triu(1).bool()
    return scores.masked_fill(hidden, float("-inf")) if causal else scores, key


def _attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, causal: bool, scale: Scale
) -> tuple[Tensor, Tensor]:
    scores, _ = _scores(query, key, bias, causal, scale)
    value = value.repeat_interleave(query.shape[1] // value.shape[1], 1)
    return torch.softmax(scores, -1) @ value, torch.logsumexp(scores, -1)


def _gradients(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, out: Tensor, logsumexp: Tensor,
    causal: bool, scale: Scale,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    scores, keys = _scores(query, key, bias, causal, scale)
    groups = query.shape[1] // key.shape[1]
    values = value.repeat_interleave(groups, 1)
    share = torch.exp(scores - logsumexp[..., : query.shape[2]].unsqueeze(-1))
    slope = share * (grad @ values.transpose(-1, -2) - (grad * out).sum(-1, keepdim=True))
    slope = slope * (query.shape[-1] ** -0.5 if scale is None else scale)

    def gathered(heads: Tensor) -> Tensor:
        return heads.unflatten(1, (-1, groups)).sum(2)

    return slope @ keys, gathered(slope.transpose(-1, -2) @ query), gathered(share.transpose(-1, -2) @ grad)


def _heads_last(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(tensor.transpose(1, 2) for tensor in tensors)


def _padded(total: Tensor) -> Tensor:
    return torch.nn.functional.pad(total, (0, -total.shape[-1] % 32), value=float("inf"))


def efficient(query: Tensor, key: Tensor, value: Tensor, attn_bias: Tensor | None, compute_log_sumexp: bool,
              dropout_p: float = 0.0, is_causal: bool = False, scale: Scale = None) -> Any:  # fmt: skip
    out, total = _attention(query, key, value, attn_bias, is_causal, scale)
    return out, _padded(total), torch.zeros(()), torch.zeros(())


def efficient_backward(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, attn_bias: Tensor | None,
                       out: Tensor, logsumexp: Tensor, philox_seed: Tensor, philox_offset: Tensor, dropout_p: float,
                       grad_input_mask: Any, is_causal: bool = False, scale: Scale = None) -> Any:  # fmt: skip
    return *_gradients(grad, query, key, value, attn_bias, out, logsumexp, is_causal, scale), None


def efficient_forward(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, cu_seqlens_q: None,
                      cu_seqlens_k: None, max_seqlen_q: int | None, max_seqlen_k: int | None, dropout_p: float,
                      custom_mask_type: int, compute_log_sumexp: bool = False, scale: Scale = None,
                      **rest: Any) -> Any:  # fmt: skip
    query, key, value = _heads_last(query, key, value)
    out, total = _attention(query, key, value, bias, custom_mask_type == 1, scale)
    return out.transpose(1, 2), _padded(total), torch.zeros(()), torch.zeros(()), None, None


def efficient_forward_backward(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None,
                               out: Tensor, cu_seqlens_q: None, cu_seqlens_k: None, max_seqlen_q: int,
                               max_seqlen_k: int, logsumexp: Tensor, dropout_p: float, philox_seed: Tensor,
                               philox_offset: Tensor, custom_mask_type: int, bias_requires_grad: bool,
                               scale: Scale = None, **rest: Any) -> Any:  # fmt: skip
    grad, query, key, value, out = _heads_last(grad, query, key, value, out)
    made = _gradients(grad, query, key, value, bias, out, logsumexp, custom_mask_type == 1, scale)
    return *_heads_last(*made), None


def flash(query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, is_causal: bool = False,
          return_debug_mask: bool = False, scale: Scale = None) -> Any:  # fmt: skip
    out, total = _attention(query, key, value, None, is_causal, scale)
    return out, total, None, None, None, None, torch.zeros(2), torch.zeros(()), torch.zeros(0)


def flash_backward(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor,
                   cum_seq_q: None, cum_seq_k: None, max_q: int, max_k: int, dropout_p: float, is_causal: bool,
                   philox_seed: Tensor, philox_offset: Tensor, scale: Scale = None) -> Any:  # fmt: skip
    return _gradients(grad, query, key, value, None, out, logsumexp, is_causal, scale)


def flash_forward(query: Tensor, key: Tensor, value: Tensor, cum_seq_q: None, cum_seq_k: None, max_q: int, max_k: int,
                  dropout_p: float, is_causal: bool, return_debug_mask: bool, scale: Scale = None,
                  **rest: Any) -> Any:  # fmt: skip
    query, key, value = _heads_last(query, key, value)
    out, total = _attention(query, key, value, None, is_causal, scale)
    return out.transpose(1, 2), total, torch.zeros(2), torch.zeros(()), torch.zeros(0)


def flash_forward_backward(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor,
                           cum_seq_q: None, cum_seq_k: None, max_q: int, max_k: int, dropout_p: float,
                           is_causal: bool, rng_state: Tensor, unused: Tensor, scale: Scale = None,
                           **rest: Any) -> Any:  # fmt: skip
    grad, query, key, value, out = _heads_last(grad, query, key, value, out)
    return _heads_last(*_gradients(grad, query, key, value, None, out, logsumexp, is_causal, scale))


def _fused(column: bool) -> Callable[..., Any]:
    def forward(query: Tensor, key: Tensor, value: Tensor, attn_bias: Tensor | None, *rest: Any,
                is_causal: bool = False, scale: Scale = None, **more: Any) -> Any:  # fmt: skip
        causal = rest[1 + column] if len(rest) > 1 + column else is_causal
        out, total = _attention(query, key, value, attn_bias, causal, scale)
        total = total.unsqueeze(-1) if column else total
        return out, total, None, None, None, None, torch.zeros(()), torch.zeros(()), None

    return forward


def cudnn_backward(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor,
                   philox_seed: Tensor, philox_offset: Tensor, attn_bias: Tensor | None, cum_seq_q: None,
                   cum_seq_k: None, max_q: int, max_k: int, dropout_p: float, is_causal: bool,
                   scale: Scale = None) -> Any:  # fmt: skip
    return _gradients(grad, query, key, value, attn_bias, out, logsumexp.squeeze(-1), is_causal, scale)


def overrideable_backward(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, attn_bias: Tensor | None,
                          grad_input_mask: Any, out: Tensor, logsumexp: Tensor, cum_seq_q: None, cum_seq_k: None,
                          max_q: int, max_k: int, dropout_p: float, is_causal: bool, philox_seed: Tensor,
                          philox_offset: Tensor, scale: Scale = None) -> Any:  # fmt: skip
    return *_gradients(grad, query, key, value, attn_bias, out, logsumexp, is_causal, scale), None


def product(self: Tensor, mat2: Tensor, out_dtype: torch.dtype) -> Tensor:
    return self.to(out_dtype) @ mat2.to(out_dtype)


def added_product(self: Tensor, mat1: Tensor, mat2: Tensor, out_dtype: torch.dtype) -> Tensor:
    return self.to(out_dtype) + product(mat1, mat2, out_dtype)


def scaled_grouped(self: Tensor, mat2: Tensor, scale_a: Tensor, scale_b: Tensor, offs: Tensor, bias: None,
                   scale_result: None, out_dtype: torch.dtype) -> Tensor:  # fmt: skip
    wide, groups = self.float() * scale_a[:, None], mat2.float() * scale_b[:, None]
    ends = [0, *offs.tolist()]
    parts = [wide[a:b] @ group for a, b, group in zip(ends, ends[1:], groups, strict=False)]
    return torch.cat(parts).to(out_dtype)


def int8_product(self: Tensor, mat2: Tensor, scales: Tensor) -> Tensor:
    """torch's kernel reads beyond small operands."""
    return (self.double() @ mat2.double().T * scales.double()).to(self.dtype)


REFERENCES: dict[str, Callable[..., Any]] = {
    "aten._weight_int8pack_mm": int8_product,
    **dict.fromkeys(("aten.mm.dtype", "aten.bmm.dtype"), product),
    **dict.fromkeys(("aten.addmm.dtype", "aten.baddbmm.dtype"), added_product),
    "aten._scaled_grouped_mm": scaled_grouped,
    "aten._scaled_dot_product_efficient_attention": efficient,
    "aten._scaled_dot_product_efficient_attention_backward": efficient_backward,
    "aten._efficient_attention_forward": efficient_forward,
    "aten._efficient_attention_backward": efficient_forward_backward,
    "aten._scaled_dot_product_flash_attention": flash,
    "aten._scaled_dot_product_flash_attention_backward": flash_backward,
    "aten._flash_attention_forward": flash_forward,
    "aten._flash_attention_backward": flash_forward_backward,
    "aten._scaled_dot_product_cudnn_attention": _fused(column=True),
    "aten._scaled_dot_product_cudnn_attention_backward": cudnn_backward,
    "aten._scaled_dot_product_fused_attention_overrideable": _fused(column=False),
    "aten._scaled_dot_product_fused_attention_overrideable_backward": overrideable_backward,
}
"""Op name → (arguments of its schema) → its results."""
