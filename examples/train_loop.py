"""Train a small Llama in a loop of one's own: from the meta device to a checkpoint, and on from it in a second start.

Run with `torchrun --nproc-per-node 4 examples/train_loop.py "fsdp*tp"`; the plan is "fsdp" if none is named. The loop
is one for FSDP2, as that of torchtitan: `shard_module` takes the place of `fully_shard`. Losses after the second start
are those of a run that goes on, and of one device.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

import spmdir

WIDTH, HEADS, VOCABULARY = 32, 4, 64
ROWS, LENGTH = 32, 64
UPDATES, STOP, MICRO_BATCHES = 4, 2, 2


class Block(nn.Module):
    """Attention and a gated perceptron, each after a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.w1, self.w3 = nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.w2 = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.attention_norm(x)
        q, k, v = (w(normed).unflatten(-1, (HEADS, -1)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.wo(mixed.transpose(1, 2).flatten(2))
        hidden = self.norm(x)
        return x + self.w2(F.silu(self.w1(hidden)) * self.w3(hidden))


class Llama(nn.Module):
    """A causal language model of one block, which returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.block, self.norm = nn.Embedding(VOCABULARY, WIDTH), Block(), nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        logits = self.head(self.norm(self.block(self.embedding(tokens))))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def batch(number: int) -> tuple[Tensor, Tensor]:
    """Tokens and labels of a micro-batch, equal on all ranks, which take their rows of it."""
    generator = torch.Generator().manual_seed(number)
    tokens = torch.randint(0, VOCABULARY, (ROWS, LENGTH + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


class Run:
    """A model with what trains it, and how far it is."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        warmup = LinearLR(self.optimizer, start_factor=0.5, total_iters=1)
        self.scheduler = SequentialLR(self.optimizer, [warmup, CosineAnnealingLR(self.optimizer, UPDATES)], [1])
        self.progress: dict[str, Any] = {"updates": 0, "losses": []}

    @property
    def state(self) -> dict[str, Any]:
        """What a checkpoint has."""
        return {
            "model": self.model,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "progress": self.progress,
        }

    def train(self, until: int) -> None:
        """Make updates, each by the mean loss of several micro-batches."""
        while self.progress["updates"] < until:
            for micro in range(MICRO_BATCHES):
                loss = self.model(*batch(self.progress["updates"] * MICRO_BATCHES + micro)) / MICRO_BATCHES
                loss.backward()
                self.progress["losses"].append(loss.item())
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()
            self.progress["updates"] += 1


def empty() -> nn.Module:
    """The model on the meta device."""
    with torch.device("meta"):
        return Llama().double()


def start(folder: Path, plan: str) -> Run:
    """A run on all ranks. The last checkpoint gives its state; if there is none, parameters are initialised."""
    ranks, words = dist.get_world_size(), plan.count("*") + 1
    mesh = spmdir.Mesh({"dp": ranks} if words == 1 else {"dp": ranks // 2, "tp": 2})
    run = Run(spmdir.shard_module(empty(), mesh, plan, batch(0), cache=folder / "programs"))
    if (folder / "checkpoints").exists():
        spmdir.checkpoint.load(folder / "checkpoints", run.state)
    else:
        torch.manual_seed(0)
        spmdir.checkpoint.materialize(run.model, empty())
    return run


def alone() -> Run:
    """A run on one device, initialised alike."""
    model = Llama().double()
    torch.manual_seed(0)
    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()  # type: ignore[operator]  # a method
    return Run(model)


def main(arguments: Sequence[str]) -> int:
    """Train, stop, start again; 0 if losses are those of a run that goes on, and of one device."""
    (plan,) = arguments or ["fsdp"]
    dist.init_process_group("gloo")
    folders = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(folders)  # in a script, a path that all ranks share
    folder = Path(folders[0])

    first = start(folder, plan)
    first.train(STOP)
    spmdir.checkpoint.save(folder / "checkpoints", first.state, step=STOP)

    second = start(folder, plan)
    begun = second.progress["updates"]
    single = alone()
    for run in (first, second, single):
        run.train(UPDATES)
    losses = second.progress["losses"]
    goes_on = losses == first.progress["losses"]
    error = max(abs(a - b) for a, b in zip(losses, single.progress["losses"], strict=True))
    if dist.get_rank() == 0:
        print(f"the second start is at update {begun}; its losses are those of a run that goes on: {goes_on}")
        print(f"{len(losses)} losses differ from one device by less than 1e-12: {error < 1e-12}")
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder)
    dist.destroy_process_group()
    return int(not goes_on or error >= 1e-12)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
