"""What real ranks do in the tests of checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

import spmdir
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import parse_sharding
from spmdir.runtime.local_state import as_dtensor, copy_shard, dtensor_of_shard, like_shard, local_shard
from spmdir.simulator.distribution import local_tensor
from tests.runtime.parallelize_cases import error_of

SHAPE = (7, 5)
FOUR, LINE = Mesh({"dp": 2, "tp": 2}), Mesh({"dp": 4})
ON_FOUR = [
    "", "dp: S(0), tp: S(0)", "tp: S(0), dp: S(0)", "tp: S(0), dp: S(1)", "dp: Cyclic(0, 2)",
    "dp: Strided(0, 2), tp: S(0)", "tp: Strided(1, 2)", "dp: Padded(0)", "dp: Padded(0), tp: Padded(0)",
    "tp: ZigZag(0), dp: S(0)",
]  # fmt: skip
ON_LINE = ["dp(1)2: S(0), dp(2)2: S(1)", "dp(2)2: S(0)", "dp: Ragged(0, [1, 3, 0, 3])", "dp: Padded(1)"]
ON_TWO = ["tp: S(0)", "tp: Cyclic(1, 1)", "tp: Padded(0)", "tp: Strided(0, 3)", ""]
"""Shardings of a tensor of 7 rows, of those who save and those who load."""

TENSORS = {f"four {index}": text for index, text in enumerate(ON_FOUR)}
TENSORS |= {f"line {index}": text for index, text in enumerate(ON_LINE)}


class Dropping(nn.Module):
    """Sizes that ranks cannot share evenly, and random numbers."""

    def __init__(self, seed: int):
        super().__init__()
        torch.manual_seed(seed)
        self.up, self.down = nn.Linear(5, 7), nn.Linear(7, 5)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.down(nn.functional.dropout(self.up(x).relu(), 0.3, training=True))


def trained(seed: int, mesh: Mesh, plan: dict[str, str]) -> spmdir.Parallel:
    """A training step of AdamW with moments laid out as the weights."""
    model = Dropping(seed).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    step, state = spmdir.training_step(model, lambda model, x: model(x).square().mean(), optimizer)
    return spmdir.parallelize(step, mesh, plan, (batch(0),), state=state)


def batch(index: int) -> Tensor:
    return torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(index))


PLANS = [
    {"up.weight": "tp: S(0), dp: S(0)", "down.weight": "dp: Cyclic(1, 2)", "up.bias": "tp: Strided(0, 2)"},
    {"up.weight": "tp: Cyclic(0, 1)", "down.*": "tp: S(0)"},
]
"""Of those who save on four ranks, and of those who load on two."""


class Weights(nn.Module):
    """A module of two weights, as DTensors of given shardings."""

    def __init__(self, mesh: Mesh, texts: tuple[str, str], seed: int):
        super().__init__()
        torch.manual_seed(seed)
        for name, text in zip(("first", "second"), texts, strict=True):
            whole = nn.Parameter(torch.randn(SHAPE, dtype=torch.float64))
            setattr(self, name, distributed(whole, text, mesh))


def distributed(whole: Tensor, text: str, mesh: Mesh) -> Any:
    sharding, rank = parse_sharding(text), dist.get_rank()
    device_mesh = dist.device_mesh.init_device_mesh("cpu", tuple(mesh.sizes.values()), mesh_dim_names=mesh.axis_names)
    shard = copy_shard(whole, sharding, mesh, rank, torch.device("cpu"))
    return as_dtensor("w", shard, sharding, tuple(whole.shape), mesh, device_mesh)


def update(module: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any) -> Tensor:
    """Make one update with clipped gradients of Σ w⁴, and return the norm of the gradients."""
    optimizer.zero_grad()
    for parameter in module.parameters():
        parameter.grad = like_shard(parameter, 4 * local_shard(parameter).detach() ** 3)  # type: ignore[arg-type]
    norm = nn.utils.clip_grad_norm_(module.parameters(), 0.5)
    optimizer.step()
    scheduler.step()
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def loop(module: nn.Module) -> dict[str, Any]:
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1))
    return {"model": module, "optimizer": optimizer, "scheduler": schedule, "progress": {"epoch": 0}}


def run_loop(parts: dict[str, Any], count: int) -> list[Tensor]:
    return [update(parts["model"], parts["optimizer"], parts["scheduler"]) for _ in range(count)]


WHOLE = torch.arange(35, dtype=torch.float64).view(SHAPE)


def save_on_four(rank: int, folder: Path) -> dict[str, Any]:
    """Save a training step, a module with its optimizer, and a tensor of each layout; go on, and resume."""
    parallel = trained(0, FOUR, PLANS[0])
    parallel(batch(0))
    spmdir.checkpoint.save(folder / "step", {"step": parallel, "counts": {"seen": 4, "names": ["a"]}})
    saved = parallel.state_dict()
    after = [parallel(batch(1)), torch.rand(2)]
    resumed, counts = trained(1, FOUR, PLANS[0]), {"seen": 0, "names": []}
    place = spmdir.checkpoint.load(folder / "step", {"step": resumed, "counts": counts})
    again = [resumed(batch(1)), torch.rand(2)]

    parts = loop(Weights(FOUR, ("tp: S(0), dp: S(0)", "dp: S(1)"), 0))
    run_loop(parts, 2)
    parts["progress"]["epoch"] = 2
    spmdir.checkpoint.save(folder / "loop", parts, step=2)

    tensors = {
        name: distributed(WHOLE, text, FOUR if name.startswith("four") else LINE) for name, text in TENSORS.items()
    }
    spmdir.checkpoint.save(folder / "tensors", {"tensors": tensors, "empty": distributed(torch.zeros(0, 3), "", FOUR)})
    return {
        "saved": saved,
        "after": after,
        "again": again,
        "states": [parallel.state_dict(), resumed.state_dict()],
        "counts": counts,
        "place": place.name,
        "norms": run_loop(parts, 2),
        "kinds": {name: type(held._local_tensor).__name__ for name, held in parallel.state.items()},  # type: ignore
        "foreign": foreign(rank, folder),
        **errors(rank, folder),
    }


class Counted:
    """What loads its own state; of that, `repr` tells the address."""

    def __init__(self, is_full: bool = False):
        self.is_full = is_full

    def state_dict(self) -> dict[str, Any]:
        return {"of": object(), "rate": float("nan")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.is_full:
            raise spmdir.SpmdirError("no place for a state")


def errors(rank: int, folder: Path) -> dict[str, Any]:
    """What is refused on all ranks, one of which alone finds it."""
    whole = distributed(WHOLE, "", FOUR)
    odd = dtensor_of_shard(torch.zeros(1 + 2 * (rank > 1), 5), SHAPE, whole.device_mesh, [Shard(0), Replicate()])
    spmdir.checkpoint.save(folder / "one", {"w": whole})
    spmdir.checkpoint.save(folder / "bad", {"w": distributed(WHOLE, "dp: S(0), tp: S(0)", FOUR)})
    spmdir.checkpoint.save(folder / "own", {"own": Counted(), "bare": 3})
    if rank == 0:
        file = next((folder / "bad" / "step-00000000").glob("__3_*"))
        file.write_bytes(file.read_bytes()[:-1] + b"x")
    dist.barrier()
    held = distributed(WHOLE * 0, "tp: S(0), dp: S(0)", FOUR)
    found = {
        "partial": error_of(lambda: spmdir.checkpoint.save(folder / "none", {"w": distributed(WHOLE, PARTIAL, FOUR)})),
        "odd": error_of(lambda: spmdir.checkpoint.save(folder / "none", {"w": odd})),
        "differs": error_of(lambda: spmdir.checkpoint.save(folder / "none", {"w": torch.full((2,), rank)})),
        "step": error_of(lambda: spmdir.checkpoint.save(folder / "none", {"w": whole}, step=rank)),
        "keep": error_of(lambda: spmdir.checkpoint.save(folder / "none", {"w": whole}, keep=rank + 1)),
        "directory": error_of(lambda: spmdir.checkpoint.save(folder / str(rank), {"w": whole})),
        "damaged": error_of(lambda: spmdir.checkpoint.load(folder / "bad", {"w": held})),
        "one rank": error_of(lambda: spmdir.checkpoint.load(folder / "one", {"v" if rank == 2 else "w": held})),
        "restored": error_of(lambda: spmdir.checkpoint.load(folder / "own", {"own": Counted(is_full=rank == 2)})),
        "bare": error_of(lambda: spmdir.checkpoint.load(folder / "own", {"bare": 3})),
        "mixed": error_of(lambda: held + distributed(WHOLE, "dp: Cyclic(0, 1), tp: S(0)", FOUR)),
        "gathered": error_of(lambda: held.full_tensor()),
    }
    return {**found, "written": float(local_shard(held).abs().sum()), "left": (folder / "none").exists()}


PARTIAL = "dp: P(sum)"


def load_on_two(rank: int, folder: Path) -> dict[str, Any]:
    """Load what four ranks saved, with other plans."""
    mesh = Mesh({"tp": 2})
    parallel = trained(2, mesh, PLANS[1])
    spmdir.checkpoint.load(folder / "step", {"step": parallel})
    parts = loop(Weights(mesh, ("tp: Cyclic(0, 1)", "tp: S(0)"), 1))
    spmdir.checkpoint.load(folder / "loop", parts)
    wrong = []
    for text in ON_TWO:
        loaded = {name: distributed(torch.zeros_like(WHOLE), text, mesh) for name in TENSORS}
        spmdir.checkpoint.load(folder / "tensors", {"tensors": loaded, "empty": torch.ones(0, 3)})
        own = local_tensor(WHOLE, parse_sharding(text), mesh, rank)
        wrong += [(TENSORS[name], text) for name in loaded if not torch.equal(local_shard(loaded[name]), own)]
    return {
        "state": parallel.state_dict(),
        "epoch": parts["progress"]["epoch"],
        "rate": parts["optimizer"].param_groups[0]["lr"],
        "norms": run_loop(parts, 2),
        "wrong": wrong,
    }


def joined(rank: int, world_size: int, store: Path) -> None:
    """Join the ranks that meet at a file."""
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=world_size, timeout=timedelta(seconds=100)
    )


def save_as_rank(rank: int, folder: Path, turn: int, before: Callable[[], None] | None) -> None:
    """Save a tensor of four ranks, each of which may do something before."""
    joined(rank, 4, folder / f"save {turn}")
    held = distributed(WHOLE + turn, "dp: S(0)", LINE)
    if before:
        before()
    spmdir.checkpoint.save(folder / "run", {"w": held, "progress": {"turn": turn}})


def load_as_rank(rank: int, folder: Path, turn: int) -> None:
    """Load it on two ranks, along the other dimension."""
    joined(rank, 2, folder / f"load {turn}")
    mesh = Mesh({"tp": 2})
    state = {"w": distributed(WHOLE * 0, "tp: S(1)", mesh), "progress": {"turn": -1}}
    spmdir.checkpoint.load(folder / "run", state)
    own = local_tensor(WHOLE + state["progress"]["turn"], parse_sharding("tp: S(1)"), mesh, rank)
    assert torch.equal(local_shard(state["w"]), own)


def foreign(rank: int, folder: Path) -> list[Tensor]:
    """Save DTensors that torch would save wrongly, of several blocks and in another order, and load them whole."""
    line, square = (distributed(WHOLE, "", mesh).device_mesh for mesh in (LINE, FOUR))
    blocks = local_tensor(WHOLE, parse_sharding("dp: Strided(0, 2)"), LINE, rank).contiguous()
    shard = local_tensor(WHOLE, parse_sharding("tp: S(0), dp: S(0)"), FOUR, rank)
    ordered = dtensor_of_shard(shard, SHAPE, square, [Shard(0), Shard(0)])
    entry = next(iter(ordered._spec.shard_order))
    ordered._spec.shard_order = (entry._replace(mesh_dims=(1, 0)),)
    saved = {"blocks": dtensor_of_shard(blocks, SHAPE, line, [_StridedShard(0, split_factor=2)]), "ordered": ordered}
    spmdir.checkpoint.save(folder / "foreign", saved)
    loaded = {name: torch.zeros_like(WHOLE) for name in saved}
    spmdir.checkpoint.load(folder / "foreign", loaded)
    return [*loaded.values()]
