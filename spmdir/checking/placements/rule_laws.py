"""Laws of rules: the strategies that a placement brings compute what the op computes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import attrs
import torch

from spmdir.checking.placements.law import Example, Law
from spmdir.checking.rules.sample import Sample, f, sample
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
from spmdir.checking.rules.soundness import judge, prepare, strategies_of
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Placement
from spmdir.rules.rule_set import default
from spmdir.rules.strategies.placement_texts import texts_of

OPS = (
    "aten.add.Tensor", "aten.mul.Tensor", "aten.div.Tensor", "aten.relu", "aten.gelu", "aten.exp", "aten.neg",
    "aten.mm", "aten.bmm", "aten.sum.dim_IntList", "aten.amax", "aten._softmax", "aten.view", "aten.transpose.int",
    "aten.unsqueeze", "aten.expand", "aten.clone", "aten._to_copy", "aten.cat", "aten.stack", "aten.slice.Tensor",
    "aten.embedding", "aten.where.self", "aten.native_layer_norm",
)  # fmt: skip
"""Ops of every kind; those that a placement names in its `lift` come beside them."""


@attrs.frozen(kw_only=True, eq=False)
class Run(Example):
    """One call of an op."""

    sample: Sample


def _runs(placement: Placement) -> Iterator[Run]:
    if placement.trait in ("open", "replicated"):
        return
    declared = frozenset(texts_of(type(placement)))
    for one in (*_of_ops(), *_named(declared)) if type(placement).lift is Placement.lift else _all():
        if one.op in OPS or one.op in declared or _lifts(placement, one.op):
            for count in (2, 3):
                yield Run(count, about=f"a sample of {one.op}", sample=one)


@cache
def _all() -> tuple[Sample, ...]:
    return tuple(all_samples(default()))


@cache
def _of_ops() -> tuple[Sample, ...]:
    """Return the samples of OPS, which are there without the others."""
    torch.manual_seed(0)
    families = (pointwise, contraction, reduction, softmax, view, index, normalization)
    written = (one for family in families for one in family.samples() if one.op in OPS)
    return (*written, *(sample(name, f(5, 4)) for name in ("relu", "gelu", "exp")))


@cache
def _named(ops: frozenset[str]) -> tuple[Sample, ...]:
    """Return the samples of `ops` that `_of_ops` lacks."""
    torch.manual_seed(0)
    wanted = ops.difference(OPS)
    written = tuple(one for family in FAMILIES for one in family.samples() if one.op in wanted) if wanted else ()
    others = wanted.difference(one.op for one in written)
    return (*written, *(one for one in _all() if one.op in others)) if others else written


class _Named:
    """Stands for a rule and its strategies where only the op's name is known, for what that suffices to say."""

    def __init__(self, name: str):
        self.name = name

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError


@cache
def _lifts(placement: Placement, op: str) -> bool:
    """Return whether a placement may bring strategies of `op` of its own."""
    if type(placement).lift is Placement.lift:
        return False
    named = _Named(op)
    try:
        return any(True for _ in placement.lift(named, named))  # type: ignore[arg-type]
    except Exception:
        return True


def _sound(placement: Placement, example: Example) -> str | None:
    assert isinstance(example, Run)
    case = prepare(example.sample, default())
    for strategy in strategies_of(case.rule, example.ranks, (placement,)):
        verdict = judge(case, [("x", strategy)], Mesh({"x": example.ranks}))
        if verdict.fault:
            return f"{verdict.strategy} of {case.rule.text()}: {verdict.fault}"
    return None


RULE_LAWS = (
    Law(
        "rules",
        "the strategies of ops in which it occurs compute what the ops do",
        _runs,
        _sound,
        ("lift", "passes", "scaled"),
    ),
)
