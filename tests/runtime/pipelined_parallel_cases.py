"""What each rank of a pipelined step does in the tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

import spmdir
from spmdir.core.placement.pipeline_axis import PipelineAxis
from spmdir.core.placement.sharding_plan import ShardingPlan
from spmdir.simulator.step_inputs import flat_state
from tests.simulator import pipelined_steps as cases

Case = tuple[str, Any, tuple[str, ...], tuple[int, ...]]
"""(model, plan, names of the axes, sizes)."""


def run(rank: int, chosen: list[Case], steps: int, folder: str) -> tuple[list[float], dict[str, Any]]:
    """Return the results of `errors` and `resumed`."""
    return [_error(case, steps) for case in chosen], resumed(folder)


def resumed(folder: str) -> dict[str, Any]:
    """Save a checkpoint of two stages after two updates. Return the loss of the next update on several meshes.

    The results also contain the names of the parameters that this rank keeps with four stages, and `expected`, the loss
    on one device.
    """
    results: dict[str, Any] = {}
    batch = cases.tokens()
    for name, plan, axes, sizes in (
        ("saved", "pp*fsdp", ("pp", "fsdp"), (2, 2)),
        ("four stages", "pp", ("pp",), (4,)),
        ("folded", "pp(schedule=zbv)*fsdp", ("pp", "fsdp"), (2, 2)),
        ("no stages", "fsdp", ("fsdp",), (4,)),
    ):
        step, state = cases.training_step_of(cases.gpt2, cases.cross_entropy, clip=0.1)
        expected = state
        device_mesh = init_device_mesh("cpu", sizes, mesh_dim_names=axes)
        parallel = spmdir.parallelize(step, device_mesh, plan, batch, state=state)
        if name == "saved":
            for _ in range(2):
                parallel(*batch)
                expected = step(expected, *batch)[1]
            results["expected"] = float(step(expected, *batch)[0])
            spmdir.checkpoint.save(folder, {"train": parallel}, step=2)
        else:
            spmdir.checkpoint.load(folder, {"train": parallel})
        if name == "four stages":
            results["names"] = {key for key in parallel.saved_state if key.startswith(("parameters.", "exp_avg."))}
        results[name] = float(parallel(*batch))
    return results


def staged(at: str, schedule: Any = "1f1b", **shardings: str) -> ShardingPlan:
    """Return a plan with stages that begin at modules, and shardings of inputs and parameters."""
    return ShardingPlan(shardings, pipeline=PipelineAxis("pp", schedule, at=tuple(at.split(","))))


def _error(case: Case, steps: int) -> float:
    model, plan, axes, sizes = case
    is_language_model = model in ("llama", "gpt2")
    batch = cases.tokens() if is_language_model else cases.numbers()
    loss: Callable[..., torch.Tensor] = cases.cross_entropy if is_language_model else cases.square_error
    step, state = cases.training_step_of(getattr(cases, model), loss, clip=0.1)
    device_mesh = init_device_mesh("cpu", sizes, mesh_dim_names=axes)
    parallel = spmdir.parallelize(step, device_mesh, plan, batch, state=state)
    errors = []
    for number in range(steps):
        rate = 0.01 / (number + 1)
        step.set_rate("lr.0", rate)
        state = {**state, "lr": {name: torch.full_like(value, rate) for name, value in state["lr"].items()}}
        expected_loss, state = step(state, *batch)
        value = parallel(*batch)
        errors.append(float((value - expected_loss).abs() / expected_loss.abs()))
    expected = flat_state(state)
    for name, tensor in parallel.saved_state.items():
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        errors.append(_difference(whole, expected[name]))
    for name, tensor in flat_state(parallel.gather_state()).items():
        if not step.is_sum(name):
            errors.append(_difference(tensor, expected[name]))
    return max(errors)


def _difference(tensor: Any, expected: torch.Tensor) -> float:
    return float((tensor - expected).abs().max()) / max(float(expected.abs().max()), 1e-300)
