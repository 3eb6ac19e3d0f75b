"""Steps of `shard_module` and `training_step` on four gloo ranks, against FSDP2, DTensor tensor parallelism and DDP.

All sides train the same Llama with AdamW and take turns in one run, each round in another order. A round takes as long
as its slowest process. Prints the ratios of the medians and of the minima over rounds, and the processor time of all
ranks: where there are fewer cores than ranks, a step takes at least that divided by the cores.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import spmdir
from benchmarks.gloo_step import Measured, measured_in_turns
from benchmarks.measure import Row, listed, options, print_table
from benchmarks.programs import rotate
from tests.lowering.gloo_ranks import on_ranks

RANKS = 4

VOCABULARY = 512

HEADS, KV_HEADS = 8, 4


@attrs.frozen
class Size:
    """Layers and width of the model, whose feed-forward is twice as wide; sequences and their length in a batch."""

    layers: int
    dim: int
    batch: int
    seq: int

    def __str__(self) -> str:
        return f"{self.layers} layers, {self.dim} wide, batch {self.batch}x{self.seq}"


SIZES = {
    "tiny": Size(1, 32, 4, 8),
    "small": Size(2, 128, 8, 64),
    "medium": Size(4, 256, 8, 128),
    "large": Size(4, 512, 8, 256),
}

FRONTS = ("shard_module", "training_step")

PEERS = {"fsdp": "FSDP2", "tp": "DTensor", "ddp": "DDP"}
"""Recipe → what it replaces."""

TARGETS = {"fsdp": 0.95, "tp": 0.75, "ddp": 0.9}
"""Recipe → the most that a step should take of the peer's."""


class Norm(nn.Module):
    """RMS norm, as it is written in models that do not call the fused one."""

    def __init__(self, dim: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class Attention(nn.Module):
    """Grouped-query attention with rotary embeddings."""

    def __init__(self, dim: int):
        super().__init__()
        self.head = dim // HEADS
        self.wq, self.wo = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.wk, self.wv = (nn.Linear(dim, KV_HEADS * self.head, bias=False) for _ in range(2))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, seq, _ = x.shape
        q, k, v = (linear(x).view(batch, seq, -1, self.head) for linear in (self.wq, self.wk, self.wv))
        q, k = rotate(q, cos[:, None], sin[:, None]), rotate(k, cos[:, None], sin[:, None])
        k, v = (each.repeat_interleave(q.shape[2] // each.shape[2], dim=2) for each in (k, v))
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        return self.wo(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, seq, -1))


class FeedForward(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.w1, self.w3 = (nn.Linear(dim, 2 * dim, bias=False) for _ in range(2))
        self.w2 = nn.Linear(2 * dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Layer(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.attention_norm, self.attention = Norm(dim), Attention(dim)
        self.ffn_norm, self.feed_forward = Norm(dim), FeedForward(dim)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    """A decoder, with equal weights on all ranks."""

    cos: Tensor
    sin: Tensor

    def __init__(self, size: Size):
        torch.manual_seed(0)
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCABULARY, size.dim)
        self.layers = nn.ModuleList(Layer(size.dim) for _ in range(size.layers))
        self.norm, self.output = Norm(size.dim), nn.Linear(size.dim, VOCABULARY, bias=False)
        head = size.dim // HEADS
        angles = torch.outer(torch.arange(size.seq), 1e4 ** (-torch.arange(0, head, 2) / head)).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return self.output(self.norm(x))


def loss_of(model: nn.Module, tokens: Tensor, labels: Tensor) -> Tensor:
    """Return the cross entropy of each token."""
    return F.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())


def eager_step(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Callable[[], Tensor]:
    """Return a step of a module that autograd differentiates and torch's optimizer updates."""
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> Tensor:
        loss = loss_of(model, *batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def sharded_module(recipe: str, size: Size, batch: tuple[Tensor, Tensor], device_mesh: Any) -> Callable[[], Tensor]:
    """Return the step of a module of `shard_module`; on the axis `dp` each rank has its part of the batch."""
    is_parted = recipe != "tp"
    outputs = ["dp: S(0)"] if is_parted else None
    model = spmdir.shard_module(
        Llama(size), device_mesh, recipe, (batch[0],), local_inputs=is_parted, out_shardings=outputs
    )
    return eager_step(model, _part(batch) if is_parted else batch)


def whole_step(recipe: str, size: Size, batch: tuple[Tensor, Tensor], device_mesh: Any) -> Callable[[], Tensor]:
    """Return the step of a rank of `training_step`."""
    is_parted = recipe != "tp"
    model = Llama(size)
    step, state = spmdir.training_step(model, loss_of, torch.optim.AdamW(model.parameters()))
    parallel = spmdir.parallelize(step, device_mesh, recipe, batch, state=state, local_inputs=is_parted)
    own = _part(batch) if is_parted else batch
    return lambda: parallel(*own)


def peer(recipe: str, size: Size, batch: tuple[Tensor, Tensor], device_mesh: Any) -> Callable[[], Tensor]:
    """Return the step of what torch has for a recipe."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = Llama(size)
    if recipe == "ddp":
        return eager_step(nn.parallel.DistributedDataParallel(model), _part(batch))
    if recipe == "fsdp":
        for layer in model.layers:
            fully_shard(layer, mesh=device_mesh)
        fully_shard(model, mesh=device_mesh)
        return eager_step(model, _part(batch))
    column, row = ColwiseParallel(), RowwiseParallel()
    plan: Any = {f"layers.*.attention.w{name}": column for name in "qkv"} | {"layers.*.attention.wo": row}
    plan |= {"layers.*.feed_forward.w1": column, "layers.*.feed_forward.w3": column, "layers.*.feed_forward.w2": row}
    return eager_step(parallelize_module(model, device_mesh, plan), batch)


def measure(rank: int, recipe: str, size: Size, rounds: int) -> dict[str, Measured]:
    """Return side → what this rank measured of it.

    Raises:
        AssertionError: the sides have other losses.
    """
    axis = "tp" if recipe == "tp" else "dp"
    device_mesh = dist.device_mesh.init_device_mesh("cpu", (RANKS,), mesh_dim_names=(axis,))
    generator = torch.Generator().manual_seed(1)
    tokens, labels = torch.randint(0, VOCABULARY, (2, size.batch, size.seq), generator=generator)
    given = recipe, size, (tokens, labels), device_mesh
    sides = {"shard_module": sharded_module(*given), "training_step": whole_step(*given), PEERS[recipe]: peer(*given)}
    for _ in range(2):
        losses = {name: step() for name, step in sides.items()}
        for name in losses.keys() - ({"training_step"} if recipe != "tp" else losses.keys()):
            dist.all_reduce(losses[name])
            losses[name] /= RANKS
        for loss in losses.values():
            torch.testing.assert_close(loss, losses[PEERS[recipe]], rtol=1e-4, atol=0.0)
    return measured_in_turns(sides, rounds)


def rows(recipe: str, ranks: Sequence[dict[str, Measured]]) -> list[Row]:
    """Return the figures of a run, of what each rank measured."""
    slowest = {
        name: [max(turn) for turn in zip(*(found[name].seconds for found in ranks), strict=True)] for name in ranks[0]
    }
    cpu = {name: sum(min(found[name].cpu) for found in ranks) for name in ranks[0]}
    other = PEERS[recipe]
    shown = []
    for name in FRONTS:
        median, least = (of(slowest[name]) / of(slowest[other]) for of in (statistics.median, min))
        shown.append(Row(f"{name} over {other}, medians", median, TARGETS[recipe]))
        shown.append(Row(f"{name} over {other}, minima", least, TARGETS[recipe]))
        shown.append(Row(f"{name} over {other}, processor time", cpu[name] / cpu[other]))
    for name, seconds in slowest.items():
        detail = f"{ranks[0][name].messages} messages, {1e3 * cpu[name]:.0f} ms of processor"
        detail += f", least {1e3 * min(seconds):.1f} ms"
        shown.append(Row(name, 1e3 * statistics.median(seconds), form="{:.1f} ms", detail=detail))
    return shown


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=40, help="default 40")
    parser.add_argument("--recipes", type=listed(str), default=[*PEERS], help=f"default {','.join(PEERS)}")
    parser.add_argument(
        "--sizes",
        type=listed(str),
        default=["small", "medium", "large"],
        help=f"of {', '.join(SIZES)}; default all but tiny",
    )
    parser.add_argument("--quick", action="store_true", help="the small size alone, 5 rounds")
    given = parser.parse_args()
    sizes, rounds = (["small"], 5) if given.quick else (given.sizes, given.rounds)
    for recipe in given.recipes:
        for name in sizes:
            with tempfile.TemporaryDirectory() as folder:
                ranks = on_ranks(RANKS, measure, Path(folder), recipe, SIZES[name], rounds)
            print_table(f"a step of {recipe} on {RANKS} ranks, {name}: {SIZES[name]}", rows(recipe, ranks))


def _part(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Return this rank's part of a batch."""
    tokens, labels = (each.chunk(RANKS)[dist.get_rank()] for each in batch)
    return tokens, labels


if __name__ == "__main__":
    main()
