"""Ops that create tensors."""

from __future__ import annotations

from spmdir.checking.rules.samples.sample import Sample, f, i, sample
from spmdir.core.dtype import F32, F64, I32, I64


def samples() -> list[Sample]:
    """Return calls of ops that create tensors."""
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
        sample("fill.Tensor", f(5, 4), f(1).sum()),
        sample("fill.Tensor", f(5, 4), i(9, 1).sum()),
        sample("zero", f(5, 4)),
        sample("_efficientzerotensor", size=(5, 4)),
        sample("empty_permuted", size=(5, 4), physical_layout=(1, 0), compare=False),
        sample("empty_strided", size=(5, 4), stride=(1, 5), compare=False),
        sample("eye", n=5),
        sample("eye", n=6, dtype=F64),
        sample("eye.m", n=4, m=7, dtype=I64),
        sample("eye.m", n=7, m=4),
        sample("range", start=0, end=5),
        sample("range.step", start=0, end=5, step=2),
        sample("linspace", start=0, end=5, steps=7),
        sample("logspace", start=0, end=2, steps=5),
        sample("hann_window", window_length=6),
        sample("hann_window.periodic", window_length=6, periodic=False),
        sample("scalar_tensor", s=2),
        sample("arange", end=10),
        sample("arange", end=2.5),
        sample("arange.start", start=2, end=7),
        sample("arange.start_step", start=2, end=13, step=3),
        sample("arange.start_step", start=0, end=6, dtype=F32),
        sample("arange", end=4.5, dtype=I64),
        sample("arange.start", start=0.9, end=4.9, dtype=I64),
        sample("arange.start_step", start=4, end=-3, step=-1.0, dtype=I64),
        sample("arange.start_step", start=0.5, end=7, step=1.5, dtype=I64),
        sample("arange.start_step", start=0.5, end=7, step=1.5, dtype=I32),
    ]  # fmt: skip
