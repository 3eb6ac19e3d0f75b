"""Experts in the element types of training, on simulated ranks, beside the noise of the type on one device."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import spmdir
from spmdir.runtime.capture import capture_step
from tests.models.test_expert_training import BY_EXPERT, build, loss_of, token_ids, with_dispatched_rows

BOTH_DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
MODELS = ["mixtral", "qwen3", "deepseek"]


class GradientsAsParameters(torch.optim.SGD):
    """Replaces each parameter by its gradient, so that an update does not round the gradient."""

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            parameter.copy_(parameter.grad)


def gradients_of(model: nn.Module, ids: Tensor) -> list[Tensor]:
    loss_of(model, ids).backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def largest_error(gradients: list[Tensor], reference: list[Tensor]) -> float:
    """Return the largest norm of an error, relative to the norm of its gradient."""
    pairs = zip(gradients, reference, strict=True)
    return max(((found.double() - exact).norm() / exact.norm()).item() for found, exact in pairs)


@BOTH_DEVICES
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_gradients_of_dispatched_rows_have_the_noise_of_one_device(name: str, dtype: torch.dtype, device: str):
    model, ids = build(name, dtype=dtype).to(device), token_ids(2, 4).to(device)
    native = copy.deepcopy(model)
    native.set_experts_implementation("eager")  # type: ignore[operator]
    noise = gradients_of(native, ids)
    reference = gradients_of(copy.deepcopy(native).double(), ids)

    step, state = spmdir.training_step(model, loss_of, GradientsAsParameters(model.parameters()))
    program = capture_step(step, state, (ids,), torch.device(device)).program
    shardings = {name.replace("arg1_1", "arg*"): text for name, text in BY_EXPERT.items()}
    module = spmdir.import_fx(program, spmdir.Mesh({"ep": 4}), shardings)
    module = spmdir.run_passes(with_dispatched_rows(module, "ep: Grouped(0)"), "propagate")
    leaves, structure = pytree.tree_flatten(state)
    found = spmdir.simulate(module, [*leaves, ids])
    gradients = list(pytree.tree_unflatten(found[1:], structure)["parameters"].values())
    assert largest_error(gradients, reference) < 2 * largest_error(noise, reference) + torch.finfo(dtype).eps
