"""The ops of gradient scaling. The steps of optimizers are ops on each parameter."""

from __future__ import annotations

import torch

from spmdir.checking.rules.samples.sample import Sample, sample


def samples() -> list[Sample]:
    """Return calls of updates of optimizers."""
    scale, steps = torch.tensor(1024.0), torch.tensor(3, dtype=torch.int32)
    factors = {"scale_growth_factor": 2.0, "scale_backoff_factor": 0.5, "growth_interval": 4}
    return [
        sample("_amp_update_scale", scale, steps, torch.tensor(found_inf), **factors)  # type: ignore[arg-type]
        for found_inf in (0.0, 1.0)
    ]
