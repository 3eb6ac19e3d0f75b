"""Choose the sample calls of ops on which laws are checked."""

from __future__ import annotations

from functools import cache
from typing import Any

import attrs
import torch

from spmdir.checking.rules.samples import (
    FAMILIES,
    all_samples,
    contraction,
    index,
    normalization,
    pointwise,
    reduction,
    softmax,
    view,
)
from spmdir.checking.rules.samples.sample import Sample, f, sample
from spmdir.core.dtype import BF16, F16, F32, F64
from spmdir.core.placement.base import Placement
from spmdir.rules.rule_set import default
from spmdir.torch_interop.dtypes import TORCH_DTYPES

USUAL_OPS = frozenset([
    "aten.add.Tensor", "aten.mul.Tensor", "aten.div.Tensor", "aten.relu", "aten.gelu", "aten.exp", "aten.neg",
    "aten.mm", "aten.bmm", "aten.sum.dim_IntList", "aten.amax", "aten._softmax", "aten.view", "aten.transpose.int",
    "aten.unsqueeze", "aten.expand", "aten.clone", "aten._to_copy", "aten.cat", "aten.stack", "aten.slice.Tensor",
    "aten.embedding", "aten.where.self", "aten.native_layer_norm",
])  # fmt: skip
"""Ops of each family. Every placement is checked on these, and on the ops for which it declares strategies."""


def samples_of(ops: frozenset[str]) -> tuple[Sample, ...]:
    """Return the samples of `ops`, those of USUAL_OPS first."""
    usual = tuple(sample for sample in _usual_samples() if sample.op in ops) if ops & USUAL_OPS else ()
    return (*usual, *_unusual_samples(ops - USUAL_OPS))


def with_supported_type(sample: Sample, placement: Placement) -> Sample:
    """Return a sample whose f64 tensors are converted to a type that the placement supports, if f64 is not."""
    dtype = next((dtype for dtype in (F64, F32, BF16, F16) if placement.supports(dtype)), F64)
    if dtype == F64:
        return sample

    def convert(operand: Any) -> Any:
        if isinstance(operand, list):
            return [convert(tensor) for tensor in operand]
        is_f64 = isinstance(operand, torch.Tensor) and operand.dtype == torch.float64
        return operand.to(TORCH_DTYPES[dtype]) if is_f64 else operand

    return attrs.evolve(sample, operands=tuple(map(convert, sample.operands)))


@cache
def every_sample() -> tuple[Sample, ...]:
    """Return the samples of all ops that have rules."""
    return tuple(all_samples(default()))


@cache
def _usual_samples() -> tuple[Sample, ...]:
    """Return the samples of USUAL_OPS. Only a few families have them, and making the samples of all takes longer."""
    torch.manual_seed(0)
    families = (pointwise, contraction, reduction, softmax, view, index, normalization)
    written = (sample for family in families for sample in family.samples() if sample.op in USUAL_OPS)
    return (*written, *(sample(name, f(5, 4)) for name in ("relu", "gelu", "exp")))


@cache
def _unusual_samples(ops: frozenset[str]) -> tuple[Sample, ...]:
    """Return the samples of `ops` in FAMILIES, and all samples of the ops that have none there."""
    torch.manual_seed(0)
    samples = tuple(sample for family in FAMILIES for sample in family.samples() if sample.op in ops) if ops else ()
    missing_ops = ops.difference(sample.op for sample in samples)
    if missing_ops:
        samples += tuple(sample for sample in every_sample() if sample.op in missing_ops)
    return samples
