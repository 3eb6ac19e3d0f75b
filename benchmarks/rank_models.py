"""Decoders with the structure of Llama and of GPT-2, and the steps of a rank that runs them with torch's parallelism.

Each step returns the loss and the gradients of all parameters. A step is traced on the fake process group.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

from spmdir.torch_interop.dtensors import inner_tensor

BATCH, SEQUENCE, WIDTH, HEAD = 4, 6, 16, 4
COLUMN, ROW = ("q", "k", "v", "up", "gate"), ("o", "down")
"""The layers whose output features, or input features, tensor parallelism shards."""


class RMSNorm(nn.Module):
    """Root mean square norm, as Llama has it."""

    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))


def rotate(x: Tensor) -> Tensor:
    """Apply rotary position embeddings to [batch, heads, sequence, head]."""
    half = x.shape[-1] // 2
    angles = torch.outer(
        torch.arange(x.shape[2], dtype=x.dtype), 10000.0 ** -(torch.arange(half, dtype=x.dtype) / half)
    )
    cos, sin = torch.cat([angles.cos()] * 2, -1), torch.cat([angles.sin()] * 2, -1)
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


class Block(nn.Module):
    """A layer: pre-norm attention and MLP.

    Args:
        is_llama: rotary positions, grouped keys, a gated MLP and no biases; else those of GPT-2.
    """

    def __init__(self, is_llama: bool):
        super().__init__()
        self.is_llama, norm = is_llama, RMSNorm if is_llama else nn.LayerNorm
        groups, hidden = (WIDTH // 2, 24) if is_llama else (WIDTH, 4 * WIDTH)
        self.norm1, self.norm2 = norm(WIDTH), norm(WIDTH)
        self.q, self.o = (nn.Linear(WIDTH, WIDTH, bias=not is_llama) for _ in range(2))
        self.k, self.v = (nn.Linear(WIDTH, groups, bias=not is_llama) for _ in range(2))
        self.up, self.down = nn.Linear(WIDTH, hidden, bias=not is_llama), nn.Linear(hidden, WIDTH, bias=not is_llama)
        if is_llama:
            self.gate = nn.Linear(WIDTH, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))

    def attention(self, h: Tensor) -> Tensor:
        q, k, v = self.q(h), self.k(h), self.v(h)
        batch, sequence, _ = q.shape
        q, k, v = (y.view(batch, sequence, -1, HEAD).transpose(1, 2) for y in (q, k, v))
        if self.is_llama:
            q, k = rotate(q), rotate(k)
            k, v = (y.repeat_interleave(2, 1) for y in (k, v))
        mask = torch.full((sequence, sequence), float("-inf"), dtype=q.dtype).triu(1)
        weights = torch.softmax(q @ k.transpose(-1, -2) / HEAD**0.5 + mask, -1)
        return self.row(self.o, (weights @ v).transpose(1, 2).reshape(batch, sequence, -1))

    def mlp(self, h: Tensor) -> Tensor:
        return self.row(self.down, F.silu(self.gate(h)) * self.up(h) if self.is_llama else F.gelu(self.up(h)))

    def row(self, layer: nn.Linear, x: Tensor) -> Tensor:
        """Apply the last layer of a part."""
        return layer(x)


class Decoder(nn.Module):
    """A decoder that returns the mean loss of the next tokens."""

    def __init__(self, is_llama: bool, layers: int = 1, vocabulary: int = 12):
        super().__init__()
        self.is_llama = is_llama
        self.embed = nn.Embedding(vocabulary, WIDTH)
        if not is_llama:
            self.positions = nn.Embedding(SEQUENCE, WIDTH)
        self.blocks = nn.ModuleList(Block(is_llama) for _ in range(layers))
        self.norm = RMSNorm(WIDTH) if is_llama else nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, vocabulary, bias=False)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        x = self.embed(ids)
        if not self.is_llama:
            x = x + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return -torch.log_softmax(self.head(self.norm(x)), -1).gather(-1, targets.unsqueeze(-1)).mean()


def train(model: nn.Module, ids: Tensor, targets: Tensor, group: Any = None) -> tuple[Tensor, list[Tensor]]:
    """Return the loss and the local gradient of each parameter.

    Args:
        group: the process group over which the losses of parts of the batch are averaged.
    """
    for parameter in model.parameters():
        parameter.grad = None
    loss = model(ids, targets)
    loss.backward()
    loss = loss.detach().clone()
    if group is not None:
        dist.all_reduce(loss, group=group)
        loss /= group.size()
    gradients = [parameter.grad for parameter in model.parameters()]
    return loss, [inner_tensor(g) if isinstance(g, DTensor) else g for g in gradients]  # type: ignore


@contextmanager
def fake_mesh(rank: int = 0, dp: int = 2, tp: int = 2) -> Iterator[DeviceMesh]:
    """Yield a DeviceMesh with the axes dp and tp, on the fake process group."""
    dist.init_process_group("fake", rank=rank, world_size=dp * tp, store=FakeStore())
    try:
        yield init_device_mesh("cpu", (dp, tp), mesh_dim_names=("dp", "tp"))
    finally:
        dist.destroy_process_group()


def tensor_parallel(model: Decoder, mesh: DeviceMesh) -> Decoder:
    """Apply DTensor's styles to the blocks."""
    plan: dict[str, Any] = {name: ColwiseParallel() for name in COLUMN} | {name: RowwiseParallel() for name in ROW}
    for block in model.blocks:
        parallelize_module(block, mesh["tp"], {name: style for name, style in plan.items() if hasattr(block, name)})
    return model


def sharded(model: Decoder, mesh: DeviceMesh) -> Decoder:
    """Apply FSDP2 to each block and to the model."""
    for block in model.blocks:
        fully_shard(block, mesh=mesh["dp"])
    return fully_shard(model, mesh=mesh["dp"])


class _Copy(torch.autograd.Function):
    """Megatron's f: the identity, whose backward is an all-reduce."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: str) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return all_reduce(gradients[0], ctx.group), None


class _Reduce(torch.autograd.Function):
    """Megatron's g: an all-reduce, whose backward is the identity."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: str) -> Tensor:
        return all_reduce(x, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0], None


def all_reduce(x: Tensor, group: str) -> Tensor:
    """Return the functional all-reduce of a tensor."""
    functional = torch.ops._c10d_functional
    return functional.wait_tensor(functional.all_reduce(x.contiguous(), "sum", group))


class MegatronBlock(Block):
    """A layer with hand-written collectives, on the local weights of a rank."""

    group = "mesh:tp"

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(_Copy.apply(self.norm1(x), self.group))  # type: ignore  # its type is unknown
        return x + self.mlp(_Copy.apply(self.norm2(x), self.group))  # type: ignore  # its type is unknown

    def row(self, layer: nn.Linear, x: Tensor) -> Tensor:
        """Apply a layer whose input features are sharded. Its bias is added to the sum."""
        y: Any = _Reduce.apply(F.linear(x, layer.weight), self.group)
        return y if layer.bias is None else y + layer.bias


def hand_written(is_llama: bool) -> tuple[Decoder, dict[str, str]]:
    """Return (a decoder with hand-written collectives, name → sharding of its weights)."""
    model = Decoder(is_llama)
    for block in model.blocks:
        block.__class__ = MegatronBlock
    shardings = {}
    for name in dict(model.named_parameters()):
        layer, kind = name.split(".")[-2:]
        if layer in COLUMN:
            shardings[name] = "tp: S(0)"
        elif layer in ROW and kind == "weight":
            shardings[name] = "tp: S(1)"
    return model, shardings
