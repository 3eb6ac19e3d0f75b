"""The phases of a training step, told by data flow alone."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import spmdir


def _step(middle: torch.nn.Module) -> dict[str, str]:
    """Return kind and name of each op → its phase, of a step of two layers, clipped by the norm of all gradients."""
    model = torch.nn.Sequential(torch.nn.Linear(512, 512), middle, torch.nn.Linear(512, 512))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step, state = spmdir.training_step(
        model, lambda model, x, y: (model(x) - y).square().mean(), optimizer, clip_grad_norm=1.0
    )
    traced = make_fx(step, tracing_mode="fake")(state, torch.zeros(8192, 512), torch.zeros(8192, 512))
    module = spmdir.import_fx(traced, spmdir.Mesh({"dp": 2}), {"arg1_1": "dp: S(0)", "arg2_1": "dp: S(0)"})
    return {f"{op.kind} {op.name}": op.phase for op in spmdir.report.cost_table(module, by="op").ops}


@pytest.fixture(scope="module")
def phase_of() -> dict[str, str]:
    return _step(torch.nn.Tanh())


def _phases(phase_of: dict[str, str], kind: str) -> Counter[str]:
    return Counter(phase for name, phase in phase_of.items() if name.startswith(f"{kind} "))


def test_products_are_of_the_forward_or_the_backward(phase_of: dict[str, str]) -> None:
    found = _phases(phase_of, "aten.einsum") + _phases(phase_of, "aten.addmm") + _phases(phase_of, "aten.mm")
    assert found["forward"] == 2 and found["backward"] >= 3 and not found["optimizer"]
    assert set(_phases(phase_of, "aten.tanh")) == {"forward"}
    assert set(_phases(phase_of, "aten.tanh_backward")) == {"backward"}


def test_the_update_and_the_norm_that_clips_are_of_the_optimizer(phase_of: dict[str, str]) -> None:
    assert set(_phases(phase_of, "aten.addcdiv")) == set(_phases(phase_of, "aten.lerp.Scalar")) == {"optimizer"}
    assert set(_phases(phase_of, "aten.clamp")) == {"optimizer"}


def test_sums_of_gradients_over_ranks_are_of_the_backward(phase_of: dict[str, str]) -> None:
    reduced = _phases(phase_of, "all_reduce") + _phases(phase_of, "reduce_scatter")
    assert reduced["backward"] >= 2 and not reduced["optimizer"]


def test_running_statistics_are_of_the_forward() -> None:
    found = _step(torch.nn.BatchNorm1d(512))
    assert set(_phases(found, "aten.rsqrt")) == {"forward"}
    assert found["aten.add.Tensor %add"] == "forward"  # the count of batches
    assert set(_phases(found, "aten.addcdiv")) == {"optimizer"}
