"""Matrix products."""

from __future__ import annotations

import torch

from spmdir.checking.rules.samples.sample import Sample, c, f, h, i, positive, sample
from spmdir.core.dtype import F32


def _ends(*ends: int) -> torch.Tensor:
    """Return the ends of the groups of a grouped product, for its operand `offs`."""
    return torch.tensor(ends, dtype=torch.int32)


def e(*shape: int) -> torch.Tensor:
    """Return numbers that f32 adds exactly."""
    return h(*shape).float()


def _few_bits(*shape: int) -> torch.Tensor:
    """Return a tensor of float8."""
    return h(*shape).to(torch.float8_e4m3fn)


def samples() -> list[Sample]:
    """Return calls of products of matrices and vectors."""
    return [
        sample("mm", f(5, 4), f(4, 3)),
        sample("mm", f(6, 6), f(6, 6)),
        sample("addmm", f(3), f(5, 4), f(4, 3)),
        sample("addmm", f(5, 3), f(5, 4), f(4, 3), beta=0.5, alpha=2),
        sample("bmm", f(4, 5, 3), f(4, 3, 6)),
        sample("baddbmm", f(5, 6), f(4, 5, 3), f(4, 3, 6)),
        sample("mv", f(5, 4), f(4)),
        sample("dot", f(5), f(5)),
        sample("linear", f(5, 2, 4), f(3, 4), f(3)),
        sample("linear", f(5, 2, 4), f(3, 4)),
        *(sample("linear", x, f(4)) for x in (f(5, 4), f(4))),
        sample("matmul", f(2, 5, 4), f(4, 3)),
        sample("matmul", f(2, 1, 5, 4), f(6, 4, 3)),
        sample("matmul", f(4), f(5, 4, 3)),
        sample("matmul", f(4), f(4)),
        sample("matmul", f(2, 5, 4), f(4)),
        sample("einsum", [f(5, 4), f(4, 3)], equation="mk,kn->mn"),
        sample("einsum", [f(2, 5, 3), f(2, 4, 3)], equation="bik, bjk -> bji"),
        sample("einsum", [f(5, 4)], equation="ij->j"),
        sample("einsum", [f(1, 4), f(5, 4)], equation="ij,ij->j"),
        sample("mm", c(5, 4), c(4, 3)),
        sample("mm", i(9, 5, 4), i(9, 4, 3)),
        sample("_int_mm", i(9, 20, 32).char(), i(9, 32, 48).char()),
        sample("_addmm_activation", f(3), f(5, 4), f(4, 3)),
        sample("addbmm", f(5, 6), f(4, 5, 3), f(4, 3, 6)),
        sample("addbmm", f(6), f(4, 5, 3), f(4, 3, 6), beta=2, alpha=3),
        sample("addmv", f(5), f(5, 4), f(4)),
        sample("addmv", f(1), f(5, 4), f(4), beta=2),
        sample("vdot", f(5), f(5)),
        sample("vdot", c(5), c(5)),
        *(sample(op, f(5), f(4)) for op in ("outer", "ger", "kron")),
        sample("addr", f(5, 4), f(5), f(4), beta=2, alpha=3),
        sample("addr", f(4), f(5), f(4)),
        sample("kron", f(5, 4), f(2, 3)),
        sample("kron", f(6, 2, 4), f(2, 3)),
        sample("linalg_vecdot", c(5, 4), c(5, 4), dim=0),
        sample("linalg_cross", f(5, 3), f(5, 3), dim=1),
        sample("bilinear", f(5, 2, 3), f(5, 2, 4), f(6, 3, 4), f(6)),
        sample("bilinear", f(5, 3), f(5, 4), f(6, 3, 4)),
        sample("_trilinear", f(5, 3), f(6, 3, 4), f(5, 4), expand1=(1, 3), expand2=(0,), expand3=(1, 2), sumdim=(2, 3)),
        sample("_grouped_mm", e(3, 8, 16), e(3, 16, 16)),
        sample("_grouped_mm", e(10, 16), e(3, 16, 48), _ends(2, 2, 10)),
        sample("_grouped_mm", e(3, 8, 16), e(16, 16), _ends(2, 2, 16)),
        sample("_grouped_mm", e(8, 16), e(16, 16), _ends(2, 2, 16)),
        sample("mm.dtype", h(5, 4), h(4, 3), out_dtype=F32),
        sample("bmm.dtype", h(2, 5, 4), h(2, 4, 3), out_dtype=F32),
        sample("addmm.dtype", e(3), h(5, 4), h(4, 3), out_dtype=F32),
        sample("baddbmm.dtype", e(5, 3), h(2, 5, 4), h(2, 4, 3), out_dtype=F32),
        sample("_scaled_mm", _few_bits(4, 32), _few_bits(48, 32).t(), e(1).sum(), e(1).sum(), out_dtype=F32),
        sample("_scaled_mm", _few_bits(4, 32), _few_bits(48, 32).t(), e(4, 1), e(1, 48), out_dtype=F32),
        sample("_scaled_mm", _few_bits(4, 32), _few_bits(48, 32).t(), e(1).sum(), e(1).sum(), None,
               e(1).sum().abs() + 1, out_dtype=F32),
        sample("_scaled_grouped_mm", _few_bits(6, 32), _few_bits(3, 32, 48), e(6), e(3, 48), _ends(2, 2, 6),
               out_dtype=F32),
        sample("_weight_int8pack_mm", h(5, 8), i(2, 6, 8).char(), h(6)),
        *(
            sample(op, f(2, 5, 3), f(2, 4, 3), p=p, compute_mode=None)
            for op in ("cdist", "_cdist_forward")
            for p in (2.0, 1.0)
        ),
        sample("_cdist_forward", f(5, 3), f(2, 4, 3), p=3.0, compute_mode=None),
        sample("_euclidean_dist", f(2, 5, 3), f(2, 4, 3)),
        sample("_cdist_backward", f(2, 5, 4), f(2, 5, 3), f(2, 4, 3), positive(2, 5, 4), p=2.0),
        sample("_pdist_forward", f(5, 3), p=2.0),
        sample("_pdist_backward", f(10), f(5, 3), positive(10), p=2.0),
    ]  # fmt: skip
