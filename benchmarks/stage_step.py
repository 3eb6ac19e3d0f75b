"""A pipelined training step on gloo ranks beside torch.distributed.pipelining with the same stages and order.

Both sides have the same residual blocks with attention, the same micro-batches and AdamW. Each rank holds one stage of
equally many blocks. The sides take turns, each round in another order; a round takes as long as its slowest process.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.functional import scaled_dot_product_attention

import spmdir
from benchmarks.expert_step import rows
from benchmarks.gloo_step import Measured, measured_in_turns
from benchmarks.measure import options, print_table
from spmdir.core.placement.pipeline_axis import PipelineAxis
from spmdir.core.placement.sharding_plan import ShardingPlan
from tests.lowering.gloo_ranks import on_ranks

TARGETS = {"torch": 0.9}
"""Peer → the most that the time of a step should be of the peer's."""

HEADS = 4

SCHEDULES = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}
"""Kind of order → torch's schedule."""


@attrs.frozen
class Sizes:
    """The blocks of all stages, their width, the length of a sequence, sequences and micro-batches of a step."""

    layers: int
    dim: int
    seq: int
    batch: int
    micro: int


class Block(nn.Module):
    """Attention and a perceptron of four times the width, each added to its operand."""

    def __init__(self, dim: int):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.up, self.down = nn.Linear(dim, 4 * dim, bias=False), nn.Linear(4 * dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, seq, dim = x.shape
        q, k, v = (
            part.view(batch, seq, HEADS, dim // HEADS).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).split(dim, -1)
        )
        attended = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, seq, dim))
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm2(x))))


def build(sizes: Sizes) -> nn.Sequential:
    """Return all blocks, with equal weights on all ranks."""
    torch.manual_seed(0)
    return nn.Sequential(*(Block(sizes.dim) for _ in range(sizes.layers)))


def mean_square(result: Tensor, expected: Tensor) -> Tensor:
    """Return the loss of a micro-batch."""
    return (result - expected).square().mean()


def ours(sizes: Sizes, ranks: int, kind: str, x: Tensor, expected: Tensor) -> Callable[[], Any]:
    """Return the step of a rank that `parallelize` cuts into stages."""
    model = build(sizes)
    step, state = spmdir.training_step(
        model,
        lambda model, x, expected: mean_square(model(x), expected),
        torch.optim.AdamW(model.parameters()),
        accumulate=sizes.micro,
    )
    first_blocks = tuple(str(stage * sizes.layers // ranks) for stage in range(1, ranks))
    plan = ShardingPlan({}, pipeline=PipelineAxis("pp", kind, at=first_blocks))
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("pp",))
    parallel = spmdir.parallelize(step, mesh, plan, (x, expected), state=state)
    return lambda: parallel(x, expected)


def torch_stages(sizes: Sizes, ranks: int, kind: str, x: Tensor, expected: Tensor) -> Callable[[], Any]:
    """Return the step of a rank in torch.distributed.pipelining."""
    blocks, rank = build(sizes), dist.get_rank()
    size = sizes.layers // ranks
    part = nn.Sequential(*blocks[rank * size : (rank + 1) * size])
    example = x[: sizes.batch // sizes.micro].clone().requires_grad_(rank > 0)
    stage = PipelineStage(
        part, rank, ranks, torch.device("cpu"), input_args=(example,), output_args=(example.detach().requires_grad_(),)
    )
    schedule = SCHEDULES[kind](stage, sizes.micro, loss_fn=mean_square)
    optimizer = torch.optim.AdamW(part.parameters())

    def step() -> Tensor:
        losses: list[Tensor] = []
        if rank == ranks - 1:
            schedule.step(*(() if rank else (x,)), target=expected, losses=losses)
        else:
            schedule.step(*(() if rank else (x,)))
        optimizer.step()
        optimizer.zero_grad()
        total = torch.stack(losses).mean().detach() if losses else torch.zeros(())
        dist.broadcast(total, ranks - 1)
        return total

    return step


def measure(rank: int, ranks: int, kind: str, sizes: Sizes, rounds: int) -> dict[str, Measured]:
    """Return side → what this rank measured of it.

    Raises:
        AssertionError: the sides have other losses.
    """
    generator = torch.Generator().manual_seed(1)
    x, expected = (torch.randn(sizes.batch, sizes.seq, sizes.dim, generator=generator) for _ in range(2))
    sides = {
        "spmdir": ours(sizes, ranks, kind, x, expected),
        "torch": torch_stages(sizes, ranks, kind, x, expected),
    }
    for _ in range(2):
        losses = [step() for step in sides.values()]
        torch.testing.assert_close(losses[0].reshape(()), losses[1], rtol=1e-4, atol=0.0)
    return measured_in_turns(sides, rounds)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="default 20")
    parser.add_argument("--ranks", type=int, default=4, help="default 4")
    parser.add_argument("--schedule", choices=SCHEDULES, default="1f1b", help="default 1f1b")
    for field, default in zip(attrs.fields(Sizes), (8, 256, 64, 16, 8), strict=True):
        parser.add_argument(f"--{field.name}", type=int, default=default, help=f"default {default}")
    given = parser.parse_args()
    sizes = Sizes(given.layers, given.dim, given.seq, given.batch, given.micro)
    with tempfile.TemporaryDirectory() as folder:
        ranks = on_ranks(given.ranks, measure, Path(folder), given.ranks, given.schedule, sizes, given.rounds)
    print_table(f"a step of {sizes} in {given.ranks} stages, {given.schedule}", rows(ranks, TARGETS))


if __name__ == "__main__":
    main()
