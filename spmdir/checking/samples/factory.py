"""Tensors made from nothing, or from the shape of another."""

from __future__ import annotations

from spmdir.checking.sample import F32, F64, Sample, f, sample


def samples() -> list[Sample]:
    return [
        sample("full", size=(5, 4), fill_value=2, dtype=F64),
        sample("zeros", size=(5, 4)),
        sample("ones", size=()),
        sample("empty.memory_format", size=(5, 4), compare=False),
        *(sample(op, f(2), size=(5, 4)) for op in ("new_zeros", "new_ones")),
        sample("new_full", f(2), size=(5, 4), fill_value=2),
        sample("new_empty", f(2), size=(5, 4), compare=False),
        sample("full_like", f(5, 4), fill_value=2),
        sample("zeros_like", f(5, 4)),
        sample("ones_like", f(5, 4)),
        sample("empty_like", f(5, 4), compare=False),
        sample("fill.Scalar", f(5, 4), value=2),
        sample("scalar_tensor", s=2),
        sample("arange", end=10),
        sample("arange", end=2.5),
        sample("arange.start", start=2, end=7),
        sample("arange.start_step", start=2, end=13, step=3),
        sample("arange.start_step", start=0, end=6, dtype=F32),
    ]  # fmt: skip
