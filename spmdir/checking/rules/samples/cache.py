"""Ops of caches of attention."""

from __future__ import annotations

import torch

import spmdir.torch_interop.cache_ops
from spmdir.checking.rules.samples.sample import Sample, f

del spmdir


def samples() -> list[Sample]:
    """Return calls of the ops of caches, with padding, pages that are absent, and a sequence without tokens."""
    positions = torch.tensor([[0, 1, 2], [2, -1, -1], [-1, -1, -1], [3, 4, 5]])
    table = torch.tensor([[4, 1], [0, 9], [2, -1], [3, 6]])
    cache, rows = f(4, 6, 2, 4), f(4, 3, 2, 4)
    paged = f(8, 4, 2, 4)
    return [
        Sample("cache.write", (cache, rows, positions)),
        Sample("cache.write", (paged, rows, positions, table)),
        Sample("cache.write", (paged, rows, positions, table[:, :1])),
        Sample("cache.attend", (f(4, 3, 4, 4), paged, f(8, 4, 2, 6), positions, table[:, 1:])),
        Sample("cache.attend", (f(4, 3, 4, 4), cache, f(4, 6, 2, 6), positions)),
        Sample("cache.attend", (f(4, 3, 4, 4), paged, f(8, 4, 2, 6), positions, table), {"window": 2}),
    ]
