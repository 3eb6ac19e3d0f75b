"""Implement ops without a usable CPU kernel in plain torch: attention kernels of CUDA, and some matrix products.

Backward functions compute the softmax from `logsumexp`, as the kernels do. Therefore a rank with some of the keys
computes the gradients of these keys.

The public functions have the parameters and results of the ops that they implement, see `REFERENCES`. Results without a
meaning on the CPU, such as the state of a random generator, are zeros or None.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Scale = float | None


def _scores(query: Tensor, key: Tensor, bias: Tensor | None, causal: bool, scale: Scale) -> tuple[Tensor, Tensor]:
    """Return the scores [batch, heads, queries, keys], and the keys repeated for each head of a group.

    `scale` multiplies the products of queries and keys; by default 1 / sqrt(features). With `causal`, the scores of
    later keys are -inf.
    """
    key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    scores = scores if bias is None else scores + bias
    is_later_key = torch.ones(scores.shape[-2:]).triu(1).bool()
    return scores.masked_fill(is_later_key, float("-inf")) if causal else scores, key


def _attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, causal: bool, scale: Scale
) -> tuple[Tensor, Tensor]:
    """Return the output and the logsumexp of the scores."""
    scores, _ = _scores(query, key, bias, causal, scale)
    value = value.repeat_interleave(query.shape[1] // value.shape[1], 1)
    return torch.softmax(scores, -1) @ value, torch.logsumexp(scores, -1)


def _gradients(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, out: Tensor, logsumexp: Tensor,
    causal: bool, scale: Scale,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of query, key and value, as in FlashAttention-2 (https://arxiv.org/abs/2307.08691).

    With P = softmax(S) and O = P V: dV = Pᵀ dO, dS = P * (dO Vᵀ - rowsum(dO * O)), dQ = dS K, dK = dSᵀ Q.
    """
    scores, keys = _scores(query, key, bias, causal, scale)
    group_size = query.shape[1] // key.shape[1]
    values = value.repeat_interleave(group_size, 1)
    # Memory-efficient kernels pad logsumexp, see `_pad`.
    softmax = torch.exp(scores - logsumexp[..., : query.shape[2]].unsqueeze(-1))
    grad_scores = softmax * (grad @ values.transpose(-1, -2) - (grad * out).sum(-1, keepdim=True))
    grad_scores = grad_scores * (query.shape[-1] ** -0.5 if scale is None else scale)

    def sum_groups(heads: Tensor) -> Tensor:
        """Add the gradients of the heads that share a key and a value."""
        return heads.unflatten(1, (-1, group_size)).sum(2)

    grad_key = sum_groups(grad_scores.transpose(-1, -2) @ query)
    return grad_scores @ keys, grad_key, sum_groups(softmax.transpose(-1, -2) @ grad)


def _swap_heads_and_positions(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return tensors [batch, positions, heads, features] as [batch, heads, positions, features], or the reverse."""
    return tuple(tensor.transpose(1, 2) for tensor in tensors)


def _pad(logsumexp: Tensor) -> Tensor:
    """Return `logsumexp` padded to a multiple of 32 queries, as memory-efficient kernels return it."""
    return torch.nn.functional.pad(logsumexp, (0, -logsumexp.shape[-1] % 32), value=float("inf"))


def efficient(query: Tensor, key: Tensor, value: Tensor, attn_bias: Tensor | None, compute_log_sumexp: bool,
              dropout_p: float = 0.0, is_causal: bool = False, scale: Scale = None) -> Any:  # fmt: skip
    """Compute `_scaled_dot_product_efficient_attention`."""
    out, logsumexp = _attention(query, key, value, attn_bias, is_causal, scale)
    return out, _pad(logsumexp), torch.zeros(()), torch.zeros(())


def efficient_backward(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, attn_bias: Tensor | None,
                       out: Tensor, logsumexp: Tensor, philox_seed: Tensor, philox_offset: Tensor, dropout_p: float,
                       grad_input_mask: Any, is_causal: bool = False, scale: Scale = None) -> Any:  # fmt: skip
    """Compute `_scaled_dot_product_efficient_attention_backward`, without the gradient of the bias."""
    return *_gradients(grad, query, key, value, attn_bias, out, logsumexp, is_causal, scale), None


def efficient_forward(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, cu_seqlens_q: None,
                      cu_seqlens_k: None, max_seqlen_q: int | None, max_seqlen_k: int | None, dropout_p: float,
                      custom_mask_type: int, compute_log_sumexp: bool = False, scale: Scale = None,
                      **options: Any) -> Any:  # fmt: skip
    """Compute `_efficient_attention_forward`, whose tensors are [batch, positions, heads, features].

    The mask type 1 is causal.
    """
    query, key, value = _swap_heads_and_positions(query, key, value)
    out, logsumexp = _attention(query, key, value, bias, custom_mask_type == 1, scale)
    return out.transpose(1, 2), _pad(logsumexp), torch.zeros(()), torch.zeros(()), None, None


def efficient_forward_backward(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None,
                               out: Tensor, cu_seqlens_q: None, cu_seqlens_k: None, max_seqlen_q: int,
                               max_seqlen_k: int, logsumexp: Tensor, dropout_p: float, philox_seed: Tensor,
                               philox_offset: Tensor, custom_mask_type: int, bias_requires_grad: bool,
                               scale: Scale = None, **options: Any) -> Any:  # fmt: skip
    """Compute `_efficient_attention_backward`, without the gradient of the bias. The mask type 1 is causal."""
    grad, query, key, value, out = _swap_heads_and_positions(grad, query, key, value, out)
    gradients = _gradients(grad, query, key, value, bias, out, logsumexp, custom_mask_type == 1, scale)
    return *_swap_heads_and_positions(*gradients), None


def flash(query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, is_causal: bool = False,
          return_debug_mask: bool = False, scale: Scale = None) -> Any:  # fmt: skip
    """Compute `_scaled_dot_product_flash_attention`."""
    out, logsumexp = _attention(query, key, value, None, is_causal, scale)
    return out, logsumexp, None, None, None, None, torch.zeros(2), torch.zeros(()), torch.zeros(0)


def flash_backward(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor,
                   cum_seq_q: None, cum_seq_k: None, max_q: int, max_k: int, dropout_p: float, is_causal: bool,
                   philox_seed: Tensor, philox_offset: Tensor, scale: Scale = None) -> Any:  # fmt: skip
    """Compute `_scaled_dot_product_flash_attention_backward`."""
    return _gradients(grad, query, key, value, None, out, logsumexp, is_causal, scale)


def flash_forward(query: Tensor, key: Tensor, value: Tensor, cum_seq_q: None, cum_seq_k: None, max_q: int, max_k: int,
                  dropout_p: float, is_causal: bool, return_debug_mask: bool, scale: Scale = None,
                  **options: Any) -> Any:  # fmt: skip
    """Compute `_flash_attention_forward`, whose tensors are [batch, positions, heads, features]."""
    query, key, value = _swap_heads_and_positions(query, key, value)
    out, logsumexp = _attention(query, key, value, None, is_causal, scale)
    return out.transpose(1, 2), logsumexp, torch.zeros(2), torch.zeros(()), torch.zeros(0)


def flash_forward_backward(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor,
                           cum_seq_q: None, cum_seq_k: None, max_q: int, max_k: int, dropout_p: float,
                           is_causal: bool, rng_state: Tensor, unused: Tensor, scale: Scale = None,
                           **options: Any) -> Any:  # fmt: skip
    """Compute `_flash_attention_backward`."""
    grad, query, key, value, out = _swap_heads_and_positions(grad, query, key, value, out)
    return _swap_heads_and_positions(*_gradients(grad, query, key, value, None, out, logsumexp, is_causal, scale))


def _fused_forward(is_cudnn: bool) -> Callable[..., Any]:
    """Return the forward function of the cuDNN kernel or of the overrideable kernel.

    The cuDNN kernel has one more parameter before `is_causal`, and returns logsumexp as a column.
    """

    def forward(query: Tensor, key: Tensor, value: Tensor, attn_bias: Tensor | None, *positional: Any,
                is_causal: bool = False, scale: Scale = None, **options: Any) -> Any:  # fmt: skip
        """Compute the output and logsumexp of attention; the further results of the kernel are not compared."""
        # `positional` is (compute_log_sumexp, dropout_p, is_causal, …) for cuDNN, else (dropout_p, is_causal, …).
        index = 1 + is_cudnn
        causal = positional[index] if len(positional) > index else is_causal
        out, logsumexp = _attention(query, key, value, attn_bias, causal, scale)
        logsumexp = logsumexp.unsqueeze(-1) if is_cudnn else logsumexp
        return out, logsumexp, None, None, None, None, torch.zeros(()), torch.zeros(()), None

    return forward


def cudnn_backward(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor,
                   philox_seed: Tensor, philox_offset: Tensor, attn_bias: Tensor | None, cum_seq_q: None,
                   cum_seq_k: None, max_q: int, max_k: int, dropout_p: float, is_causal: bool,
                   scale: Scale = None) -> Any:  # fmt: skip
    """Compute `_scaled_dot_product_cudnn_attention_backward`, whose logsumexp is a column."""
    return _gradients(grad, query, key, value, attn_bias, out, logsumexp.squeeze(-1), is_causal, scale)


def overrideable_backward(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, attn_bias: Tensor | None,
                          grad_input_mask: Any, out: Tensor, logsumexp: Tensor, cum_seq_q: None, cum_seq_k: None,
                          max_q: int, max_k: int, dropout_p: float, is_causal: bool, philox_seed: Tensor,
                          philox_offset: Tensor, scale: Scale = None) -> Any:  # fmt: skip
    """Compute `_scaled_dot_product_fused_attention_overrideable_backward`, without the gradient of the bias."""
    return *_gradients(grad, query, key, value, attn_bias, out, logsumexp, is_causal, scale), None


def product(self: Tensor, mat2: Tensor, out_dtype: torch.dtype) -> Tensor:
    """Return the product of matrices that are converted to `out_dtype` first."""
    return self.to(out_dtype) @ mat2.to(out_dtype)


def added_product(self: Tensor, mat1: Tensor, mat2: Tensor, out_dtype: torch.dtype) -> Tensor:
    """Return `self` plus the product of two matrices, all converted to `out_dtype` first."""
    return self.to(out_dtype) + product(mat1, mat2, out_dtype)


def scaled_grouped(self: Tensor, mat2: Tensor, scale_a: Tensor, scale_b: Tensor, offs: Tensor, bias: None,
                   scale_result: None, out_dtype: torch.dtype) -> Tensor:  # fmt: skip
    """Return the product of each group of rows with its matrix; group n ends at row `offs[n]`."""
    rows, matrices = self.float() * scale_a[:, None], mat2.float() * scale_b[:, None]
    bounds = [0, *offs.tolist()]
    products = [rows[start:end] @ matrix for start, end, matrix in zip(bounds, bounds[1:], matrices, strict=False)]
    return torch.cat(products).to(out_dtype)


def int8_product(self: Tensor, mat2: Tensor, scales: Tensor) -> Tensor:
    """Return the scaled product `self @ mat2.T`. Torch's own kernel reads out of bounds of small operands."""
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
    "aten._scaled_dot_product_cudnn_attention": _fused_forward(is_cudnn=True),
    "aten._scaled_dot_product_cudnn_attention_backward": cudnn_backward,
    "aten._scaled_dot_product_fused_attention_overrideable": _fused_forward(is_cudnn=False),
    "aten._scaled_dot_product_fused_attention_overrideable_backward": overrideable_backward,
}
"""Name of an op → function from its arguments to its results."""
