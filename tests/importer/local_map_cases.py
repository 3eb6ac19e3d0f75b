"""A small transformer whose attention is a local map, and its training on real ranks."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import spmdir

HEADS = "dp: S(0), tp: S(1)"
"""The sharding of [batch, heads, sequence, head_dim]."""


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) * scale, -1) @ v


attention = spmdir.local_map(attend, (HEADS, HEADS, HEADS, None), HEADS)


class Block(nn.Module):
    """Attention between two products."""

    def __init__(self, width: int = 8, heads: int = 4):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = [t.reshape(batch, length, self.heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, -1)]
        mixed = attention(*split, scale=0.5)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


Batches = list[tuple[Tensor, Tensor]]
MESH = spmdir.Mesh({"dp": 2, "tp": 2})
PLAN = {"qkv.weight": "tp: S(0)", "out.weight": "tp: S(1)", "input:*": "dp: S(0)"}


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (model(x) - y).square().mean()


def sharded_steps(model: nn.Module, batches: Batches) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Return the losses and the parameters of training steps with `shard_module`."""
    sharded = spmdir.shard_module(model, MESH, PLAN, batches[0][:1])
    return plain_steps(sharded, batches)


def plain_steps(model: nn.Module, batches: Batches) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Return the losses and the parameters of training steps of an eager loop."""
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    for x, y in batches:
        optimizer.zero_grad()
        loss = loss_of(model, x, y)
        loss.backward()
        optimizer.step()
        losses.append(full(loss))
    return losses, {name: full(value) for name, value in model.named_parameters()}


def parallel_steps(model: nn.Module, batches: Batches) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Return the losses and the parameters of training steps with `parallelize`."""
    step, state = spmdir.training_step(model, loss_of, torch.optim.SGD(model.parameters(), lr=0.1))
    parallel = spmdir.parallelize(step, MESH, PLAN, batches[0], state=state)
    losses = [full(parallel(x, y)) for x, y in batches]
    state = parallel.state_dict()
    return losses, {name: full(state[f"parameters.{name}"]) for name, _ in model.named_parameters()}


def full(value: Any) -> Tensor:
    return (value.full_tensor() if isinstance(value, DTensor) else value).detach().clone()


def run(rank: int) -> dict[str, float]:
    """Return for each front end the largest difference of a loss or a parameter from one device."""
    torch.manual_seed(0)
    model = Block().double()
    batches = [(torch.randn(4, 6, 8).double(), torch.randn(4, 6, 8).double()) for _ in range(3)]
    expected_losses, expected = plain_steps(copy.deepcopy(model), batches)
    differences = {}
    for steps in (sharded_steps, parallel_steps):
        losses, parameters = steps(copy.deepcopy(model), batches)
        pairs = [*zip(losses, expected_losses, strict=True), *((parameters[name], expected[name]) for name in expected)]
        differences[steps.__name__] = max((value - other).abs().max().item() for value, other in pairs)
    return differences
