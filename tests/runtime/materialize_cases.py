"""What real ranks do in the tests of models from the meta device and of safetensors files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import torch as safetensors
from torch import Tensor, nn

import spmdir
from spmdir.core.mesh import Mesh
from tests.runtime.checkpoint_cases import error_of

MESH = Mesh({"dp": 2, "tp": 2})
PLAN = {"embed.weight": "tp: Cyclic(0, 3), dp: S(1)", "down.weight": "tp: S(1), dp: S(1)", "up.weight": "dp: Padded(0)"}


class Scaled(nn.Module):
    """A layer with a buffer that is in no file, computed when it is initialised."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(6))
        self.register_buffer("table", torch.empty(6), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight)
        self.table.copy_(torch.arange(6))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight + self.table


class Tied(nn.Module):
    """Tied weights, sizes that ranks cannot share evenly, and normalisation with counts."""

    def __init__(self):
        super().__init__()
        self.embed, self.scaled = nn.Embedding(11, 6), Scaled()
        self.up, self.down = nn.Linear(6, 7), nn.Linear(7, 6)
        self.norm = nn.BatchNorm1d(6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.down(self.up(self.scaled(self.embed(ids))).relu())) + torch.tensor([0.5]))


class Bare(nn.Module):
    """A module that has a parameter and another module, and no method that initialises it."""

    def __init__(self):
        super().__init__()
        self.weight, self.inner = nn.Parameter(torch.ones(4)), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x * self.weight)


IDS = torch.tensor([1, 5, 10, 0])


def whole(seed: int) -> Tied:
    """The model as one device initialises it."""
    model = Tied().double()
    torch.manual_seed(seed)
    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    return model


def from_meta() -> Tied:
    with torch.device("meta"):
        return Tied().double()


def step_of(model: nn.Module) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return spmdir.training_step(model, lambda model, ids: model(ids).square().mean(), optimizer)


def run(rank: int, folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    expected = whole(3)
    meta = from_meta()
    parallel = spmdir.parallelize(meta.eval(), MESH, PLAN, (IDS,))
    found["unset"] = error_of(lambda: parallel(IDS))
    torch.manual_seed(3 + rank)
    spmdir.checkpoint.materialize(parallel, meta)
    found["forward"] = [parallel(IDS), expected.eval()(IDS).detach()]
    found["state"] = [parallel.state_dict(), {**expected.state_dict(), "scaled.table": expected.scaled.table}]
    found["drawn"] = [torch.rand(1), following(3)]

    step, state = step_of(meta.train())
    trained = spmdir.parallelize(step, MESH, PLAN, (IDS,), state=state)
    torch.manual_seed(3)
    spmdir.checkpoint.materialize(trained, meta)
    step, state = step_of(expected.train())
    loss, state = step(state, IDS)
    found["step"] = [trained(IDS), loss]
    found["trained"] = [trained.gather_state(), state]

    spmdir.checkpoint.save_safetensors(folder / "files", trained, {"buffers.scaled.table": None}, file_bytes=400)
    spmdir.checkpoint.save_safetensors(folder / "one", trained)
    found["files"] = sorted(path.name for path in (folder / "files").iterdir())
    found["content"] = safetensors.load_file(folder / "one" / "model.safetensors")
    again = spmdir.parallelize(meta.eval(), MESH, {"embed.weight": "dp: S(0)", "up.weight": "tp: S(1)"}, (IDS,))
    spmdir.checkpoint.load_safetensors(folder / "files", again, {"scaled.table": None})
    found["left"] = sorted(again.unset)
    spmdir.checkpoint.materialize(again, meta)
    found["loaded"] = again.state_dict()
    found["errors"] = errors(folder, again)
    found["module"] = sharded_module(folder, rank)
    return found


def updates(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
    """Return the losses of two updates."""
    losses = []
    for _ in range(2):
        loss = model(IDS).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def sharded_module(folder: Path, rank: int) -> dict[str, Any]:
    """A sharded module of a model from the meta device, then two that load what it became."""

    def made() -> tuple[nn.Module, torch.optim.Optimizer]:
        module = spmdir.shard_module(from_meta(), MESH, PLAN, (IDS,), cache=folder / "programs")
        return module, torch.optim.AdamW(module.parameters(), lr=1e-2)

    expected = whole(3)
    alone = torch.optim.AdamW(expected.parameters(), lr=1e-2)
    first, optimizer = made()
    found: dict[str, Any] = {
        "call": error_of(lambda: first(IDS)),
        "save": error_of(lambda: spmdir.checkpoint.save(folder / "run", {"model": first})),
        "save files": error_of(lambda: spmdir.checkpoint.save_safetensors(folder / "module", first)),
    }
    torch.manual_seed(3 + rank)
    spmdir.checkpoint.materialize(first, from_meta())
    found["losses"] = [updates(first, optimizer), updates(expected, alone)]
    spmdir.checkpoint.save(folder / "run", {"model": first, "optimizer": optimizer})
    spmdir.checkpoint.save_safetensors(folder / "module", first)
    found["following"] = [updates(expected, alone)]

    second, optimizer = made()
    misnamed = {"up.weight": "nowhere"} if rank == 2 else None
    found["misnamed"] = error_of(lambda: spmdir.checkpoint.load_safetensors(folder / "module", second, misnamed))
    found["untouched"] = all(tensor.is_meta for tensor in (*second.parameters(), *second.buffers()))
    spmdir.checkpoint.load(folder / "run", {"model": second, "optimizer": optimizer})
    found["left"] = [name for name, tensor in second.named_buffers() if tensor.is_meta]
    spmdir.checkpoint.materialize(second, from_meta())
    found["following"].append(updates(second, optimizer))

    third, optimizer = made()
    third.to_empty(device="cpu")
    spmdir.checkpoint.load_safetensors(folder / "module", third)
    with torch.no_grad():
        third.get_buffer("scaled.table").copy_(first.get_buffer("scaled.table"))
    found["loaded"] = [third.eval()(IDS).detach(), first.eval()(IDS).detach()]
    found["programs"] = sorted(path.name for path in (folder / "programs").iterdir())
    return found


def reset_all(module: nn.Module) -> None:
    for parameter in module.parameters():
        nn.init.ones_(parameter)


def following(seed: int) -> Tensor:
    """What one device draws next after it has initialised the model."""
    whole(seed)
    return torch.rand(1)


def errors(folder: Path, parallel: spmdir.Parallel) -> dict[str, str]:
    before = parallel.state_dict()
    file = folder / "one" / "model.safetensors"
    broken = folder / f"broken {torch.distributed.get_rank()}.safetensors"
    broken.write_bytes(file.read_bytes()[:-8])
    held = parallel.state["up.weight"]
    load = spmdir.checkpoint.load_safetensors
    bare = Bare().to("meta")
    unset = spmdir.parallelize(bare, Mesh({"dp": 4}), None, (torch.ones(4),))
    found = {
        "missing": error_of(lambda: load(file, {"upper": held})),
        "shape": error_of(lambda: load(file, {"down.weight": held})),
        "type": error_of(lambda: load(file, {"up.weight": torch.zeros(7, 6)})),
        "broken": error_of(lambda: load(broken, parallel)),
        "no file": error_of(lambda: load(folder / "nowhere", parallel)),
        "there": error_of(lambda: spmdir.checkpoint.save_safetensors(folder / "one", parallel)),
        "no method": error_of(lambda: spmdir.checkpoint.materialize(unset, bare)),
        "others": error_of(lambda: spmdir.checkpoint.materialize(unset, bare, reset_all)),
        "no values": error_of(
            lambda: spmdir.checkpoint.materialize(unset, bare, lambda module: nn.init.zeros_(module.weight))
        ),
    }
    converted = torch.zeros(7, 6)
    load(file, {"weight": converted}, {"weight": "up.weight"}, convert=True)
    assert torch.equal(converted, safetensors.load_file(file)["up.weight"].float())
    for name, tensor in parallel.state_dict().items():
        assert torch.equal(tensor, before[name])
    return found
