"""Samples of the ops that laws are tried on, without making those of all others."""

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

OPS = frozenset([
    "aten.add.Tensor", "aten.mul.Tensor", "aten.div.Tensor", "aten.relu", "aten.gelu", "aten.exp", "aten.neg",
    "aten.mm", "aten.bmm", "aten.sum.dim_IntList", "aten.amax", "aten._softmax", "aten.view", "aten.transpose.int",
    "aten.unsqueeze", "aten.expand", "aten.clone", "aten._to_copy", "aten.cat", "aten.stack", "aten.slice.Tensor",
    "aten.embedding", "aten.where.self", "aten.native_layer_norm",
])  # fmt: skip
"""Ops of every kind; those that a placement names come beside them."""


def samples_of(ops: frozenset[str]) -> tuple[Sample, ...]:
    """Return the samples of `ops`, those of OPS first."""
    usual = tuple(one for one in _of_usual_ops() if one.op in ops) if ops & OPS else ()
    return (*usual, *_of_others(ops - OPS))


def typed_for(placement: Placement, one: Sample) -> Sample:
    """Return a sample with its f64 tensors in a type that the placement holds, where it does not hold f64."""
    held = next((dtype for dtype in (F64, F32, BF16, F16) if placement.supports(dtype)), F64)
    if held == F64:
        return one

    def typed(operand: Any) -> Any:
        if isinstance(operand, list):
            return [typed(tensor) for tensor in operand]
        is_wide = isinstance(operand, torch.Tensor) and operand.dtype == torch.float64
        return operand.to(TORCH_DTYPES[held]) if is_wide else operand

    return attrs.evolve(one, operands=tuple(map(typed, one.operands)))


@cache
def every_sample() -> tuple[Sample, ...]:
    return tuple(all_samples(default()))


@cache
def _of_usual_ops() -> tuple[Sample, ...]:
    torch.manual_seed(0)
    families = (pointwise, contraction, reduction, softmax, view, index, normalization)
    written = (one for family in families for one in family.samples() if one.op in OPS)
    return (*written, *(sample(name, f(5, 4)) for name in ("relu", "gelu", "exp")))


@cache
def _of_others(ops: frozenset[str]) -> tuple[Sample, ...]:
    torch.manual_seed(0)
    written = tuple(one for family in FAMILIES for one in family.samples() if one.op in ops) if ops else ()
    others = ops.difference(one.op for one in written)
    return (*written, *(one for one in every_sample() if one.op in others)) if others else written
