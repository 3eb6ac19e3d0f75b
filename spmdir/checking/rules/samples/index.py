"""Lookups and writes by index."""

from __future__ import annotations

from typing import Any

import torch

from spmdir.checking.rules.samples.sample import Sample, b, c, f, h, i, positive, sample

INDEX = ("index.Tensor", "_unsafe_index.Tensor")
REDUCTIONS = ("add", "multiply")
PUT = ("index_put", "_unsafe_index_put")


BAGS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("_embedding_bag", {"padding_idx": 1}),
    ("_embedding_bag_forward_only", {"padding_idx": -1}),
    ("embedding_bag", {}),
    ("embedding_bag.padding_idx", {"padding_idx": 3}),
)


def bag_backward(op: str, mode: int) -> Sample:
    """Return a call of a backward of `embedding_bag`; mode 0 is the sum, 1 the mean, 2 the maximum."""
    weight, indices, offsets = f(7, 4), i(7, 9), torch.tensor([0, 2, 5])
    _, bags, sizes, largest = torch.ops.aten._embedding_bag(weight, indices, offsets, False, mode)
    offsets_operand = [offsets] if op == "_embedding_bag_backward" else []
    arguments = {"sparse": False} if offsets_operand else {}
    if mode < 2:
        bags = torch.tensor([0, 0, 1, 1, 1, 2, 2, 2, 2])
    operands = (f(3, 4), indices, *offsets_operand, bags, sizes, largest)
    return sample(op, *operands, num_weights=7, scale_grad_by_freq=False, mode=mode, padding_idx=2, **arguments)


def samples() -> list[Sample]:
    """Return calls of ops that read and write by indices, and of their backward."""
    return [
        sample("embedding", f(7, 4), i(7, 5, 3)),
        sample("embedding", f(4, 5), i(4, 5)),
        sample("embedding_dense_backward", f(5, 3, 4), i(7, 5, 3), num_weights=7, padding_idx=2,
               scale_grad_by_freq=False),
        sample("embedding_dense_backward", f(5, 4), i(6, 5), num_weights=6, padding_idx=-1, scale_grad_by_freq=True),
        *(sample("gather", x, i(7, 5, 4), dim=1) for x in (f(5, 7), b(5, 7), c(5, 7), i(9, 5, 7))),
        sample("gather", f(5, 7), i(7, 3, 4), dim=-1),
        sample("gather", f(6, 4), i(6, 3, 4), dim=0),
        sample("gather", f(5, 7), i(7, 5, 1), dim=1),
        sample("gather", f(3).sum(), i(1, 1)[0], dim=0),
        *(sample("index_select", x, i(7, 4), dim=1) for x in (f(5, 7), b(5, 7), h(5, 7))),
        sample("index_select", f(6, 4), torch.tensor([5, 5, 0]), dim=0),
        sample("index_select", f(6, 4), i(6, 0), dim=0),
        sample("index_select", f(6, 4), torch.tensor(3), dim=0),
        *(sample(op, f(5, 7, 4), [None, i(7, 6)]) for op in INDEX),
        *(sample(op, f(5, 7, 4), [i(5, 3, 1), i(7, 5)]) for op in INDEX),
        *(sample(op, f(5, 7, 4), [i(5, 3), None, i(4, 3)]) for op in INDEX),
        *(sample(op, x, [i(12, 4, 2) - 6]) for op in INDEX for x in (f(6, 3), b(6, 3), i(9, 6, 4))),
        sample("index.Tensor", f(6, 3), [torch.tensor(-1)]),
        sample("index.Tensor", f(6, 3, 4), [None, torch.tensor(1), i(4, 3)]),
        sample("index.Tensor", f(6, 3), [None, i(3, 3).int() - 3]),
        sample("index.Tensor", f(6, 6), [torch.arange(6), torch.arange(6)]),
        sample("index.Tensor", f(5, 3), [i(5, 0)]),
        sample("_unsafe_masked_index", f(5, 6), b(4), [None, i(6, 4)], fill=0),
        sample("_unsafe_masked_index", f(5, 6), b(5, 4), [None, i(6, 4)], fill=2.0),
        sample("scatter.src", f(5, 7), torch.arange(4).repeat(5, 1), f(5, 4), dim=1),
        sample("scatter.src", f(6, 4), torch.randperm(6)[:3, None].repeat(1, 4), f(3, 4), dim=0),
        sample("scatter.src", f(6, 4), torch.randperm(6)[:3, None].repeat(1, 2), f(4, 3), dim=0),
        sample("scatter.src", b(6, 4), torch.randperm(6)[:3, None].repeat(1, 4), b(3, 4), dim=0),
        *(sample("scatter.value", f(6, 4), i(6, 3, 4), dim=0, value=value) for value in (0, 2.5)),
        sample("scatter.value", f(5, 7), i(7, 5, 4), dim=1, value=2),
        sample("scatter.value", f(3).sum(), i(1, 1)[0], dim=0, value=2),
        *(sample("scatter.reduce", f(5, 6), i(6, 5, 4), f(5, 4), dim=1, reduce=reduce) for reduce in REDUCTIONS),
        *(sample("scatter.value_reduce", f(6, 4), i(6, 3, 4), dim=0, value=3, reduce=reduce) for reduce in REDUCTIONS),
        sample("scatter_add", f(5, 7), i(7, 5, 4), f(5, 4), dim=1),
        sample("scatter_add", f(5, 7), i(7, 5, 4), f(6, 5), dim=1),
        sample("scatter_add", f(6, 4), i(6, 9, 4), f(9, 4), dim=0),
        *(
            sample("scatter_reduce.two", f(6, 4), i(6, 9, 4), f(9, 4), dim=0, reduce=reduce, include_self=include_self)
            for reduce in ("sum", "prod", "mean", "amax", "amin")
            for include_self in (True, False)
        ),
        sample("scatter_reduce.two", i(9, 5, 7), i(7, 5, 4), i(9, 5, 4), dim=-1, reduce="amax"),
        sample("index_add", f(5, 7), i(7, 4), f(5, 4), dim=1, alpha=2),
        sample("index_add", f(6, 3), i(6, 9), f(9, 3), dim=0),
        sample("index_copy", f(5, 6), torch.randperm(6)[:4], f(5, 4), dim=1),
        sample("index_copy", f(7, 4), torch.randperm(7)[:3], f(3, 4), dim=0),
        *(
            sample("index_reduce", positive(6, 4), i(6, 5), positive(5, 4), dim=0, reduce=reduce,
                   include_self=include_self)
            for reduce in ("prod", "mean", "amax", "amin")
            for include_self in (True, False)
        ),
        *(sample("index_fill.int_Scalar", f(5, 6), i(12, 3) - 6, dim=1, value=value) for value in (0, 2.5)),
        sample("index_fill.int_Scalar", b(7, 4), i(7, 3), dim=0, value=1),
        sample("index_fill.int_Tensor", f(6, 4), i(6, 3), f(1).sum(), dim=0),
        *(sample(op, f(5, 7), [None, torch.tensor([0, 3, 2])], f(5, 3)) for op in PUT),
        *(sample(op, f(6, 4, 3), [torch.tensor([-1, 3, 2])], f(3, 1, 3)) for op in PUT),
        *(sample(op, f(6, 4, 3), [torch.tensor([5, 3, 2]), torch.tensor([-1, 3, 0])], f(3)) for op in PUT),
        *(sample(op, f(6, 4, 3), [torch.tensor([5, -3, 2]), None, torch.tensor([1, 2, 0])], f(1)) for op in PUT),
        *(sample(op, f(5, 7), [i(5, 4)], f(7), accumulate=True) for op in PUT),
        *(sample(op, f(6, 4), [i(12, 9) - 6], f(9, 4), accumulate=True) for op in PUT),
        *(sample(op, f(5, 7), [None, torch.tensor([0, 3, 2])], f(1), accumulate=True) for op in PUT),
        *(sample(op, b(6, 4), [torch.tensor([5, 3, 2])], b(3, 4)) for op in PUT),
        sample("_unsafe_masked_index_put_accumulate", f(5, 6), b(5, 4), [None, i(6, 4)], f(5, 4)),
        sample("take", f(5, 4), i(20, 3, 2)),
        sample("put", f(5, 4), torch.tensor([3, -1, 7]), f(3)),
        sample("put", f(5, 4), i(20, 4), f(4), accumulate=True),
        sample("masked_scatter", f(5, 4), b(5, 4), f(20)),
        sample("masked_scatter", f(5, 4), b(4), f(6, 4)),
        sample("masked_scatter_backward", f(5, 4), b(5, 4), sizes=(4, 5)),
        sample("one_hot", i(6, 5, 4), num_classes=6),
        *(
            sample(op, f(7, 4), i(7, 9), torch.tensor([0, 2, 2, 5]), scale_grad_by_freq=False, mode=mode, sparse=False,
                   include_last_offset=last, **arguments)
            for op, arguments in BAGS
            for mode in (0, 1, 2)
            for last in (True, False)
        ),
        sample("_embedding_bag", f(7, 6), i(7, 4), torch.tensor([0, 2]), f(4), mode=0),
        *(bag_backward(f"_embedding_bag_{op}backward", mode) for op in ("", "dense_") for mode in (0, 1, 2)),
        sample("_embedding_bag_per_sample_weights_backward", f(2, 6), f(7, 6), i(7, 4), torch.tensor([0, 2]),
               torch.tensor([0, 0, 1, 1]), mode=0),
        sample("nonzero", b(5, 4)),
        sample("nonzero_static", b(5, 4), size=7),
        sample("masked_select", f(5, 4), b(5, 4)),
        sample("repeat_interleave.self_Tensor", f(5, 4), torch.tensor([1, 0, 2, 1]), dim=1),
        sample("repeat_interleave.self_Tensor", f(2, 2), torch.tensor([1, 0, 2, 1])),
        sample("repeat_interleave.Tensor", torch.tensor([1, 0, 2, 1])),
        *(sample(op, row=5, col=4) for op in ("tril_indices", "triu_indices")),
        sample("nonzero", i(2, 5, 4)),
    ]  # fmt: skip
