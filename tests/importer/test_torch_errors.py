"""Errors of torch say all their reasons and suggested fixes, without what is for developers of torch."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spmdir.core.errors import UnsupportedError
from spmdir.core.placement.sharding_plan import ShardingPlan
from spmdir.runtime.joint_capture import capture_joint

DEVELOPERS = ("TORCH_LOGS", "TORCHDYNAMO", "Developer debug context", "graph-break-site", "from user code")


class Checking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] != 7:
            raise ValueError(f"expected 7 features, got {x.shape[-1]}: check the preprocessing")
        return self.linear(x)


class Bounded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("table", torch.zeros(64, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * self.table[None, : x.shape[1]]


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) if x.sum() > 0 else x


FIXES = "Suggested fixes:\n  T = Dim('T', max=64)"
LENGTHS = {"x": {1: torch.export.Dim("T")}}


def joint(model: nn.Module, x: Tensor, dynamic_shapes: Any = None) -> None:
    capture_joint(model, (x,), {}, torch.device("cpu"), ShardingPlan(), dynamic_shapes=dynamic_shapes)


@pytest.mark.parametrize(
    ("model", "shape", "dynamic_shapes", "parts"),
    [
        (Checking(), (4, 8), None, ["ValueError('expected 7 features, got 8: check the preprocessing')"]),
        (
            Bounded(),
            (2, 16, 8),
            LENGTHS,
            ["Constraints violated (T)!", "<= 64", "Suggested fixes:\n  T = Dim('T', max=64)"],
        ),
        (Branching(), (4, 8), None, ["Data-dependent branching", "Hint: Use `torch.cond`"]),
    ],
    ids=["what the model raises", "bounds of sizes", "control flow"],
)
def test_an_error_of_a_capture_has_all_of_torchs_reasons(
    model: nn.Module,
    shape: tuple[int, ...],
    dynamic_shapes: Any,
    parts: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(UnsupportedError) as raised:
        joint(model, torch.zeros(shape), dynamic_shapes)
    for part in parts:
        assert part in raised.value.message
    for word in DEVELOPERS:
        assert word not in raised.value.message
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
