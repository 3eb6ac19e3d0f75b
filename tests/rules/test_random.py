"""Random numbers as programs: bit for bit those that one device draws from the same seed, however they are sharded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import spmdir

MESH = spmdir.Mesh({"dp": 2, "tp": 3})
X = torch.randn(7, 6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
SHARDED = ("dp: S(0), tp: S(1)", "dp: S(0), tp: S(0)", "tp: S(2)")
SEED = 5


def eager(function: Callable[[Tensor], Any]) -> Any:
    with torch.random.fork_rng(()):
        torch.manual_seed(SEED)
        return function(X)


def program(function: Callable[[Tensor], Tensor], sharding: str, exported: bool) -> Any:
    class Model(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return function(x)

    source: Any = torch.export.export(Model(), (X,)) if exported else make_fx(function)(X)
    return spmdir.import_fx(source, MESH, {"input:0": sharding}, out_shardings=[sharding])


DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda x: F.dropout(x, 0.3),
    "two dropouts": lambda x: F.dropout(F.dropout(x, 0.3) + 1, 0.3),
    "dropout of everything": lambda x: F.dropout(x, 1.0) + torch.rand_like(x),
    "dropout of channels": lambda x: F.dropout1d(x, 0.3),
    "alpha dropout": lambda x: F.alpha_dropout(x, 0.3, training=True),
    "native dropout": lambda x: torch.native_dropout(x, 0.3, True)[0],
    "noise": lambda x: x + torch.randn_like(x) * torch.rand(6, 5, dtype=x.dtype),
    "chances": lambda x: torch.bernoulli(torch.sigmoid(x)),
    "normal of each": lambda x: torch.normal(x, x.abs()),
    "in place": lambda x: x * x.new_empty(x.shape).exponential_() + torch.empty_like(x).uniform_(-1, 1),
    "order": lambda x: x[torch.randperm(7)] + torch.randint(0, 9, (6, 1)),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "samples": lambda x: torch.multinomial(torch.softmax(x[:, 0], 1), 5, replacement=True).unsqueeze(1) * x,
}  # fmt: skip


@pytest.mark.parametrize("exported", [True, False], ids=["export", "make_fx"])
@pytest.mark.parametrize("name", DRAWS)
def test_what_is_drawn_does_not_depend_on_the_sharding(name: str, exported: bool):
    expected = eager(DRAWS[name])
    for sharding in SHARDED[:: 1 if name == "dropout" else 3]:
        (found,) = spmdir.simulate(program(DRAWS[name], sharding, exported), [X], seed=SEED)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["dropout", "native dropout", "dropout of channels", "noise", "in place"])
def test_masks_and_noise_of_sharded_values_cost_no_communication(name: str):
    module = program(DRAWS[name], "dp: S(0), tp: S(1)", exported=False)
    spmdir.run_passes(module, "propagate,insert-reshard,lower-reshard,fuse-collectives")
    assert not spmdir.report.comm_report(module).count


def test_the_backward_of_dropout_uses_the_mask_of_the_forward():
    def step(x: Tensor) -> Tensor:
        leaf = x.detach().requires_grad_()
        return torch.autograd.grad(F.dropout(leaf, 0.3).square().sum(), leaf)[0]

    (found,) = spmdir.simulate(program(step, "dp: S(0), tp: S(1)", exported=False), [X], seed=SEED)
    torch.testing.assert_close(found, eager(step), rtol=0, atol=0)
