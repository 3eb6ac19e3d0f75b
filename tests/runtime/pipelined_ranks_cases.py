"""What each rank of a pipelined step does in the tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from spmdir.runtime.pipelined_ranks import PipelinedRank
from spmdir.simulator.step_inputs import flat_state
from tests.simulator import pipelined_steps as cases

Case = tuple[str, str, str, Any, tuple[str, ...], tuple[int, ...]]
"""(model, cut, kind, plan, names of the axes, sizes)."""


def run(rank: int, chosen: list[Case], steps: int) -> list[float]:
    """Return, for each case, the largest relative error of a loss or a tensor of the state of this rank."""
    return [_error(case, steps) for case in chosen]


def _error(case: Case, steps: int) -> float:
    model, cut, kind, plan, axes, sizes = case
    is_language_model = model in ("llama", "gpt2")
    batch = cases.tokens() if is_language_model else cases.numbers()
    loss: Callable[..., torch.Tensor] = cases.cross_entropy if is_language_model else cases.square_error
    other_axes = {axis: size for axis, size in zip(axes, sizes, strict=True) if axis != "pp"}
    make = getattr(cases, model)
    step, state, module = cases.step_of(make, loss, batch, clip=0.1, plan=plan, mesh=other_axes)
    module = cases.pipelined(module, cut, kind)
    device_mesh = init_device_mesh("cpu", sizes, mesh_dim_names=axes)
    pipelined_rank, errors = PipelinedRank.of(module, device_mesh, state, step=step), []
    for number in range(steps):
        rate = 0.01 / (number + 1)
        step.set_rate("lr.0", rate)
        state = {**state, "lr": {name: torch.full_like(value, rate) for name, value in state["lr"].items()}}
        expected_loss, state = step(state, *batch)
        (value,) = pipelined_rank(*batch)
        errors.append(float((value - expected_loss).abs() / expected_loss.abs()))
        expected = flat_state(state)
        for name, tensor in pipelined_rank.state.items():
            if name in expected and not name.startswith("gradients"):
                whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
                scale = max(float(expected[name].abs().max()), 1e-300)
                errors.append(float((whole - expected[name]).abs().max()) / scale)
    return max(errors)
