"""What ranks do with sharded modules; each case returns what its test looks at."""

from __future__ import annotations

import copy
import os
import tempfile
from contextlib import nullcontext
from typing import Any

import peft
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

import spmdir
from spmdir.core.errors import SpmdirError
from tests.runtime.parallelize_cases import loss_of as cross_entropy

MESH = spmdir.Mesh({"dp": 2, "tp": 2})
PLAN = {"up.weight": "dp: S(0), tp: S(1)", "norm.*": "", "arg*": "dp: S(0)"}


class Everything(nn.Module):
    """Ties, dropout, batch norm, a checkpointed region, frozen and unused parameters, arguments by name."""

    def __init__(self) -> None:
        super().__init__()
        # A bias before a batch norm has a gradient of zero, of which Adam would divide the rounding by itself.
        self.up, self.again, self.frozen = nn.Linear(8, 8, bias=False), nn.Linear(8, 8), nn.Linear(8, 8)
        self.frozen.requires_grad_(False)
        self.again.weight = self.up.weight
        self.norm, self.drop, self.unused = nn.BatchNorm1d(8), nn.Dropout(0.25), nn.Linear(4, 4)

    def region(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.again(x).relu()).sin()

    def forward(self, x: torch.Tensor, *, target: torch.Tensor | None = None, scale: float = 1.0) -> dict[str, Any]:
        hidden: Any = checkpoint(self.region, self.norm(self.up(x)), use_reentrant=False)
        hidden = self.frozen(hidden) + x
        loss = None if target is None else (hidden - target).square().mean() * scale
        return {"loss": loss, "hidden": hidden, "first": hidden[:2]}

    def save_pretrained(self, directory: str, state_dict: Any = None) -> str:
        return directory


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    draw = lambda: torch.randn(8, 8, generator=generator, dtype=torch.float64)  # noqa: E731
    return [(draw(), draw()) for _ in range(count)]


def full(value: Any) -> Any:
    return (value.full_tensor() if isinstance(value, DTensor) else value).detach().clone()


def trained(model: nn.Module) -> dict[str, Any]:
    """Train with accumulation, clipping and frozen parameters, then evaluate; every second backward is another loss."""
    torch.manual_seed(2)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    losses, norms = [], []
    for x, target in batches(4):
        for part in (x, -x):
            found = model(part, target=target, scale=2.0)
            (found["loss"] + found["first"].square().mean()).backward()
            losses.append(found["loss"].item())
        norms.append(float(full(nn.utils.clip_grad_norm_(model.parameters(), 1.0))))
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        losses.append(model(x, target=target, scale=2.0)["loss"].item())
    state = {name: full(tensor) for name, tensor in model.state_dict().items()}
    return {"losses": losses, "norms": norms, "state": state}


def everything() -> dict[str, Any]:
    """Training on ranks and on one device, and what the sharded module is."""
    torch.manual_seed(0)
    model = Everything().double()
    x, target = batches(1)[0]
    sharded = spmdir.shard_module(model, MESH, PLAN, (x,), example_kwargs={"target": target, "scale": 2.0})
    found = {
        "is": isinstance(sharded, Everything) and type(sharded).__name__ == "Everything",
        "tied": sharded.up.weight is sharded.again.weight,
        "placements": {name: str(p.placements) for name, p in sharded.named_parameters() if isinstance(p, DTensor)},
        "names": list(sharded.state_dict()) == list(model.state_dict()),
        "ranks": trained(sharded),
        "unused": sharded.unused.weight.grad is None and sharded.frozen.weight.grad is None,
        "gradient": None,
        "alone": trained(copy.deepcopy(model)),
    }
    sharded.train()
    compiled = torch.compile(sharded)
    compiled(x, target=target, scale=2.0)["loss"].backward()
    found["gradient"] = str(sharded.up.weight.grad.placements)  # type: ignore  # a DTensor
    found["errors"] = errors(sharded, x, target)
    return found


def errors(sharded: nn.Module, x: torch.Tensor, target: torch.Tensor) -> list[str]:
    """The messages of calls that do not fit."""

    def replaced() -> None:
        sharded.again.bias = nn.Parameter(torch.zeros(8, dtype=torch.float64))
        sharded(x, target=target, scale=2.0)

    def own_forward() -> None:
        model = nn.Linear(8, 8)
        model.forward = lambda x: x  # type: ignore[method-assign]
        spmdir.shard_module(model, MESH, {}, (x,))

    def added() -> None:
        sharded.register_parameter("late_weight", nn.Parameter(torch.zeros(8, dtype=torch.float64)))
        try:
            sharded(x, target=target, scale=2.0)
        finally:
            del sharded.late_weight

    calls = [
        lambda: sharded(x[:4], target=target, scale=2.0),
        added,
        replaced,
        own_forward,
        lambda: sharded.save_pretrained("directory", state_dict={}),  # type: ignore  # a method
        lambda: sharded.save_pretrained("directory"),  # type: ignore  # a method
    ]
    found = []
    for call in calls:
        try:
            call()
            found.append("")
        except SpmdirError as error:
            found.append(error.message)
    return found


def own_batches() -> dict[str, Any]:
    """The gradients of losses that each rank takes of its own outputs, and those of FSDP2 with the same batches."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).double()
    x = torch.randn(8, 8, dtype=torch.float64)
    mesh = dist.init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
    plan = {"*": "dp: S(0)", "arg*": "dp: S(0)"}
    sharded = spmdir.shard_module(model, mesh, plan, (x,), out_shardings=["dp: S(0)"], local_inputs=True)
    native = fully_shard(copy.deepcopy(model), mesh=mesh)
    own = x.chunk(4)[dist.get_rank()]
    for each in (sharded, native):
        each(own).square().mean().backward()
    pairs = zip(sharded.parameters(), native.parameters(), strict=True)
    return {"gradients": [(full(a.grad), full(b.grad)) for a, b in pairs]}


class Sums(nn.Module):
    """Its parameters have one gradient: that of its output."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (nn.Parameter(torch.zeros(8, 8, dtype=torch.float64)) for _ in "ab")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.a + self.b


def written_to() -> dict[str, Any]:
    """Gradients that were added up, of which one was then scaled in place, on ranks and on one device.

    The last one is of an input, which the example did not ask for.
    """
    model, x = Sums(), torch.ones(8, 8, dtype=torch.float64)
    sharded, found = spmdir.shard_module(model, MESH, "fsdp", (x,)), {}
    for name, each in (("alone", model), ("ranks", sharded)):
        (each(x) * 2).sum().backward()
        each(x).sum().backward()
        assert each.a.grad is not None
        each.a.grad.mul_(10)
        found[name] = [full(parameter.grad) for parameter in each.parameters()]
        asking = x.clone().requires_grad_()
        (each(asking) * asking).sum().backward()
        found[name].append(asking.grad)
    return found


def tower() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)).double()
    return model, torch.randn(8, 8, dtype=torch.float64)


def shards_of_outputs() -> dict[str, Any]:
    """The gradients of a loss of shards, in an order of axes that is not the mesh's, and those of one device."""
    model, x = tower()
    sharded = spmdir.shard_module(model, MESH, "fsdp", (x,), out_shardings=["tp: S(0), dp: S(0)"])
    for each in (model, sharded):
        each(x).pow(3).sum().backward()
    try:
        spmdir.shard_module(model, MESH, None, (x,), out_shardings=["tp: P(sum)"])
        error = ""
    except SpmdirError as raised:
        error = raised.message
    pairs = zip(sharded.parameters(), model.parameters(), strict=True)
    return {"gradients": [(full(a.grad), full(b.grad)) for a, b in pairs], "error": error}


def what_is_traced() -> dict[str, Any]:
    """Outputs and gradients under autocast and of a parameter that learns later, on ranks and on one device."""
    model, x = tower()
    model, x = model.float(), x.float()
    model[0].weight.requires_grad_(False)
    found: dict[str, Any] = {}
    for name, each in (("ranks", spmdir.shard_module(model, MESH, "fsdp", (x,))), ("alone", model)):
        each.get_parameter("0.weight").requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = each(x)
        output.float().square().sum().backward()
        found[name] = (output.detach(), [full(parameter.grad) for parameter in each.parameters()])
    return found


class Divided(nn.Module):
    """Its first gradients are made of shards of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.drop, self.down = nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = spmdir.constrain(self.drop(self.up(x)), "dp: S(0), tp: S(1)")
        return self.down(hidden.relu()).square().mean()


def accumulated() -> dict[str, Any]:
    """Gradients of batches that are reduced once; what the programs send; an option of Inductor.

    There are three batches, twice over, then a sum of two forwards, the first of them in `no_sync`, after others
    were forgotten, and then one whose gradients are reduced when a parameter is frozen.
    """
    torch.manual_seed(0)
    model, (x, _) = Divided().double(), batches(1)[0]
    alone, plan = copy.deepcopy(model), {"up.weight": "tp: S(0), dp: S(0)", "*.bias": "dp: S(0)", "x": "dp: S(0)"}
    sharded: Any = spmdir.shard_module(model, MESH, plan, (x,))
    with sharded.no_sync():
        sharded(x).backward()
    sharded.zero_grad()
    pairs, unreduced = [], True
    for number in range(1, 7):
        torch.manual_seed(number)
        alone(number * x).backward()
        torch.manual_seed(number)
        if number > 3:
            sharded.set_requires_gradient_sync(number == 6)
        with sharded.no_sync() if number in (1, 2) else nullcontext():
            sharded(number * x).backward()
        unreduced &= number > 2 or sharded.up.weight.grad is None
        if number % 3 == 0:
            both = zip(sharded.parameters(), alone.parameters(), strict=True)
            pairs += [(full(a.grad), full(b.grad)) for a, b in both]
    with sharded.no_sync():
        sharded(x).backward()
        sharded.zero_grad()
        alone.zero_grad()
        torch.manual_seed(7)
        inside, copied = sharded(x), copy.deepcopy(sharded)
    (inside + sharded(2 * x)).backward()
    torch.manual_seed(7)
    (alone(x) + alone(2 * x)).backward()
    torch.manual_seed(7)
    (copied(x) + copied(2 * x)).backward()
    pairs += [
        (full(a.grad), b.grad)
        for each in (sharded, copied)
        for a, b in zip(each.parameters(), alone.parameters(), strict=True)
    ]
    sends = [
        spmdir.report.comm_report(each.module, pipeline=each.pipeline).by_kind
        for each in spmdir.report.rank_programs(sharded)
    ]
    alone.zero_grad(), copied.zero_grad()
    for number in range(2):
        with copied.no_sync() if number == 0 else nullcontext():
            for each in (copied, alone):
                torch.manual_seed(number)
                each(x).backward()
                each.up.weight.requires_grad_(False)
    pairs += [(full(a.grad), b.grad) for a, b in zip(copied.parameters(), alone.parameters(), strict=True)]
    try:
        spmdir.shard_module(Sums(), MESH, "fsdp", (x,), compile={"no_such": 1})
        error = ""
    except SpmdirError as raised:
        error = raised.message
    return {"pairs": pairs, "unreduced": unreduced, "sends": [sorted(kinds) for kinds in sends], "error": error}


class Constant(nn.Module):
    """Has a tensor that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(8, 8), torch.ones(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.scale


def no_buffer() -> str:
    try:
        spmdir.shard_module(Constant(), MESH, None, (torch.ones(8, 8),))
    except SpmdirError as error:
        return error.message
    return ""


def decided_programs() -> list[list[str]]:
    """The files in this rank's directory of decided programs, after sharding once and once more."""
    with tempfile.TemporaryDirectory() as directory:
        found = []
        for _ in range(2):
            spmdir.shard_module(Sums(), MESH, "fsdp", (torch.ones(8, 8, dtype=torch.float64),), cache=directory)
            found.append(sorted(os.listdir(directory)))
    return found


def copies() -> dict[str, Any]:
    """A copy whose parameters are zero beside its original, and a backward after a parameter was written to."""
    model, x = tower()
    sharded = spmdir.shard_module(model, MESH, {"*": "", "arg*": "dp: S(0)"}, (x,))
    copied, loss = copy.deepcopy(sharded), sharded(x).sum()
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.zero_()
    with torch.inference_mode():
        found = {"pairs": [(sharded(x), model(x)), (copied(x), torch.zeros(8, 8, dtype=torch.float64))]}
    with torch.no_grad():
        sharded[2].weight.mul_(2)  # type: ignore  # a parameter
    try:
        loss.backward()
    except SpmdirError as error:
        return {**found, "error": error.message}
    return {**found, "error": ""}


class Rounded(nn.Module):
    """A layer that runs in bfloat16, with weights and results that are exact in it and an input that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4, bias=False)
        nn.init.eye_(self.layer.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.layer(x).float().sum()


def rounded() -> dict[str, Any]:
    """Updates by SGD with momentum of a module with autocast, where all sums are exact, on ranks and on one device."""
    x = torch.cat([torch.full((2, 4), 257.0), torch.arange(8.0).view(2, 4)])
    found = {}
    for name in ("ranks", "alone"):
        model: nn.Module = Rounded()
        if name == "ranks":
            model = spmdir.shard_module(model, MESH, {"*.weight": "dp: S(0)", "x": "tp: S(0)"}, (x,))
        optimizer = torch.optim.SGD(model.parameters(), lr=2.0**-12, momentum=0.5)
        losses = []
        for _ in range(2):
            loss = model(x)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        found[name] = {"losses": losses, "state": {k: full(t) for k, t in model.state_dict().items()}}
    return found


def half() -> dict[str, Any]:
    """How far ten updates in bfloat16 are from those in float64: of a step and a module on ranks, and on one device."""
    torch.manual_seed(0)
    ids, target = torch.randint(24, (2, 4, 6))
    layers = nn.Embedding(24, 16), nn.RMSNorm(16), nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 24)
    model = nn.Sequential(*layers).double()

    def autocast(model: nn.Module, *args: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return cross_entropy(model, *args)

    def run(model: nn.Module, loss: Any = cross_entropy) -> list[torch.Tensor]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(10):
            loss(model, ids, target).backward()
            optimizer.step()
            optimizer.zero_grad()
        return [full(parameter).double() for parameter in model.parameters()]

    def stepped(on_ranks: bool) -> list[torch.Tensor]:
        optimizer = torch.optim.SGD(narrow.parameters(), lr=0.1, momentum=0.9)
        step, state = spmdir.training_step(narrow, cross_entropy, optimizer, compute_dtype=torch.bfloat16)
        if on_ranks:
            parallel = spmdir.parallelize(step, MESH, plan, (ids, target), state=state)
            for _ in range(10):
                parallel(ids, target)
            state = parallel.gather_state()
        else:
            for _ in range(10):
                _, state = step(state, ids, target)
        return [state["parameters"][name].double() for name, _ in narrow.named_parameters()]

    plan = {"2.*": "dp: S(0), tp: S(0)", "4.weight": "dp: S(0), tp: S(1)", "arg*": "dp: S(0)"}
    narrow, expected = copy.deepcopy(model).float(), run(model)
    with torch.autocast("cpu", torch.bfloat16):
        sharded = spmdir.shard_module(narrow, MESH, plan, (ids,))
    distance = lambda found: torch.stack([(a - b).square().sum() for a, b in zip(found, expected, strict=True)]).sum()  # noqa: E731
    return {
        "step": (distance(stepped(True)), distance(stepped(False))),
        "module": (distance(run(sharded, autocast)), distance(run(copy.deepcopy(narrow), autocast))),
    }


class Projections(nn.Module):
    """Two linear layers that recipes know."""

    def __init__(self) -> None:
        super().__init__()
        self.up_proj, self.down_proj = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.up_proj(x).relu())


def adapters() -> dict[str, Any]:
    """Parameters after updates of the adapters that peft makes, by a module and a step on ranks, and on one device."""
    torch.manual_seed(0)
    config = peft.LoraConfig(r=4, target_modules=["up_proj", "down_proj"], init_lora_weights=False)
    model: nn.Module = peft.get_peft_model(Projections(), config).double()
    x, target = batches(1)[0][0], torch.ones(8, 4, dtype=torch.float64)
    loss = lambda model, x, target: (model(x) - target).square().mean()  # noqa: E731
    tp, fsdp = spmdir.Mesh({"tp": 4}), spmdir.Mesh({"fsdp": 4})

    def adamw(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)

    step, state = spmdir.training_step(model, loss, adamw(model))
    parallel = spmdir.parallelize(
        step, fsdp, spmdir.placement.sharding_plan(model, fsdp, "fsdp"), (x, target), state=state
    )
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    for _ in range(3):
        parallel(x, target)
    found: dict[str, Any] = {
        "kept": len(frozen & state["exp_avg"].keys()),
        "step": parallel.gather_state()["parameters"],
    }
    module = spmdir.shard_module(model, tp, "tp", (x,))
    found["placements"] = str(module.get_parameter("base_model.model.up_proj.base_layer.weight").placements)  # type: ignore
    for name, each in (("module", module), ("alone", model)):
        optimizer = adamw(each)
        for _ in range(3):
            loss(each, x, target).backward()
            optimizer.step()
            optimizer.zero_grad()
        found[name] = {name: full(parameter) for name, parameter in each.named_parameters()}
        each.merge_adapter()  # type: ignore  # of peft
        with torch.no_grad():
            found[f"{name}, merged"] = each(x)
    return found


def run(rank: int) -> dict[str, Any]:
    cases = (
        decided_programs,
        everything,
        own_batches,
        written_to,
        rounded,
        shards_of_outputs,
        what_is_traced,
        no_buffer,
        copies,
        accumulated,
        half,
        adapters,
    )
    return {case.__name__: case() for case in cases}
