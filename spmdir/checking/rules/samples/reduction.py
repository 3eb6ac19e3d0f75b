"""Reductions."""

from __future__ import annotations

import torch

from spmdir.checking.rules.samples.sample import Sample, b, c, f, h, i, sample
from spmdir.core.dtype import F64

INF = float("inf")


def _holes(*shape: int) -> torch.Tensor:
    """Return a tensor with NaN in about half of its elements."""
    return f(*shape).where(b(*shape), float("nan"))


def samples() -> list[Sample]:
    """Return calls of reductions."""
    return [
        sample("histc", f(5, 4), bins=6, min=-1, max=1),
        sample("histc", f(5, 4), bins=3),
        *(sample(op, f(5, 4)) for op in ("sum", "mean", "max", "min", "prod")),
        sample("sum", i(9, 5, 4)),
        sample("sum", b(5, 4)),
        sample("mean", h(4, 4)),
        sample("any", b(5, 4)),
        sample("all", b(5, 4)),
        sample("any", f(5, 4)),
        *(
            sample(op, f(5, 4, 3), dim=dim, keepdim=keep)
            for op in ("sum.dim_IntList", "mean.dim", "amax", "amin", "linalg_vector_norm", "logsumexp")
            for dim, keep in (((0, -1), True), ((1,), False))
        ),
        sample("logsumexp", torch.full((4, 3), float("-inf"), dtype=torch.float64), dim=(0,)),
        sample("mean.dim", f(5, 4), dim=None),
        sample("mean.dim", h(5, 4), dim=(0,), dtype=F64),
        sample("sum.dim_IntList", b(5, 4), dim=()),
        sample("linalg_vector_norm", f(5, 4), ord=1, dim=(0,)),
        *(sample(op, c(5, 4), dim=(0,)) for op in ("linalg_vector_norm", "var.correction", "logsumexp")),
        *(sample(op, f(5, 4), dim=(1,), correction=0) for op in ("var.correction", "std.correction")),
        sample("var.correction", f(5, 4), dim=(0,), keepdim=True),
        sample("var.correction", f(5, 4), dim=(0,), correction=5),
        *(sample(f"{op}.correction", f(5, 4), dim=(1,)) for op in ("var_mean", "std_mean")),
        *(sample(f"{op}.correction", f(5, 4, 3), dim=(0, 2), keepdim=True) for op in ("var_mean", "std_mean", "std")),
        *(sample(f"{op}.correction", f(5, 4)) for op in ("var", "std")),
        *(sample("var.correction", x, dim=(0,)) for x in (h(6, 4), torch.full((6, 4), 3.0).double())),
        *(sample(f"{op}.dim", f(5, 4), dim=(1,), unbiased=unbiased) for op in ("var", "std")
          for unbiased in (True, False)),
        *(sample(op, f(5, 4), unbiased=unbiased) for op in ("var", "std") for unbiased in (True, False)),
        *(sample(op, x) for op in ("nansum", "nanmean", "count_nonzero") for x in (f(5, 4), _holes(6, 4))),
        *(sample(op, _holes(5, 6), dim=dim) for op in ("nansum", "nanmean", "count_nonzero.dim_IntList")
          for dim in ((0,), (0, 1))),
        *(sample("count_nonzero", i(2, 5, 4), dim=dim) for dim in (1, None)),
        sample("count_nonzero", b(5, 4), dim=0),
        *(sample("aminmax", f(5, 4), dim=dim, keepdim=keep) for dim in (0, -1) for keep in (True, False)),
        sample("aminmax", f(5, 4)),
        *(sample("linalg_vector_norm", x, ord=order, dim=dim, keepdim=keep) for order in (0, 1, 2, 3.5, -1, INF, -INF)
          for x, dim, keep in ((f(5, 4), (0,), False), (c(6, 4), None, True))),
        sample("linalg_vector_norm", h(5, 4), dim=(0,), dtype=F64),
        sample("linalg_vector_norm", h(4, 4), ord=1),
        *(sample("norm.Scalar", f(5, 4), p=p) for p in (2, 1, INF)),
        sample("norm.ScalarOpt_dtype", h(5, 4), p=2, dtype=F64),
        sample("norm.ScalarOpt_dim", f(5, 4), p=None, dim=(0,)),
        sample("norm.ScalarOpt_dim", f(5, 4), p=3, dim=(0, 1), keepdim=True),
        sample("norm.ScalarOpt_dim_dtype", h(5, 4), p=1, dim=(1,), keepdim=True, dtype=F64),
        *(sample("dist", f(5, 4), f(4), p=p) for p in (2, 1, INF)),
        sample("renorm", f(5, 4), p=2, dim=0, maxnorm=1),
        *(sample("trace", x) for x in (f(5, 5), f(4, 7), f(7, 4), i(9, 6, 6), f(6, 2))),
        sample("prod.dim_int", f(5, 4), dim=1),
        *(sample(f"{op}.dim", b(5, 4), dim=0, keepdim=True) for op in ("any", "all")),
        *(sample(f"{op}.dims", b(5, 4), dim=(0, 1)) for op in ("any", "all")),
    ]  # fmt: skip
