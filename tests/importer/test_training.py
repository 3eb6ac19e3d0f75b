"""Training steps: their arithmetic, and how they are imported."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from spmdir.errors import UnsupportedError
from spmdir.importer import import_fx, training_step
from spmdir.lowering import run_single
from tests.importer.helpers import MESH, arguments, results
from tests.models.catalog import MLP
from tests.models.zoo import loss_of

TORCH = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, weight_decay=0.05),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.05),
}


@pytest.mark.parametrize("optimizer", TORCH)
def test_three_steps_are_those_of_torch(optimizer):
    torch.manual_seed(0)
    model = MLP(6, 8).double()
    x, y = torch.randn(4, 6, dtype=torch.float64), torch.randn(4, 6, dtype=torch.float64)
    step, state = training_step(model, loss_of, optimizer, lr=0.1, weight_decay=0.05)
    state = pytree.tree_map(torch.clone, state)
    reference = TORCH[optimizer](model.parameters())
    for _ in range(3):
        loss, state = step(state, x, y)
        reference.zero_grad()
        expected = loss_of(model, x, y)
        expected.backward()
        reference.step()
        torch.testing.assert_close(loss, expected.detach())
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(state["parameters"][name], parameter.detach(), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("mode", ["real", "fake"])
def test_the_traced_step_computes_what_the_eager_one_does(mode):
    torch.manual_seed(0)
    x = torch.randn(4, 6, dtype=torch.float64)
    step, state = training_step(MLP(6, 8).double(), loss_of)
    module = import_fx(make_fx(step, tracing_mode=mode)(state, x, x), MESH)
    found = run_single(module, pytree.tree_leaves((state, x, x)))
    for one, other in zip(found, pytree.tree_leaves(step(state, x, x)), strict=True):
        torch.testing.assert_close(one, other)


def test_one_key_shards_a_parameter_its_moments_and_their_new_values():
    step, state = training_step(MLP(6, 8), loss_of)
    traced = make_fx(step)(state, torch.ones(4, 6), torch.ones(4, 6))
    module = import_fx(traced, MESH, {"up.weight": "tp: S(0)", "exp_avg_sq.up.*": "dp: S(0)"})
    expected = {"parameters.up.weight": "tp: S(0)", "exp_avg.up.weight": "tp: S(0)", "exp_avg_sq.up.bias": "dp: S(0)"}
    for found in (arguments(module), dict(results(module))):
        assert {name: found[name] for name in expected} == expected
    assert arguments(module)["step"] is None


def test_buffers_that_the_model_changes_are_part_of_the_new_state():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6))
    x = torch.randn(4, 6)
    step, state = training_step(model, loss_of, "sgd")
    before = state["buffers"]["1.running_mean"].clone()
    module = import_fx(make_fx(step)(state, x, x), MESH)
    names = [name for name, _ in results(module)]
    found = run_single(module, pytree.tree_leaves((state, x, x)))[names.index("buffers.1.running_mean")]
    assert torch.equal(state["buffers"]["1.running_mean"], before)
    model(x)
    torch.testing.assert_close(found, model[1].running_mean)


def test_a_parameter_without_gradient_stays_as_it_is():
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))

        def forward(self, x):
            return x * self.used

    step, state = training_step(Half(), loss_of, "sgd")
    _, new = step(state, torch.ones(3), torch.zeros(3))
    assert torch.equal(new["parameters"]["unused"], torch.ones(3))
    assert not torch.equal(new["parameters"]["used"], torch.ones(3))


def test_unknown_optimizers_and_options_are_refused():
    with pytest.raises(UnsupportedError, match=r"unknown optimizer 'adam'.*did you mean 'adamw'\?"):
        training_step(MLP(), loss_of, "adam")
    with pytest.raises(UnsupportedError, match=r"sgd has no option 'momentun'.*did you mean 'momentum'\?"):
        training_step(MLP(), loss_of, "sgd", momentun=0.9)
