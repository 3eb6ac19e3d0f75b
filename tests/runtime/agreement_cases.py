"""What each of two ranks does in `test_agreement`, where one of them does something else."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import attrs
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.export import Dim

import spmdir
from spmdir.core.errors import UnsupportedError
from spmdir.core.mesh import Mesh
from spmdir.passes.propagate import PropagatePass
from spmdir.runtime import initial_state, rank_programs
from tests.runtime.parallelize_cases import error_of

MESH = Mesh({"tp": 2})
PLAN = {"up.weight": "tp: S(0)", "up.bias": "tp: S(0)", "down.weight": "tp: S(1)"}
SOON = 2.0
"""Seconds after which a rank gives up on one that does not come at all."""


class Model(nn.Module):
    def __init__(self, seed: int = 0):
        super().__init__()
        torch.manual_seed(seed)
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x).relu())


class Numbers(Model):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * x.sum().item()


class Tied(Model):
    """A model whose layers have one weight."""

    def __init__(self, seed: int = 0):
        super().__init__(seed)
        self.down.weight = self.up.weight = nn.Parameter(torch.randn(4, 4, dtype=torch.float64))
        self.up.bias = self.down.bias


@attrs.frozen
class Unsteady(spmdir.placement.ShardPlacement):
    """Shards whose order depends on the process, as those by the hash of a text do."""

    text = "Unsteady({dim})"
    dim: int

    def ranges(self, size, count, index):
        at, step = (index + dist.get_rank()) % count, -(-size // count)
        return ((min(at * step, size), min((at + 1) * step, size)),)


X = torch.ones(3, 4, dtype=torch.float64)


def parallel(model: nn.Module | None = None, mesh: Any = MESH, **options: Any) -> spmdir.Parallel:
    return spmdir.parallelize(model or Model(), mesh, options.pop("shardings", PLAN), (X,), **options)


def fresh_mesh() -> DeviceMesh:
    """A device mesh with a group of its own, since one that has failed is of no use any more."""
    group: Any = dist.new_group([0, 1])
    return DeviceMesh.from_group(group, "cpu", mesh_dim_names=("tp",))


def impatient(program: spmdir.Parallel) -> spmdir.Parallel:
    """The program, which from now on gives up soon on a rank that does not come at all."""
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=SOON), program._ranks.device_mesh.get_group())
    program._ranks.group.timeout = SOON
    return program


def between_comparisons(program: spmdir.Parallel) -> spmdir.Parallel:
    """The program, after calls that compare inputs and before one that does not."""
    program(X), program(X)
    return impatient(program)


def agreement(rank: int) -> dict[str, Any]:
    """Errors before a run, on one rank or by comparison."""
    own = Model().to("meta") if rank else Model()
    found: dict[str, Any] = {
        "import": error_of(lambda: parallel(shardings={"nope": "tp: S(0)"} if rank else PLAN)),
        "trace": error_of(lambda: parallel(Model() if rank else Numbers())),
        "mesh": error_of(lambda: parallel(mesh=Mesh({"dp": 2}) if rank else MESH, shardings={})),
        "program": error_of(lambda: parallel(shardings={} if rank else PLAN)),
        "placements": error_of(lambda: parallel(shardings={"x": "tp: Unsteady(0)"})),
        "weights": error_of(lambda: parallel(Model(rank))),
        "sync_state": error_of(lambda: parallel(Model(rank), sync_state=bool(rank))),
        "meta": error_of(lambda: spmdir.shard_module(own, MESH, PLAN, (X,), sync_state=True)),
        "local_inputs": error_of(lambda: parallel(local_inputs=bool(rank))),
        "compile": error_of(lambda: parallel(compile={"max_autotune": bool(rank)})),
        **forwards(rank),
    }
    state = error_of_raw(rank)
    synchronised = parallel(Model(rank), sync_state=True)
    by_device_mesh = parallel(mesh=fresh_mesh())
    return {
        **found,
        "raw": state,
        "synchronised": synchronised(X),
        "device mesh": by_device_mesh(X),
        "expected": Model()(X).detach(),
        "precision": error_of(lambda: by_device_mesh(X.float())),
        "again": by_device_mesh(X),
        "programs": programs_when_needed(),
    }


SCALE = 1.0


class Scaled(Model):
    """A model whose forward depends on what is no parameter."""

    factor = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.factor * SCALE


class Constant(Model):
    """A model whose forward makes a tensor that differs from rank to rank."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * torch.tensor([1.0 + dist.get_rank()], dtype=torch.float64)


class Turned(torch.autograd.Function):
    """The identity, whose gradient differs from rank to rank."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient * SCALE


class Turning(Model):
    def forward(self, x: Tensor) -> Tensor:
        return Turned.apply(super().forward(x))  # type: ignore[return-value]


class Reversed(Model):
    """A model whose ops on one rank have their operands the other way round."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return x - y if dist.get_rank() else y - x


def sharded(model: nn.Module, plan: Any = PLAN, x: Tensor = X, **options: Any) -> nn.Module:
    return spmdir.shard_module(model, MESH, plan, (x,), **options)


def forwards(rank: int) -> dict[str, str]:
    """Errors of `shard_module` for models, plans and calls that are others on rank 1."""
    global SCALE
    deeper, shallower, activated, narrow, frozen, tied = Model(), Model(), Model(), Model(), Model(), Tied()
    (deeper if rank else shallower).extra = nn.Linear(4, 4)
    if rank:
        activated.extra = nn.ReLU()
        narrow.up.bias.data = narrow.up.bias.data.float()
        frozen.down.requires_grad_(False)
        tied.down.weight = nn.Parameter(tied.up.weight.detach().clone())
        Scaled.factor = 2.0
    found = {
        "deeper": error_of(lambda: sharded(deeper)),
        "shallower": error_of(lambda: sharded(shallower)),
        "activated": error_of(lambda: sharded(activated)),
        "narrow": error_of(lambda: sharded(narrow)),
        "frozen": error_of(lambda: sharded(frozen)),
        "tied": error_of(lambda: sharded(tied, {})),
        "plan": error_of(lambda: sharded(Model(), {} if rank else PLAN)),
        "example": error_of(lambda: sharded(Model(), x=X[rank:])),
        "class": error_of(lambda: sharded(Scaled())),
        "constant": error_of(lambda: sharded(Constant())),
        "reversed": error_of(lambda: sharded(Reversed())),
    }
    Scaled.factor, SCALE = 1.0, 1.0 + rank
    found["global"] = error_of(lambda: sharded(Scaled()))
    found["backward"] = error_of(lambda: sharded(Turning()))
    return found


def programs_when_needed() -> list[int]:
    """How many programs there are after `shard_module`, a call, one without reduction, and one in another mode."""
    model = nn.Sequential(Model(), nn.Dropout(0.5))
    module = sharded(model, {"*": "tp: S(0)", "*.bias": "", "input": "tp: S(0)"}, torch.ones(4, 4, dtype=torch.float64))
    counts = [len(spmdir.report.rank_programs(module))]
    x = torch.ones(4, 4, dtype=torch.float64)
    module(x).sum().backward()
    counts.append(len(spmdir.report.rank_programs(module)))
    with module.no_sync():  # type: ignore[operator]
        module(x)
    counts.append(len(spmdir.report.rank_programs(module)))
    module.eval()(x)
    return [*counts, len(spmdir.report.rank_programs(module))]


def error_of_raw(rank: int) -> str:
    """What rank 0 is told of an error of rank 1 that is not spmdir's."""
    broken = mock.patch.object(initial_state, "copy_shard", side_effect=MemoryError("no memory for it"))
    try:
        with broken if rank else nullcontext():
            parallel()
    except MemoryError as error:
        return f"own: {error}"
    except spmdir.SpmdirError as error:
        return error.message
    return "no error"


def tied(rank: int) -> dict[str, Any]:
    """The state of a tied model as rank 0 made it, and in how many places the ranks receive it."""
    with mock.patch.object(dist, "broadcast", wraps=dist.broadcast) as broadcast:
        program = parallel(Tied(rank), sync_state=True)
        places = {call.args[0].untyped_storage().data_ptr() for call in broadcast.call_args_list}
    return {"state": program.state_dict(), "expected": Tied().state_dict(), "places": len(places)}


def placing(rank: int) -> str:
    """An error of rank 1 while rank 0 waits to give it the state."""
    device_mesh = fresh_mesh()
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=SOON), device_mesh.get_group())
    store, first_ranks = dist.distributed_c10d._get_default_store(), initial_state.values_of_first_rank

    def late(*arguments: Any) -> Tensor:
        if rank:
            raise UnsupportedError("no place for it")
        store.wait(["rank 1 has no place"])
        return first_ranks(*arguments)

    with mock.patch.object(initial_state, "values_of_first_rank", late):
        found = error_of(lambda: parallel(device_mesh=device_mesh, sync_state=True))
    if rank:
        store.set("rank 1 has no place", "")
    return found


def sizes(rank: int) -> dict[str, Any]:
    """Sizes that are not those of the other rank, new and known."""
    program = parallel(dynamic_shapes=({0: Dim("batch", max=64)},))
    two, five = X[:2], torch.ones(5, 4, dtype=torch.float64)
    program(two)
    program(five)
    broken = mock.patch.object(rank_programs, "lower_to_fx", side_effect=UnsupportedError("no program for it"))
    with nullcontext() if rank else broken:
        rejected = error_of(lambda: program(X[:1]))
    return {
        "rejected": rejected,
        "known": error_of(lambda: program(two if rank else X)),
        "one is new": error_of(lambda: program(torch.ones(7 + rank, 4, dtype=torch.float64))),
        "outputs": [program(x) for x in (two, X, five)],
        "expected": [Model()(x).detach() for x in (two, X, five)],
    }


def inputs(rank: int) -> dict[str, Any]:
    """Inputs that differ between ranks: in the first call, in a later one, and where they are the same shard."""
    other = X + rank
    program, later, retried, local = parallel(), parallel(), parallel(), parallel(local_inputs=True)
    module, own = (spmdir.shard_module(Model(), Mesh({"dp": 2}), "fsdp", (torch.ones(4, 4).double(),), **options)
                   for options in ({}, {"local_inputs": True, "out_shardings": ["dp: S(0)"]}))  # fmt: skip
    model = Model()
    step, state = spmdir.training_step(model, loss_of, torch.optim.SGD(model.parameters()))
    return {
        "model": error_of(lambda: program(other)),
        "later": [error_of(lambda: later(X)), error_of(lambda: later(other))],
        "retried": [error_of(lambda: retried(other)) for _ in range(3)],
        "shards": error_of(lambda: local(other)),
        "module": error_of(lambda: module(torch.full((4, 4), float(rank), dtype=torch.float64))),
        "step": error_of(lambda: spmdir.parallelize(step, MESH, PLAN, (X, X), state=state)(X, other)),
        "one shape": error_of(lambda: module(X) if rank else module(torch.ones(4, 4).double())),
        "own": error_of(lambda: own(torch.full((2, 4), float(rank), dtype=torch.float64))),
        "own shape": error_of(lambda: own(X)),
        "another mode": error_of(lambda: module.eval()(X)),
        "programs": len(spmdir.report.rank_programs(module)),
    }


def loss_of(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    return nn.functional.mse_loss(model(x), target)


def call_error(rank: int) -> str:
    """An error of rank 1 in a call whose sizes are known, where rank 0 waits in a collective."""
    program = between_comparisons(parallel(device_mesh=fresh_mesh()))
    store = dist.distributed_c10d._get_default_store()
    if rank:
        found = error_of(lambda: program(X[:2]))
        store.set("rank 1 has raised", "")
        return found
    store.wait(["rank 1 has raised"])
    return error_of(lambda: program(X))


def stall(rank: int) -> str:
    """Rank 1 does not come until rank 0 has given up."""
    program = between_comparisons(parallel(device_mesh=fresh_mesh()))
    store = dist.distributed_c10d._get_default_store()
    if rank:
        store.wait(["rank 0 has given up"])
        return ""
    found = error_of(lambda: program(X))
    store.set("rank 0 has given up", "")
    return found


def absence(rank: int) -> str:
    """Rank 1 does not come to agree on new sizes until rank 0 has given up."""
    options = {"device_mesh": fresh_mesh(), "dynamic_shapes": ({0: Dim("batch", max=64)},)}
    program = between_comparisons(parallel(**options))
    store = dist.distributed_c10d._get_default_store()
    if rank:
        found = error_of(lambda: program(X[0]))
        store.set("rank 1 had an error", "")
        store.wait(["rank 0 had one too"])
        return found
    store.wait(["rank 1 had an error"])
    found = error_of(lambda: program(X[:2]))
    store.set("rank 0 had one too", "")
    return found


def death(rank: int) -> str:
    """Rank 1 ends without a word, as `run` makes it, while rank 0 runs."""
    program = between_comparisons(parallel(device_mesh=fresh_mesh()))
    return "" if rank else error_of(lambda: program(X))


def decision(rank: int) -> dict[str, Any]:
    """Who decides, what the others get, and what of it is kept."""
    folder: list[Any] = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder, src=0)
    files = Path(folder[0], "programs")

    def deciding(**options: Any) -> tuple[Any, int]:
        """Return what `parallel` gives, and how often this rank has decided."""
        with mock.patch.object(PropagatePass, "apply", autospec=True, side_effect=PropagatePass.apply) as apply:
            return parallel(cache=files, **options), apply.call_count

    programs, counts = zip(*(deciding() for _ in range(2)), strict=True)
    (file,) = files.iterdir()
    text = file.read_text()
    dist.barrier()
    if rank == 0:
        file.write_text(text.replace("aten.relu", "aten.neg"))
    edited = error_of(lambda: parallel(cache=files))
    rejected = error_of(lambda: parallel(shardings={"up.weight": "tp: S(0)", "up.bias": "tp: Max"}))
    broken = mock.patch.object(PropagatePass, "apply", side_effect=UnsupportedError("no decision"))
    with broken:
        failed = error_of(parallel)
    return {
        "counts": counts,
        "name": file.name,
        "text": text,
        "edited": edited.replace(str(files), ""),
        "rejected": rejected,
        "failed": failed,
        "wrong": error_of(lambda: parallel(cache=3)),
        "outputs": [program(X) for program in programs],
        "expected": Model()(X).detach(),
        "modules": [spmdir.print_ir(program.module, debuginfo=True) for program in programs],
    }


CASES: dict[str, Callable[[int], Any]] = {
    "agreement": agreement, "tied": tied, "placing": placing, "decision": decision, "sizes": sizes,
    "inputs": inputs, "call": call_error,
    "stall": stall, "absence": absence, "death": death,
}  # fmt: skip


def run(rank: int, folder: str) -> None:
    """Leave the results of all cases for `on_ranks`; the process ends here, without what others would wait for."""
    torch.save({name: case(rank) for name, case in CASES.items()}, f"{folder}/{rank}.pt")
    os._exit(0)
