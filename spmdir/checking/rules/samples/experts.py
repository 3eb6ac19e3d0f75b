"""Ops of a mixture of experts."""

from __future__ import annotations

import torch

import spmdir.torch_interop.expert_ops
from spmdir.checking.rules.samples.sample import Sample, f

del spmdir


def samples() -> list[Sample]:
    """Return calls of the ops of experts. Their rules are checked on these calls."""
    ids = torch.tensor([[0, 2], [3, 0], [2, 3], [0, 3]])  # no token has expert 1
    order, counts, arrivals = torch.ops.experts.route(ids, 4)
    table = torch.tensor([[1, 2, 0], [3, 0, 2]])  # [source, expert], the number of rows
    return [
        Sample("experts.route", (ids,), {"experts": 4}),
        Sample("experts.sort_rows", (f(4, 2, 6), order)),
        Sample("experts.unsort_rows", (f(8, 6), order, ids)),
        Sample("experts.regroup", (f(8, 6), counts, arrivals)),
        Sample("experts.from_sources", (f(8, 6), table)),
        Sample("experts.to_sources", (f(8, 6), table)),
        Sample("experts.regroup", (f(8, 6), counts, arrivals), {"capacity": 4}),
        Sample("experts.pad_rows", (f(8, 6), counts), {"capacity": 4}),
        Sample("experts.unpad_rows", (f(16, 6), counts), {"capacity": 4, "size": 8}),
        Sample("experts.from_slots", (f(24, 6), table)),
        Sample("experts.to_slots", (f(24, 6), table), {"size": 24}),
        Sample("experts.clear", (f(8, 6), counts)),
        Sample("experts.clear_slots", (f(24, 6), table)),
        Sample("experts.slots_mm", (f(8, 6), f(4, 6, 10))),
        Sample("experts.slots_outer", (f(8, 6), f(8, 10)), {"experts": 4}),
        Sample("experts.grouped_mm", (f(8, 6), f(4, 6, 10), counts)),
        Sample("experts.grouped_mm", (f(8, 4), f(2, 4, 6), counts), {"first": 1}),
        Sample("experts.grouped_outer", (f(8, 6), f(8, 10), counts), {"experts": 4}),
        Sample("experts.grouped_outer", (f(8, 4), f(8, 6), counts), {"experts": 2, "first": 2}),
    ]
