"""Sample calls for each rule, by family as in spmdir/rules/aten/*.rules."""

from __future__ import annotations

import torch

from spmdir.checking.rules.samples import (
    attention,
    cache,
    contraction,
    convolution,
    experts,
    factory,
    index,
    libraries,
    linalg,
    loss,
    normalization,
    optimizer,
    order,
    pointwise,
    random,
    reduction,
    sampling,
    softmax,
    view,
    window,
)
from spmdir.checking.rules.samples.sample import Sample, f
from spmdir.rules import RuleSet

FAMILIES = (
    pointwise,
    contraction,
    linalg,
    reduction,
    order,
    softmax,
    view,
    factory,
    random,
    index,
    normalization,
    attention,
    convolution,
    window,
    loss,
    optimizer,
    experts,
    cache,
    sampling,
    libraries,
)


def all_samples(rules: RuleSet) -> list[Sample]:
    """Return the samples of all families, and one for each other op whose dimensions are all pointwise."""
    torch.manual_seed(0)
    samples = [sample for family in FAMILIES for sample in family.samples()]
    ops_with_samples = {sample.op for sample in samples}
    for name in rules.names:
        rule = rules.lookup(name)
        assert rule is not None
        patterns = [tensor.pattern for tensor in rule.tensors if tensor.pattern]
        if name not in ops_with_samples and all(str(pattern[0]) == "*" for pattern in patterns):
            shapes = [(5, 4), (4,), (5, 1)][: len(rule.tensors)]
            if name.endswith("backward"):
                shapes = [(5, 4)] * len(rule.tensors)
            samples.append(Sample(name, tuple(f(*shape) for shape in shapes)))
    return samples
