"""Reductions and orders."""

from __future__ import annotations

import torch

from spmdir.checking.sample import F64, Sample, b, c, f, h, i, sample


def samples() -> list[Sample]:
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
        sample("var_mean.correction", f(5, 4), dim=(1,)),
        sample("prod.dim_int", f(5, 4), dim=1),
        *(sample(f"{op}.dim", b(5, 4), dim=0, keepdim=True) for op in ("any", "all")),
        *(sample(f"{op}.dims", b(5, 4), dim=(0, 1)) for op in ("any", "all")),
    ]  # fmt: skip
