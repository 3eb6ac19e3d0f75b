"""Attention whose queries, keys and values come from one projection, its weight sharded by interleaved parts."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

import spmdir
from spmdir.dialects import ir
from spmdir.dialects.collectives import Collective

SHARDINGS = {"qkv.weight": "tp: Strided(0, 3)", "qkv.bias": "tp: Strided(0, 3)", "out.weight": "tp: S(1)"}


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, by: str):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.by = heads, by

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        fused = self.qkv(x)
        parts = fused.chunk(3, -1) if self.by == "chunk" else fused.split(width, -1)
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        made = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(made.transpose(1, 2).reshape(batch, length, width))


@pytest.mark.parametrize("by", ["chunk", "split"])
def test_a_training_step_sends_one_partial_sum(by: str):
    torch.manual_seed(0)
    x, y = torch.randn(2, 6, 16, dtype=torch.float64), torch.randn(2, 6, 16, dtype=torch.float64)
    model = Attention(16, 4, by).double()
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    step, state = spmdir.training_step(model, lambda m, x, y: ((m(x) - y) ** 2).mean(), optimizer)
    traced = make_fx(step)(state, x, y)
    module = spmdir.import_fx(traced, spmdir.Mesh({"tp": 2}), SHARDINGS)
    found = spmdir.simulate(module, pytree.tree_leaves((state, x, y)))
    for one, right in zip(found, pytree.tree_leaves(step(state, x, y)), strict=True):
        torch.testing.assert_close(one, right, rtol=1e-12, atol=1e-12)
    lowered = spmdir.run_passes(module, "propagate,insert-reshard,lower-reshard")
    sent = [op.name for op in ir.main_function(lowered).body.block.ops if isinstance(op, Collective)]
    sent = [name for name in sent if name not in ("spmd.slice", "spmd.partition", "spmd.rearrange")]  # local
    assert sent == ["spmd.all_reduce"]
