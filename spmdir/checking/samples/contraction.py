"""Matrix products."""

from __future__ import annotations

from spmdir.checking.sample import Sample, f, sample


def samples() -> list[Sample]:
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
        sample("matmul", f(2, 5, 4), f(4, 3)),
        sample("matmul", f(2, 1, 5, 4), f(6, 4, 3)),
        sample("matmul", f(4), f(5, 4, 3)),
        sample("matmul", f(4), f(4)),
        sample("matmul", f(2, 5, 4), f(4)),
        sample("einsum", [f(5, 4), f(4, 3)], equation="mk,kn->mn"),
        sample("einsum", [f(2, 5, 3), f(2, 4, 3)], equation="bik, bjk -> bji"),
        sample("einsum", [f(5, 4)], equation="ij->j"),
        sample("einsum", [f(1, 4), f(5, 4)], equation="ij,ij->j"),
    ]  # fmt: skip
