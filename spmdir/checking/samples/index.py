"""Tables looked up by number."""

from __future__ import annotations

import torch

from spmdir.checking.sample import Sample, f, i, sample


def samples() -> list[Sample]:
    return [
        sample("embedding", f(7, 4), i(7, 5, 3)),
        sample("embedding", f(4, 5), i(4, 5)),
        sample("embedding_dense_backward", f(5, 3, 4), i(7, 5, 3), num_weights=7, padding_idx=2,
               scale_grad_by_freq=False),
        sample("embedding_dense_backward", f(5, 4), i(6, 5), num_weights=6, padding_idx=-1, scale_grad_by_freq=True),
        sample("gather", f(5, 7), i(7, 5, 4), dim=1),
        sample("gather", f(5, 7), i(7, 3, 4), dim=-1),
        sample("gather", f(5, 7), i(7, 5, 1), dim=1),
        sample("scatter.src", f(5, 7), torch.arange(4).repeat(5, 1), f(5, 4), dim=1),
        sample("scatter.value", f(5, 7), i(7, 5, 4), dim=1, value=2),
        sample("scatter_add", f(5, 7), i(7, 5, 4), f(5, 4), dim=1),
        sample("scatter_add", f(5, 7), i(7, 5, 4), f(6, 5), dim=1),
        sample("index_select", f(5, 7), i(7, 4), dim=1),
        sample("index_add", f(5, 7), i(7, 4), f(5, 4), dim=1, alpha=2),
        sample("index.Tensor", f(5, 7, 4), [None, i(7, 6)]),
        sample("index.Tensor", f(5, 7, 4), [i(5, 3, 1), i(7, 5)]),
        sample("index.Tensor", f(5, 7, 4), [i(5, 3), None, i(4, 3)]),
        sample("index_put", f(5, 7), [None, torch.tensor([0, 3, 2])], f(5, 3)),
        sample("index_put", f(5, 7), [i(5, 4)], f(7), accumulate=True),
        sample("_unsafe_index_put", f(5, 7), [None, torch.tensor([0, 3, 2])], f(1), accumulate=True),
        sample("_unsafe_index_put", f(5, 7), [None, torch.tensor([0, 3, 2])], f(3)),
        sample("one_hot", i(6, 5, 4), num_classes=6),
        sample("nonzero", i(2, 5, 4)),
    ]  # fmt: skip
