"""A small Llama whose attention says that it is causal, instead of making a mask."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spmdir import constrain


class Layer(nn.Module):
    """Rotary causal attention and a gated linear unit, each behind an RMS norm."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.qkv = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        normed = self.norms[0](x)
        q, k, v = (linear(normed).unflatten(-1, (self.heads, -1)).transpose(1, 2) for linear in self.qkv)
        attended = F.scaled_dot_product_attention(_turned(q, angles), _turned(k, angles), v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        normed = self.norms[1](x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


def _turned(x: Tensor, angles: Tensor) -> Tensor:
    left, right = x.chunk(2, -1)
    return x * angles.cos() + torch.cat([-right, left], -1) * angles.sin()


class CausalLlama(nn.Module):
    """Token ids → logits; the residual stream has the sharding `residual`."""

    def __init__(self, residual: str, layers: int = 2, width: int = 16, heads: int = 2, vocabulary: int = 32):
        super().__init__()
        self.residual, self.size = residual, width // heads
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = constrain(self.embedding(ids), self.residual)
        positions = torch.arange(ids.shape[1], dtype=x.dtype)
        rates = 10000.0 ** (-torch.arange(0, self.size, 2, dtype=x.dtype) / self.size)
        angles = torch.outer(positions, rates).repeat(1, 2)
        for layer in self.layers:
            x = constrain(layer(x, angles), self.residual)
        return self.head(x)


def loss(model: nn.Module, ids: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross entropy."""
    return F.cross_entropy(model(ids).flatten(0, 1), labels.flatten())
