"""Maxima, sorting, cumulative ops, and search in sorted sequences."""

from __future__ import annotations

import torch

from spmdir.checking.rules.samples.sample import Sample, b, f, i, sample

LARGEST = ("max.dim", "min.dim", "argmax", "argmin")


def sorted_values(*shape: int) -> torch.Tensor:
    """Return random numbers, sorted along the last dimension."""
    return f(*shape).sort(-1).values


def with_nans(*shape: int) -> torch.Tensor:
    """Return random numbers and NaNs."""
    return torch.where(torch.rand(shape) > 0.6, float("nan"), f(*shape))


def samples() -> list[Sample]:
    """Return calls of ops that depend on the order of elements: extrema, sorts, cumulative sums, searches."""
    return [
        *(sample(op, x, dim=d) for op in LARGEST for d in (0, -1) for x in (f(6, 4), with_nans(6, 4), i(3, 5, 6))),
        *(sample(op, f(4, 6, 3), dim=1, keepdim=True) for op in LARGEST),
        *(sample(op, f(4, 1), dim=1) for op in LARGEST),
        *(sample(op, b(6, 4), dim=0) for op in ("max.dim", "min.dim")),
        *(sample(op, x) for op in ("argmax", "argmin") for x in (f(6, 4), i(3, 5, 4), with_nans(6))),
        sample("argmax", f(5, 6), dim=None, keepdim=True),
        *(sample(op, f(5, 4), dim=1) for op in ("sort", "argsort", "cumsum", "cumprod", "logcumsumexp")),
        *(sample(op, f(5, 4), dim=0) for op in ("cummax", "cummin")),
        sample("cumsum", i(9, 6, 4), dim=0),
        *(sample(op, b(6, 4), dim=0) for op in ("cumsum", "cumprod")),
        *(sample(op, i(3, 5, 4), stable=True, dim=0) for op in ("sort.stable", "argsort.stable")),
        sample("msort", f(5, 4)),
        sample("topk", f(5, 4), k=2, dim=1),
        sample("topk", f(5, 4), k=4),
        sample("kthvalue", f(5, 4), k=2, dim=1),
        sample("kthvalue", f(5, 4), k=3, dim=0, keepdim=True),
        *(sample(op, f(5, 4)) for op in ("median", "nanmedian")),
        *(
            sample(f"{op}.dim", f(5, 4), dim=1, keepdim=keep)
            for op in ("median", "nanmedian")
            for keep in (True, False)
        ),
        sample("mode", i(3, 5, 4), dim=1),
        *(
            sample("searchsorted.Tensor", x, y, right=right, out_int32=small)
            for x, y in ((sorted_values(6), f(5, 4)), (sorted_values(5, 7), f(5, 4)))
            for right in (True, False)
            for small in (True, False)
        ),
        sample("searchsorted.Tensor", sorted_values(3, 4), f(3, 5), torch.arange(4).repeat(3, 1)),
        *(sample("searchsorted.Scalar", sorted_values(7), self=0.2, out_int32=small) for small in (True, False)),
        *(
            sample("bucketize.Tensor", f(5, 4), sorted_values(n), out_int32=small)
            for n in (6, 1)
            for small in (True, False)
        ),
        *(sample("bucketize.Scalar", sorted_values(7), self=0.2, out_int32=small) for small in (True, False)),
        *(sample("isin.Tensor_Tensor", i(9, 5, 4), i(9, 6), invert=invert) for invert in (True, False)),
        sample("isin.Tensor_Scalar", i(3, 5, 4), test_element=2),
        *(sample("isin.Scalar_Tensor", i(3, 5, 4), element=2, invert=invert) for invert in (True, False)),
        sample("_unique", i(3, 5, 4)),
        *(sample(op, i(3, 5, 4), return_inverse=True) for op in ("_unique2", "unique_consecutive")),
        sample("unique_dim", i(3, 5, 4), dim=1),
        sample("bincount", i(5, 9)),
        sample("bincount", i(5, 9), f(9), minlength=4),
    ]
