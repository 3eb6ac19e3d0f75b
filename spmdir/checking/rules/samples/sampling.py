"""Ops that choose the next token of a sequence."""

from __future__ import annotations

import torch

import spmdir.torch_interop.sampling_ops
from spmdir.checking.rules.samples.sample import Sample, f, i

del spmdir


def samples() -> list[Sample]:
    """Return calls for a greedy sequence, a drawn one, and two that are drawn from the largest logits."""
    logits, tokens = f(4, 9).float(), torch.arange(9)
    settings = (
        torch.tensor([0.0, 1.0, 0.5, 2.0]),
        torch.tensor([0, 0, 3, 0]),
        torch.tensor([1.0, 1.0, 0.9, 0.6]),
        i(100, 4),
        torch.tensor([[3], [0], [7], [2]]),
    )
    values = torch.cat([logits.logsumexp(1, keepdim=True), logits[:, :1], logits.sort(1, descending=True)[0]], 1)
    return [
        Sample("sampling.draw", (logits, tokens, *settings), {"candidates": 4}),
        Sample("sampling.choose", (values, i(9, 4, 11), *settings)),
    ]
