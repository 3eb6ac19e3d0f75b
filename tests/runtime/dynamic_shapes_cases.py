"""What each rank does in `test_dynamic_shapes`."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.export import Dim

import spmdir
from spmdir.core.mesh import Mesh
from tests.models.zoo import optimizer_of
from tests.runtime.parallelize_cases import error_of

PAIRS = [(4, 6), (3, 7), (5, 2)]
"""Batch and sequence of each call: as traced, and such that nothing divides."""


class Model(nn.Module):
    """Flattens batch and sequence, and looks at positions."""

    def __init__(self):
        super().__init__()
        self.embed, self.up, self.down = nn.Embedding(24, 8), nn.Linear(8, 16), nn.Linear(16, 24)

    def forward(self, ids: Tensor) -> Tensor:
        batch, length = ids.shape
        hidden = self.embed(ids) * torch.arange(1, length + 1)[:, None] / batch
        return self.down(self.up(hidden.view(batch * length, 8)).relu()).view(batch, length, 24)


def loss_of(model: nn.Module, ids: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(ids).flatten(0, 1), target.flatten())


def inputs(batch: int, length: int) -> tuple[Tensor, Tensor]:
    """Token ids and targets; equal on all ranks."""
    generator = torch.Generator().manual_seed(batch * 100 + length)
    ids, target = (torch.randint(24, (batch, length), generator=generator) for _ in range(2))
    return ids, target


def modules(rank: int, mesh: Mesh, model: nn.Module, plan: Any, open_sizes: Any) -> list[list[Any]]:
    """Losses and gradients at all sizes, of a sharded module that begins as the first rank's, and of that one alone."""
    own = copy.deepcopy(model)
    with torch.no_grad():
        own.up.weight.add_(rank)  # type: ignore  # a parameter
    ids, _ = inputs(*PAIRS[0])
    sharded = spmdir.shard_module(own, mesh, plan, (ids,), dynamic_shapes={"ids": open_sizes}, sync_state=True)
    found = []
    for each in (sharded, model):
        found.append([])
        for pair in PAIRS:
            loss = loss_of(each, *inputs(*pair))
            loss.backward()
            found[-1].append([loss.detach(), *(full(parameter.grad) for parameter in each.parameters())])
            each.zero_grad()
    return found


def full(tensor: Any) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.clone()


def run(rank: int, mesh: Mesh) -> dict[str, Any]:
    """A forward and training steps, each decided once and called at all sizes."""
    torch.manual_seed(0)
    model, (ids, target) = Model().double(), inputs(*PAIRS[0])
    open_sizes = {0: Dim("batch", max=16), 1: Dim("length", max=16)}
    expected = [model(inputs(*pair)[0]) for pair in PAIRS]
    plan: dict[str, object] = {"up.weight": "tp: S(0), dp: S(0)", "down.weight": "tp: S(1)"}
    program = spmdir.parallelize(model, (ids,), mesh, {**plan, "ids": "dp: S(0)"}, dynamic_shapes=(open_sizes,))
    outputs = [program(inputs(*pair)[0]) for pair in PAIRS]
    again = program(inputs(*PAIRS[0])[0])
    refused = error_of(lambda: program(torch.zeros(17, 3, dtype=torch.int64)))
    step, state = spmdir.training_step(model, loss_of, optimizer_of("sgd", model, lr=0.1))
    trained = spmdir.parallelize(step, (ids, target), mesh, plan, state=state, dynamic_shapes=(open_sizes,) * 2)
    losses, wanted = [], []
    for pair in PAIRS:
        losses.append(trained(*inputs(*pair)))
        loss, state = step(state, *inputs(*pair))
        wanted.append(loss)
    return {
        "modules": modules(rank, mesh, model, {**plan, "ids": "dp: S(0)"}, open_sizes),
        "outputs": [*outputs, again],
        "expected": [*expected, expected[0]],
        "losses": losses,
        "wanted": wanted,
        "state": trained.gather_state(),
        "wanted state": state,
        "refused": refused,
        "different": error_of(lambda: trained(inputs(3, 4)[0], inputs(3, 5)[1])),
        "local": error_of(
            lambda: spmdir.parallelize(model, (ids,), mesh, local_inputs=True, dynamic_shapes=(open_sizes,))
        ),
    }
