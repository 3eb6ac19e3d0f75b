"""Stages that `shard_module` partitions, run by torch's pipelining in orders of spmdir: what one rank does."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

import spmdir

RANKS, MICRO = 2, 4
"""Ranks along the pipeline axis, and micro-batches. Each stage is sharded over two more ranks."""

PLAN = {"*.up.weight": "tp: S(0)", "*.up.bias": "tp: S(0)", "*.down.weight": "tp: S(1)"}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


def blocks() -> list[Block]:
    torch.manual_seed(0)
    return [Block().double() for _ in range(4)]


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(8, 8, generator=generator).double(), torch.randn(8, 8, generator=generator).double()


def loss(y: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    return (y - expected).square().mean()


def expected_gradients(stage: int) -> dict[str, torch.Tensor]:
    """Return the gradients of a stage on one device, accumulated over the micro-batches."""
    model, (x, expected) = nn.Sequential(*blocks()), batch()
    for part, part_expected in zip(x.chunk(MICRO), expected.chunk(MICRO), strict=True):
        (loss(model(part), part_expected) / MICRO).backward()
    own = nn.Sequential(*model[2 * stage : 2 * stage + 2])
    return {name: parameter.grad for name, parameter in own.named_parameters()}  # type: ignore[misc]


def run(rank: int, orders: dict[str, str]) -> dict[str, float]:
    """Return kind → the largest relative error of a gradient of this rank's stage."""
    mesh = init_device_mesh("cpu", (RANKS, 2), mesh_dim_names=("pp", "tp"))
    number, (x, expected) = mesh["pp"].get_local_rank(), batch()
    errors = {}
    for kind, path in orders.items():
        stage = nn.Sequential(*blocks()[2 * number : 2 * number + 2])
        sharded = spmdir.shard_module(stage, mesh["tp"], PLAN, (x[:2],))
        example = x[:2].clone().requires_grad_(number > 0)
        runtime = PipelineStage(
            sharded,
            number,
            RANKS,
            torch.device("cpu"),
            input_args=(example,),
            output_args=(x[:2].clone().requires_grad_(),),
            group=mesh["pp"].get_group(),
        )
        schedule = _PipelineScheduleRuntime([runtime], MICRO, loss_fn=loss)
        schedule._load_csv(path, format="compute_only")
        schedule.step(*([x] if number == 0 else []), target=expected)
        wanted = expected_gradients(number)
        errors[kind] = max(
            ((parameter.grad.full_tensor() - wanted[name]).abs().max() / wanted[name].abs().max()).item()  # type: ignore
            for name, parameter in sharded.named_parameters()
        )
    return errors
