"""Optimizers that compute with whole matrices equal one device on shards: Muon bit for bit, Shampoo to rounding."""

# pyright: reportArgumentType=false
from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.optim import Muon, Optimizer
from torch.utils import _pytree as pytree

import spmdir
from spmdir.runtime.training import training_step

LAYOUTS = [
    ({"dp": 2, "tp": 2}, {"up.weight": "tp: S(0), dp: S(1)", "down.weight": "dp: S(0), tp: S(1)"}),
    ({"dp": 2, "tp": 2}, {"up.weight": "dp: S(0), tp: S(0)", "down.weight": "tp: S(1)"}),
    ({"dp": 3}, {"*.weight": "dp: S(0)"}),
]


class MLP(nn.Module):
    """A network whose weights are integers, so that sums of its gradients are exact in any order."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16, bias=False), nn.Linear(16, 8, bias=False)
        for weight in self.parameters():
            weight.data = integers(*weight.shape)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x).relu())


class Shampoo(Optimizer):
    """Gupta et al., 2018, with decaying sums."""

    def __init__(self, params: list[nn.Parameter]):
        super().__init__(params, {"lr": 0.1})
        for weight in params:
            rows, columns = weight.shape
            self.state[weight] = {"left": 1e-3 * torch.eye(rows).double(), "right": 1e-3 * torch.eye(columns).double()}

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                gradient, state = weight.grad, self.state[weight]
                left = state["left"].mul_(0.9).add_(gradient @ gradient.T)
                right = state["right"].mul_(0.9).add_(gradient.T @ gradient)
                weight.sub_(group["lr"] * (fourth_root(left) @ gradient @ fourth_root(right)))


def fourth_root(matrix: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * values**-0.25) @ vectors.T


def integers(*shape: int) -> Tensor:
    return torch.randint(-3, 4, shape).double()


def updates(kind: type[Optimizer], mesh: dict[str, int], plan: dict[str, str]) -> tuple[list[Tensor], list[Tensor]]:
    """Return the results of a step on ranks and on one device."""
    torch.manual_seed(0)
    model = MLP()
    optimizer = kind(list(model.parameters()))
    step, state = training_step(model, lambda model, x, y: (model(x) * y).sum(), optimizer)
    args = (state, integers(12, 8), integers(12, 8))
    graph = make_fx(step, tracing_mode="fake")(*args)
    plan = {**plan, "arg1_1": "dp: S(0)", "arg2_1": "dp: S(0)"}
    module = spmdir.import_fx(graph, spmdir.Mesh(mesh), plan)
    module = spmdir.run_passes(module, "propagate,insert-reshard,lower-reshard,fuse-collectives")
    return spmdir.simulate(module, pytree.tree_leaves(args)), pytree.tree_leaves(step(*args))


@pytest.mark.parametrize(("mesh", "plan"), LAYOUTS)
def test_muon_on_shards_equals_one_device_bit_for_bit(mesh: dict[str, int], plan: dict[str, str]) -> None:
    results, expected = updates(Muon, mesh, plan)
    assert len(results) == len(expected)
    for value, other in zip(results, expected, strict=True):
        assert torch.equal(value, other)


@pytest.mark.parametrize(("mesh", "plan"), LAYOUTS)
def test_shampoo_in_plain_torch_equals_one_device(mesh: dict[str, int], plan: dict[str, str]) -> None:
    results, expected = updates(Shampoo, mesh, plan)
    for value, other in zip(results, expected, strict=True):
        torch.testing.assert_close(value, other, rtol=1e-11, atol=1e-11)
