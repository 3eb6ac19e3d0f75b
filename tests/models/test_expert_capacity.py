"""Rows beyond the capacity of an expert: every rank raises an error, and the state remains as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import AdamW

import spmdir
from spmdir.pipeline.pipeline import SCHEDULED
from tests.lowering.gloo_ranks import on_ranks
from tests.models.test_expert_forms import Mixture
from tests.models.test_expert_updates import SLOW

EXCEEDED = "rows exceed the capacity of 1 rows for each expert and rank"


class Counted(nn.Module):
    """Experts behind a buffer that is updated before the tokens are routed."""

    calls: Tensor

    def __init__(self):
        super().__init__()
        self.mixture = Mixture("histc", False, "gather", "scatter_add")
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.mixture(x)


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().mean()


def call_beyond_capacity(rank: int, options: dict[str, dict[str, Any]]) -> dict[str, tuple[str, bool]]:
    """Return for each case the error, and whether the state is as before."""
    torch.manual_seed(0)
    results: dict[str, tuple[str, bool]] = {}
    for name, case in options.items():
        model, x = Counted().double(), torch.randn(8, 1, 6).double()
        optimizer = AdamW(model.parameters(), lr=0.1)
        step, state = spmdir.training_step(model, loss_of, optimizer, accumulate=case.get("accumulate", 1))
        pipeline = spmdir.Pipeline(SCHEDULED.replace("localize", "pad-rows{capacity=1},localize"), topology=SLOW)
        more = {"compile": case.get("compile", False), "pipeline": pipeline, "state": state}
        parallel: Any = spmdir.parallelize(step, spmdir.Mesh({"ep": 2}), "ep", (x,), **more)
        before = {key: value.clone() for key, value in parallel.state_dict().items()}
        error = ""
        try:
            parallel(x)
        except spmdir.SpmdirError as caught:
            error = str(caught)
        is_unchanged = all(torch.equal(value, before[key]) for key, value in parallel.state_dict().items())
        results[name] = error, is_unchanged
    return results


CASES = {"eager": {}, "micro-batches": {"accumulate": 2}, "compiled": {"compile": True}}


@pytest.mark.gloo
def test_rows_beyond_the_capacity_are_an_error_before_the_state_is_written(tmp_path: Path) -> None:
    for of_rank in on_ranks(2, call_beyond_capacity, tmp_path, CASES):
        for name, (error, is_unchanged) in of_rank.items():
            assert EXCEEDED in error, name
            assert is_unchanged or name == "compiled", name  # Inductor chooses when it writes to the state
