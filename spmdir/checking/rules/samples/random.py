"""Random numbers. Every rank and the single device draw them from the same seed."""

from __future__ import annotations

from typing import Any

import torch

from spmdir.checking.rules.samples.sample import Sample, b, f, h, positive, sample
from spmdir.core.dtype import F32


def samples() -> list[Sample]:
    """Return calls of ops that draw random numbers, and of their backward."""
    bounds: dict[str, Any] = {"from": 2, "to": 7}
    chance = torch.rand(5, 4, dtype=torch.float64)
    return [
        *(sample(op, size=(5, 4)) for op in ("rand", "randn")),
        sample("randint", high=9, size=(6, 5)),
        sample("randint.low", low=2, high=9, size=(6, 5)),
        sample("randperm", n=6),
        sample("normal.float_float", mean=1.0, std=2.0, size=(6, 5)),
        *(sample(op, f(5, 4)) for op in ("rand_like", "randn_like")),
        sample("rand_like", f(6, 4), dtype=F32),
        sample("randint_like", f(6, 4), high=9),
        sample("randint_like.low_dtype", f(6, 4), low=2, high=9),
        sample("bernoulli.p", f(6, 4), p=0.4),
        sample("uniform", f(6, 4)),
        sample("normal_functional", f(6, 4)),
        sample("log_normal", f(6, 4)),
        sample("cauchy", f(6, 4)),
        sample("exponential", f(6, 4), lambd=2.0),
        sample("geometric", f(6, 4), p=0.4),
        sample("random", f(6, 4)),
        sample("random.to", f(6, 4), to=7),
        sample("random.from", f(6, 4), **bounds),
        sample("bernoulli", chance),
        sample("bernoulli", chance.float()),
        sample("bernoulli", chance.bfloat16()),
        sample("bernoulli.Tensor", f(5, 4), chance),
        sample("bernoulli.Tensor", f(5, 4), chance.bfloat16()),
        sample("normal.Tensor_float", f(5, 4), std=2.0),
        sample("normal.float_Tensor", positive(5, 4), mean=2.0),
        sample("normal.Tensor_Tensor", f(5, 4), positive(5, 4)),
        sample("normal.Tensor_Tensor", f(5, 1), positive(5, 4)),
        sample("multinomial", positive(5, 4), num_samples=2),
        sample("poisson", positive(5, 4)),
        sample("binomial", positive(5, 4) * 9, chance),
        sample("_standard_gamma", positive(5, 4)),
        sample("_sample_dirichlet", positive(5, 4)),
        sample("_standard_gamma_grad", positive(5, 4), positive(5, 4)),
        sample("_dirichlet_grad", chance, positive(5, 4), positive(5, 4) + 4),
        *(sample("dropout", f(5, 4), p=p, train=True) for p in (0.0, 0.4, 1.0)),
        sample("dropout", f(5, 4), p=0.1, train=False),
        sample("dropout", h(6, 4), p=0.5, train=True),
        *(sample("feature_dropout", f(5, 4, 3), p=p, train=True) for p in (0.4, 1.0)),
        sample("feature_dropout", f(5, 4, 3), p=0.1, train=False),
        *(sample("alpha_dropout", f(5, 4, 3), p=0.4, train=train) for train in (False, True)),
        *(sample("feature_alpha_dropout", f(5, 4, 3), p=0.4, train=train) for train in (False, True)),
        *(sample("native_dropout", f(5, 4), p=0.4, train=train) for train in (False, True, None)),
        sample("native_dropout", f(6, 4), p=1.0, train=True),
        sample("native_dropout", h(6, 4), p=0.4, train=True),
        sample("native_dropout_backward", f(5, 4), b(5, 4), scale=2.0),
        *(sample("rrelu", f(5, 4), training=training) for training in (False, True)),
        *(sample("rrelu_with_noise_functional", f(5, 4), f(5, 4), lower=0.1, upper=0.3, training=training)
          for training in (False, True)),
        sample("rrelu_with_noise_backward", f(5, 4), f(5, 4), positive(5, 4), lower=0.1, upper=0.3, training=True,
               self_is_result=False),
    ]  # fmt: skip
