"""Losses."""

from __future__ import annotations

from typing import Any

import torch

from spmdir.checking.sample import Sample, f, positive, sample


def _loss(reduction: int, **more: Any) -> dict[str, Any]:
    return {"reduction": reduction, "ignore_index": -100, **more}


def samples() -> list[Sample]:
    logits, target = torch.log_softmax(f(5, 6), 1), torch.tensor([0, 5, 2, -100, 3])
    weight6 = positive(6)
    total = torch.tensor(4.0, dtype=torch.float64)
    return [
        *(sample("mse_loss", f(5, 4), f(5, 4), reduction=r) for r in (0, 1, 2)),
        sample("mse_loss_backward", f(5, 4), f(5, 4), f(5, 4), reduction=0),
        *(sample("mse_loss_backward", f(1).sum(), f(5, 4), f(5, 4), reduction=r) for r in (1, 2)),
        *(sample("nll_loss_forward", logits, target, w, **_loss(r)) for r in (0, 1, 2) for w in (None, weight6)),
        sample("nll_loss_backward", f(5), logits, target, weight6, total, **_loss(0)),
        sample("nll_loss_backward", f(1).sum(), logits, target, weight6, total, **_loss(1)),
        sample("nll_loss_backward", f(1).sum(), logits, target.abs() % 6, None, total, reduction=1, ignore_index=2),
        sample("nll_loss_forward", logits, target.abs() % 6, None, reduction=2, ignore_index=2),
        sample("nll_loss_forward", logits[0], target[0], None, **_loss(1)),
        *(sample("cross_entropy_loss", f(5, 6), target, weight6, reduction=r) for r in (0, 1, 2)),
        sample("cross_entropy_loss", f(5, 6), torch.softmax(f(5, 6), 1)),
    ]  # fmt: skip
