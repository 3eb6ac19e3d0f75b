"""Ops that other libraries register with torch, if the library is installed."""

from __future__ import annotations

from importlib.util import find_spec

import torch

from spmdir.checking.rules.samples.sample import Sample, f


def samples() -> list[Sample]:
    """Return calls of the ops of `transformers`; none if it is not installed."""
    if find_spec("transformers") is None:
        return []
    import transformers.integrations.moe  # registers its ops

    del transformers
    ends = torch.tensor([2, 2, 5, 7])
    return [
        Sample("transformers.grouped_mm_fallback", (f(7, 4), f(4, 4, 6), ends)),
        Sample("transformers.grouped_mm_fallback", (f(7, 4), f(3, 4, 5), torch.tensor([0, 3, 6]))),
        Sample("transformers.grouped_mm_fallback_backward", (f(7, 4), f(4, 4, 6), ends, f(7, 6))),
        Sample("transformers.grouped_mm_fallback_backward", (f(7, 4), f(3, 4, 5), torch.tensor([0, 3, 6]), f(7, 5))),
    ]
