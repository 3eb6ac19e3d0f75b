"""What a backward of a sharded module leaves in `grad`, and what optimizers make of it; each case returns its facts."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.func import functional_call
from torch.nn.modules import module as every_module
from torch.utils.checkpoint import checkpoint

import spmdir
from spmdir.core.errors import SpmdirError
from spmdir.runtime.local_state import blocks_and_shard

FLAT, SQUARE = spmdir.Mesh({"dp": 4}), spmdir.Mesh({"dp": 2, "tp": 2})

PLANS: dict[str, tuple[spmdir.Mesh, Any]] = {
    "rows": (FLAT, {"*.weight": "dp: S(0)", "x": "dp: S(0)"}),
    "columns": (FLAT, {"*.weight": "dp: S(1)", "x": "dp: S(0)"}),
    "both": (
        SQUARE,
        {"up_proj.weight": "dp: S(1), tp: S(0)", "down_proj.weight": "dp: S(0), tp: S(1)", "x": "dp: S(0)"},
    ),
    "nested": (SQUARE, {"*.weight": "tp: S(1), dp: S(1)", "*.bias": "dp: S(0)", "x": "dp: S(0)"}),
    "blocks": (FLAT, {"*.weight": "dp: Strided(1, 2)", "*.bias": "dp: Strided(0, 2)", "x": "dp: S(0)"}),
    "cyclic": (SQUARE, {"*.weight": "dp: Cyclic(1, 2)", "*.bias": "tp: Cyclic(0, 1)", "x": "dp: S(0)"}),
    "ragged": (FLAT, {"up_proj.weight": "dp: Ragged(1, [3, 0, 2, 1])", "down_proj.*": "dp: Ragged(0, [1, 2, 1, 1])"}),
    **{recipe: (FLAT, recipe) for recipe in ("ddp", "zero2", "fsdp")},
    "hsdp": (spmdir.Mesh({"dp_replicate": 2, "dp_shard": 2}), "hsdp"),
    "tp": (spmdir.Mesh({"tp": 4}), "tp"),
    "fsdp*tp": (SQUARE, "fsdp*tp"),
}
"""Name → mesh and plan."""

EVERY = {"both": ("plain", "foreach", "fused"), "blocks": ("foreach", "fused")}
"""Plan → the forms in which every optimizer runs under it; under the others AdamW does."""

FORMS = {"plain": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
"""The ways in which an optimizer of torch does one update."""

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "Adadelta": {},
    "Adafactor": {},
    "Adagrad": {},
    "Adam": {"amsgrad": True},
    "AdamW": {"weight_decay": 0.1},
    "Adamax": {},
    "ASGD": {},
    "Muon": {},
    "NAdam": {},
    "RAdam": {},
    "RMSprop": {"momentum": 0.9},
    "Rprop": {},
    "SGD": {"momentum": 0.9},
}
"""Optimizers of torch.optim whose step takes no closure and dense gradients → options."""


_BY_DTENSOR = (
    "in-place operations that require placement changes are not supported|does not have a sharding strategy registered"
)
"""What DTensor says; which of both depends on the version of torch."""

REFUSED = {
    **{(name, "fused"): "argument 'fused'" for name in OPTIMIZERS if name not in ("Adagrad", "Adam", "AdamW", "SGD")},
    ("Muon", "foreach"): "argument 'foreach'",
    ("Adafactor", "plain"): _BY_DTENSOR,
    ("Adafactor", "foreach"): _BY_DTENSOR,
    ("Rprop", "plain"): _BY_DTENSOR,
    ("Rprop", "foreach"): _BY_DTENSOR,
    ("Adagrad", "fused"): _BY_DTENSOR,
    ("SGD", "fused"): _BY_DTENSOR,
}
"""Optimizer and form → a pattern of why torch alone cannot do it with DTensors."""

ON_SHARDS = {("Adagrad", "fused"), ("SGD", "fused")}
"""What DTensor refuses, and the DTensors of a sharded module do."""

POSSIBLE = [pair for pair in itertools.product(OPTIMIZERS, FORMS) if pair not in REFUSED or pair in ON_SHARDS]

ROUNDING = {"Muon": 1e-4}
"""Optimizer → how far updates of shards may be from those of whole matrices: Muon multiplies them in bfloat16."""


class Projections(nn.Module):
    """Two linear layers of names that recipes know, with sizes that shards do not divide evenly."""

    def __init__(self) -> None:
        super().__init__()
        self.up_proj, self.down_proj = nn.Linear(6, 10), nn.Linear(10, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.up_proj(x).relu())


def full(value: Any) -> Any:
    return (value.full_tensor() if isinstance(value, DTensor) else value).detach().clone()


def message(call: Callable[[], Any]) -> str:
    """Return what the SpmdirError of a call says; empty if it raises none."""
    try:
        call()
    except SpmdirError as error:
        return error.message
    return ""


def model_and_input() -> tuple[Projections, Tensor]:
    torch.manual_seed(0)
    return Projections().double(), torch.randn(8, 6, dtype=torch.float64)


def optimizer(name: str, form: str, parameters: Any) -> torch.optim.Optimizer:
    """Return an optimizer of matrices only where it takes no others.

    Raises:
        TypeError: it has no such form.
    """
    own = [p for p in parameters if name != "Muon" or p.dim() == 2]
    options = FORMS[form] if (name, form) != ("Muon", "plain") else {}
    return getattr(torch.optim, name)(own, **OPTIMIZERS[name], **options)


def parts(model: nn.Module, whole: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """Return the blocks of each parameter that this rank holds, and those of the parameter on one device."""
    found = []
    for (name, parameter), expected in zip(model.named_parameters(), whole.parameters(), strict=True):
        blocks, shard = blocks_and_shard(name, parameter)
        found += [
            (block.view_local(shard.detach()).clone(), block.view_global(expected.detach()).clone()) for block in blocks
        ]
    return found


def update(model: nn.Module, x: Tensor, name: str, form: str) -> None:
    """Update the parameters twice."""
    stepper = optimizer(name, form, model.parameters())
    for scale in (1.0, 2.0):
        (model(x) * scale).square().mean().backward()
        stepper.step()
        model.zero_grad()


def refused_by_dtensor() -> dict[tuple[str, str], str]:
    """(optimizer, form) → why torch alone cannot do it: it has no such form, or cannot update DTensors rightly."""
    mesh, (model, x) = init_device_mesh("cpu", (4,)), model_and_input()
    found = {}
    for name, form in itertools.product(OPTIMIZERS, FORMS):
        native, alone = copy.deepcopy(model), copy.deepcopy(model)
        for layer in native.children():
            for key, parameter in list(layer.named_parameters()):
                setattr(layer, key, nn.Parameter(distribute_tensor(parameter.detach(), mesh, [Shard(0)])))
        try:
            update(alone, x, name, form)
            stepper = optimizer(name, form, native.parameters())
            watched = copy.deepcopy(model)
            beside = optimizer(name, form, watched.parameters())
            for scale in (1.0, 2.0):
                (watched(x) * scale).square().mean().backward()
                for mine, other in zip(native.parameters(), watched.parameters(), strict=True):
                    mine.grad = distribute_tensor(other.grad, mesh, [Shard(0)])  # type: ignore
                stepper.step()
                beside.step()
                watched.zero_grad()
        except (TypeError, RuntimeError, NotImplementedError) as error:
            found[name, form] = f"{type(error).__name__}: {error}".partition("\n")[0]
            continue
        apart = max((mine - other).abs().max() for mine, other in parts(native, alone))
        if apart > ROUNDING.get(name, 1e-12):
            found[name, form] = "the update of a DTensor differs from that of a tensor"
    return found


def optimizers() -> dict[str, Any]:
    """What updates make on ranks and on one device by plan, optimizer and form; strides in a backward and a step."""
    refused, (model, x) = refused_by_dtensor(), model_and_input()
    alone: dict[tuple[str, str], nn.Module] = {}
    pairs, strides = {}, {}
    for plan, (mesh, shardings) in PLANS.items():
        sharded: Any = spmdir.shard_module(model, mesh, shardings, (x,))
        start = [parameter.detach().clone() for parameter in sharded.parameters()]
        for name, form in POSSIBLE:
            if form not in EVERY.get(plan, FORMS if name == "AdamW" else ()):
                continue
            sharded.zero_grad()
            with torch.no_grad():
                for parameter, value in zip(sharded.parameters(), start, strict=True):
                    parameter.copy_(value)
            if (name, form) not in alone:
                alone[name, form] = copy.deepcopy(model)
                update(alone[name, form], x, name, form)
            try:
                update(sharded, x, name, form)
                pairs[plan, name, form] = parts(sharded, alone[name, form])
            except SpmdirError as error:
                pairs[plan, name, form] = error.message
        for scope in (sharded.no_sync(), nullcontext()):
            with scope:
                sharded(x).square().mean().backward()
        adam = torch.optim.Adam(sharded.parameters(), foreach=True)
        adam.step()
        for key, parameter in sharded.named_parameters():
            tensors = (parameter, parameter.grad, adam.state[parameter]["exp_avg"])
            strides[plan, key] = [blocks_and_shard(key, tensor)[1].stride() for tensor in tensors]
    return {"refused": refused, "pairs": pairs, "strides": strides}


class Heads(nn.Module):
    """Three heads of one trunk; the third has a gradient of zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.a, self.b, self.c = (nn.Linear(4, 4) for _ in range(4))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        hidden = self.trunk(x).tanh()
        return self.a(hidden), self.b(hidden), self.c(x).sign()


USED = ((0,), (1,), (0, 1), (2,), (1, 2))
"""Which heads a loss takes."""


def gradients(model: nn.Module) -> list[Tensor | None]:
    return [None if p.grad is None else full(p.grad) for p in model.parameters()]


def unused_heads() -> dict[str, Any]:
    """Gradients for losses of some heads, of `no_sync` too, on ranks and on one device; sends of a part."""
    torch.manual_seed(0)
    model, x = Heads().double(), torch.randn(8, 4, dtype=torch.float64)
    sharded: Any = spmdir.shard_module(model, FLAT, {"*.weight": "dp: S(1)", "*.bias": "", "x": "dp: S(0)"}, (x,))
    pairs = []
    for heads in USED:
        for each in (sharded, model):
            each.zero_grad()
            sum(each(x)[head].square().sum() for head in heads).backward()
        pairs.append((gradients(sharded), gradients(model)))
    for each in (sharded, model):
        each.zero_grad()
        with sharded.no_sync():
            each(x)[0].square().sum().backward()
        each(x)[1].sum().backward()
    pairs.append((gradients(sharded), gradients(model)))
    program = spmdir.report.rank_programs(sharded)[0].first
    graphs = [program.backward_graph(program.results_to_compute(used), None) for used in ({0}, {0, 1, 2})]  # type: ignore
    return {"pairs": pairs, "nodes": [len(graph.graph.nodes) for graph in graphs]}


def other_heads_on_other_ranks() -> list[tuple[Tensor | None, Tensor | None]]:
    """Gradients where ranks take losses of different heads of their own shards, and those of one device."""
    torch.manual_seed(0)
    model, x = Heads().double(), torch.randn(8, 4, dtype=torch.float64)
    rank, shards = torch.distributed.get_rank(), ["dp: S(0)"] * 3
    sharded = spmdir.shard_module(model, FLAT, {"*.weight": "dp: S(0)", "x": "dp: S(0)"}, (x,), out_shardings=shards)
    sharded(x)[rank % 2].square().sum().backward()
    a, b, _ = model(x)
    (a.view(4, 2, 4)[::2].square().sum() + b.view(4, 2, 4)[1::2].square().sum()).backward()
    return list(zip(gradients(sharded), gradients(model), strict=True))


def edges() -> dict[str, Any]:
    """Gradients of gradients, a second backward, anomaly detection, torch.func."""
    model, x = model_and_input()
    sharded = spmdir.shard_module(model, FLAT, {"*.weight": "dp: S(1)", "*.bias": "", "x": "dp: S(0)"}, (x,))

    def penalty() -> None:
        inputs = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(sharded(inputs).sum(), inputs, create_graph=True)
        (sharded(x).sum() + gradient.square().sum()).backward()

    def of_parameters() -> None:
        parameters = dict(sharded.named_parameters())
        torch.func.grad(lambda given: functional_call(sharded, given, (x,)).sum())(parameters)

    def forward_mode() -> None:
        with forward_ad.dual_level():
            sharded(forward_ad.make_dual(x, x))

    found: dict[str, Any] = {"penalty": message(penalty), "func": message(of_parameters)}
    found |= {"forward mode": message(forward_mode), "meta": message(lambda: sharded(x.to("meta")))}
    sharded.zero_grad()
    for each in (sharded, model):
        with torch.autograd.detect_anomaly(check_nan=True):
            loss = each(x).square().sum()
            loss.backward(retain_graph=True)
        loss.backward()
    found["gradients"] = [gradients(sharded), gradients(model)]
    with torch.no_grad():
        sharded.down_proj.bias.fill_(float("nan"))  # type: ignore  # a parameter
    try:
        with torch.autograd.detect_anomaly(check_nan=True):
            sharded(x).square().sum().backward()
        found["nan"] = ""
    except RuntimeError as error:
        found["nan"] = str(error)
    return found


def untraceable() -> dict[str, str]:
    """Errors of what no trace can have: hooks of all modules, backward hooks of submodules, lazy layers."""
    found: dict[str, str] = {}
    x = torch.ones(2, 4, dtype=torch.float64)

    def sharded(model: nn.Module) -> nn.Module:
        return spmdir.shard_module(model, FLAT, {}, (x,))

    for kind in ("forward", "forward_pre", "full_backward"):
        handle = getattr(every_module, f"register_module_{kind}_hook")(double)
        found[f"{kind} hook"] = message(lambda: sharded(nn.Linear(4, 4).double()))
        handle.remove()
    hooked = nn.Sequential(nn.Linear(4, 4)).double()
    hooked[0].register_full_backward_hook(double)
    found["backward hook of a submodule"] = message(lambda: sharded(hooked))
    for name in ('a"b', "a\\b", "a\nb"):
        named = nn.Sequential()
        named.add_module(name, nn.Linear(4, 4).double())
        found[f"name {name}"] = message(lambda named=named: sharded(named))
    lazy = nn.Sequential(nn.LazyLinear(4, dtype=torch.float64))
    found["shard_module of a lazy layer"] = message(lambda: sharded(lazy))
    found["parallelize of a lazy layer"] = message(lambda: spmdir.parallelize(lazy, FLAT, {}, (x,)))
    optimizer = torch.optim.SGD(lazy.parameters(), 0.1)
    found["training_step of a lazy layer"] = message(lambda: spmdir.training_step(lazy, torch.sum, optimizer))
    return found


def backward_hooks() -> list[tuple[Tensor, Tensor]]:
    """Gradients where the module itself has a backward hook; parameters after a step where a submodule has one."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).double(), torch.randn(4, 4, dtype=torch.float64)
    handle = model.register_full_backward_pre_hook(lambda module, received: (received[0] * 3,))
    inputs = x.clone().requires_grad_()  # or torch warns that the hook has nothing to do
    sharded = spmdir.shard_module(model, FLAT, {"input": "dp: S(0)"}, (inputs,))
    for each in (sharded, model):
        each(inputs).square().sum().backward()
    pairs = list(zip(gradients(sharded), gradients(model), strict=True))
    model.zero_grad()
    handle.remove()
    model[1].register_full_backward_hook(lambda module, found, received: (found[0] * 2,))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    step, state = spmdir.training_step(model, lambda model, x: model(x).square().sum(), optimizer)
    parallel = spmdir.parallelize(step, FLAT, {"arg*": "dp: S(0)"}, (x,), state=state)
    parallel(x)
    model(x).square().sum().backward()
    optimizer.step()
    stepped = parallel.state_dict()
    return pairs + [(stepped[f"parameters.{name}"], each) for name, each in model.named_parameters()]


def recurrent() -> list[tuple[Tensor, Tensor]]:
    """Outputs and gradients of recurrent layers, with dropout between two of them, on ranks and on one device."""
    pairs = []
    layers = (nn.LSTM(2, 3, 2, dropout=0.5), nn.GRU(2, 3, batch_first=True), nn.RNN(2, 3))
    x = torch.randn(2, 4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for layer in layers:
        model = layer.double()
        sharded = spmdir.shard_module(model, FLAT, {"weight_*": "dp: S(0)"}, (x,))
        for each in (sharded, model):
            torch.manual_seed(1)
            each(x)[0].square().sum().backward()
        pairs += zip(gradients(sharded), gradients(model), strict=True)
    return pairs


def inner_modules() -> dict[str, Any]:
    """A call of a submodule; outputs where hooks of submodules are registered before sharding and after it."""
    model, x = model_and_input()
    model.up_proj.register_forward_hook(double)
    sharded: Any = spmdir.shard_module(model, FLAT, "fsdp", (x,))
    found: dict[str, Any] = {"method": message(lambda: sharded.up_proj(x)), "pairs": [(sharded(x), model(x))]}
    for each in (sharded, model):
        each.down_proj.register_forward_hook(double)
    found["pairs"] += [(each(x), model(x)) for each in (sharded, copy.deepcopy(sharded))]
    return found


def double(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return output * 2


def renormalised() -> str:
    model = nn.Embedding(5, 4, max_norm=0.5)
    return message(lambda: spmdir.shard_module(model, FLAT, None, (torch.tensor([1, 2, 3, 4]),)))


class Regions(nn.Module):
    """Checkpointed regions that write to buffers, one of them after all that the backward reads.

    Submodules have the names that the arguments of the backward have otherwise.
    """

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(4, 4), nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.late, self.tangents = nn.BatchNorm1d(4), nn.ParameterList([torch.ones(4)])
        self.register_buffer("scale", torch.ones(4))
        self.register_buffer("calls", torch.zeros(()))

    def first(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.up(x))
        self.scale.mul_(0.5).add_(hidden.detach().mean(0))  # type: ignore  # a buffer
        hidden = hidden.sin() * self.scale
        self.calls.add_(1)  # type: ignore  # a buffer
        return hidden

    def second(self, x: Tensor) -> Tensor:
        return self.norm(self.down(x)).relu()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        again: Any = lambda region, x: checkpoint(region, x, use_reentrant=False)  # noqa: E731
        return again(self.second, again(self.first, self.late(self.norm(x)) * self.tangents[0])), self.up(x)


def writes_of_regions() -> dict[str, Any]:
    """Buffers and gradients after forwards and backwards of a checkpointed region, on ranks and on one device."""
    torch.manual_seed(0)
    model, x = Regions().double(), torch.randn(8, 4, dtype=torch.float64)
    loss = lambda model, x: model(x)[0].square().sum()  # noqa: E731
    step, state = spmdir.training_step(model, loss, torch.optim.SGD(model.parameters(), lr=0.0))
    stepped = spmdir.parallelize(step, FLAT, {"input:*": "dp: S(0)"}, (x,), state=state)
    sharded = spmdir.shard_module(model, FLAT, {"up.weight": "dp: S(1)", "norm.*": "dp: S(0)", "x": "dp: S(0)"}, (x,))
    stepped(x)
    found: dict[str, Any] = {"step": stepped.gather_state()["buffers"], "pairs": []}
    loss(model, x).backward()
    found["alone"] = {name: full(buffer) for name, buffer in model.named_buffers()}
    loss(sharded, x).backward()
    for each in (sharded, model):
        one, two = loss(each, x), loss(each, 2 * x)
        one.backward()
        two.backward(retain_graph=True)
        with torch.no_grad():
            each(x)
        two.backward()
        each(x)[1].sum().backward()
    found["pairs"] = list(zip(map(full, sharded.buffers()), map(full, model.buffers()), strict=True))
    found["pairs"] += zip(gradients(sharded), gradients(model), strict=True)
    return found


def unclear_regions() -> str:
    """The error of regions of different outputs that write to one buffer."""

    class Two(Regions):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return checkpoint(self.first, x, use_reentrant=False), checkpoint(self.second, x, use_reentrant=False)  # type: ignore

    return message(lambda: spmdir.shard_module(Two(), FLAT, None, (torch.ones(8, 4),)))


CASES = (
    inner_modules,
    writes_of_regions,
    unclear_regions,
    optimizers,
    unused_heads,
    other_heads_on_other_ranks,
    edges,
    untraceable,
    backward_hooks,
    recurrent,
    renormalised,
)


def run(rank: int) -> dict[str, Any]:
    return {case.__name__: case() for case in CASES}
