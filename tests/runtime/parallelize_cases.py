"""What each rank does in `test_parallelize`, and the small models it does it with; all in float64."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree

import spmdir
from spmdir.core.mesh import Mesh
from spmdir.lowering.process_groups import connect
from spmdir.runtime.backend import from_options
from spmdir.runtime.block_shard import BlockShard
from tests.models.zoo import optimizer_of

WIDTH, HEADS, VOCABULARY = 16, 4, 24


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self):
        super().__init__()
        self.before, self.between = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (t.view(batch, length, HEADS, -1).transpose(1, 2) for t in self.qkv(self.before(x)).chunk(3, -1))
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(nn.functional.silu(self.up(self.between(x))))


class Transformer(nn.Module):
    """A one-block language model with tied embeddings."""

    def __init__(self):
        super().__init__()
        self.embed, self.block = nn.Embedding(VOCABULARY, WIDTH), Block()
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.block(self.embed(ids)))


SHARDINGS = {
    "embed.weight": "tp: S(0), dp: S(1)",
    "block.out.weight": "dp: S(0), tp: S(1)",
    "block.up.*": "tp: S(0), dp: S(0)",
    "block.down.weight": "dp: S(0), tp: S(1)",
}
"""Weights sharded by both axes; norms, the attention's projection and a bias are left to the compiler."""


def transformer() -> tuple[Transformer, Tensor, Tensor]:
    """The model, token ids and targets; equal on all ranks."""
    torch.manual_seed(0)
    model = Transformer().double()
    return model, torch.randint(VOCABULARY, (4, 6)), torch.randint(VOCABULARY, (4, 6))


def loss_of(model: nn.Module, ids: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(ids).flatten(0, 1), target.flatten())


class Counted(nn.Module):
    """Dropout, a buffer that is replaced, one that is exchanged with another, and outputs that are not all tensors."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(8, 12)
        self.register_buffer("mean", torch.zeros(12))
        self.register_buffer("first", torch.ones(12))
        self.register_buffer("second", torch.full((12,), 2.0))

    def forward(self, x: dict[str, Tensor], scale: float) -> dict[str, Any]:
        y = nn.functional.dropout(self.up(x["value"]) * scale, 0.5, training=True)
        before = self.mean.clone()
        self.mean.copy_(0.9 * self.mean + 0.1 * y.mean(0))
        first = self.first.clone()
        self.first.copy_(self.second)
        self.second.copy_(first)
        x["seen"].add_(1)
        return {"y": y, "mean": before, "scale": scale, "nothing": None}


def error_of(call: Callable[[], Any]) -> str:
    """Return the message of the error that `call` raises."""
    try:
        call()
    except spmdir.SpmdirError as error:
        return error.message
    return "no error"


def local(held: Any) -> Tensor:
    """The shard of this rank."""
    shard = held.to_local() if isinstance(held, DTensor) else held.tensor
    return shard.shard if isinstance(shard, BlockShard) else shard


def forward(mesh: Mesh) -> dict[str, Any]:
    model, ids, _ = transformer()
    parallel = spmdir.parallelize(model, mesh, {**SHARDINGS, "ids": "dp: S(0)"}, (ids,))
    full = parallel.state_dict()
    told = None
    if parallel.rank == 0:
        (explained,) = spmdir.report.explain(parallel, most=1).values
        told = explained.seconds, spmdir.report.comm_report(parallel.module, pipeline=parallel.pipeline).objective
    return {
        "told": told,
        "outputs": parallel(ids),
        "expected": model(ids),
        "local": {name: local(tensor).numel() for name, tensor in parallel.state.items()},
        "storage": sum(local(tensor).untyped_storage().nbytes() for tensor in parallel.state.values()),
        "parameters": all(isinstance(tensor, nn.Parameter) for tensor in parallel.state.values()),
        "state": full,
        "model_state": dict(model.state_dict()),
        "pipeline": str(parallel.pipeline),
        "module": spmdir.print_ir(parallel.module),
    }


def sharded(mesh: Mesh) -> dict[str, Any]:
    """Local shards in, local shards out."""
    model, ids, _ = transformer()
    shardings = {**SHARDINGS, "ids": "dp: S(0)"}
    outputs = ["dp: S(0), tp: S(2)"]
    parallel = spmdir.parallelize(model, mesh, shardings, (ids,), out_shardings=outputs, local_inputs=True)
    place = mesh.coordinate(parallel.rank)
    batch, vocabulary = ids.shape[0] // mesh.sizes["dp"], VOCABULARY // mesh.sizes["tp"]
    rows = slice(place["dp"] * batch, (place["dp"] + 1) * batch)
    columns = slice(place["tp"] * vocabulary, (place["tp"] + 1) * vocabulary)
    return {"outputs": parallel(ids[rows]), "expected": model(ids)[rows, :, columns]}


def training(mesh: Mesh, optimizer: str) -> dict[str, Any]:
    """Three updates, of all parameters but one, with a schedule; those of AdamW clip the sum of two micro-batches."""
    model, ids, target = transformer()
    model.block.before.requires_grad_(False)
    made = optimizer_of(optimizer, model, lr=0.05)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(made, 0.5)
    options = {"accumulate": 2, "clip_grad_norm": 0.5} if optimizer == "adamw" else {}
    step, state = spmdir.training_step(model, loss_of, made, **options)
    parallel = spmdir.parallelize(step, mesh, {**SHARDINGS, "arg*": "dp: S(0)"}, (ids, target), state=state)
    full = sum(tensor.numel() for tensor in pytree.tree_leaves(state))
    kept = {name: local(tensor).data_ptr() for name, tensor in parallel.state.items()}
    losses, expected = [], []
    for _ in range(3):
        losses.append(parallel(ids, target))
        state["lr"]["0"] = torch.tensor(made.param_groups[0]["lr"], dtype=torch.float64)
        value, state = step(state, ids, target)
        expected.append(value)
        scheduler.step()
    return {
        "losses": losses,
        "expected": expected,
        "state": parallel.gather_state(),
        "expected_state": state,
        "share": sum(local(tensor).numel() for tensor in parallel.state.values()) / full,
        "in_place": kept == {name: local(tensor).data_ptr() for name, tensor in parallel.state.items()},
    }


def effects(mesh: Mesh) -> dict[str, Any]:
    """Buffers and inputs that change, and random numbers from generators that stand apart."""
    torch.manual_seed(0)
    model = Counted().double()
    x = {"value": torch.randn(4, 8, dtype=torch.float64), "seen": torch.zeros(3, dtype=torch.float64)}
    example = {name: tensor.clone() for name, tensor in x.items()}
    parallel = spmdir.parallelize(model, mesh, {"up.*": "tp: S(0)", "mean": "tp: S(0)"}, (example, 0.5))
    torch.manual_seed(parallel.rank + 7)
    outputs = [parallel(x, 0.5) for _ in range(2)]
    torch.manual_seed(7)
    seen = x["seen"].clone()
    expected = [model(x, 0.5) for _ in range(2)]
    shared = torch.zeros(40, dtype=torch.float64)
    return {
        "outputs": outputs,
        "expected": expected,
        "seen": seen,
        "state": parallel.state_dict(),
        "expected_state": dict(model.state_dict()),
        "number": error_of(lambda: parallel(x, 2.0)),
        "structure": error_of(lambda: parallel(x["value"], 0.5)),
        "shape": error_of(lambda: parallel({"value": torch.zeros(5, 8), "seen": x["seen"]}, 0.5)),
        "memory": error_of(lambda: parallel({"value": shared[:32].view(4, 8), "seen": shared[30:33]}, 0.5)),
    }


def exported(mesh: Mesh, rank: int) -> dict[str, Any]:
    """`tensor_parallel` run by each group along tp, on inputs of its own."""
    model, ids, _ = transformer()
    styles = {"block.up": "colwise", "block.down": "rowwise", "block.out": "rowwise"}
    ids = ids.roll(mesh.coordinate(rank)["dp"], 0)
    device_mesh = torch.distributed.device_mesh.init_device_mesh(
        "cpu", tuple(mesh.sizes.values()), mesh_dim_names=mesh.axis_names
    )
    program = torch.export.export(model, (ids,))
    named = spmdir.tensor_parallel(program, mesh, styles, rank, device_mesh=device_mesh)
    portable = spmdir.tensor_parallel(program, mesh, styles, rank)
    for _ in range(2):  # a second program finds the names taken
        connect(portable, device_mesh)
    return {
        "outputs": [named.module()(ids), portable.module()(ids)],
        "expected": model(ids),
        "local": {name: tuple(tensor.shape) for name, tensor in named.state_dict.items()},
        "rank": error_of(
            lambda: spmdir.tensor_parallel(program, mesh, styles, (rank + 1) % 4, device_mesh=device_mesh)
        ),
    }


def rejected(mesh: Mesh, rank: int) -> dict[str, str]:
    model, ids, _ = transformer()
    uneven = {"block.up.weight": "tp: S(0)"} if rank else {}
    return {
        "size": error_of(lambda: spmdir.parallelize(model, Mesh({"dp": 3, "tp": mesh.world_size}), None, (ids,))),
        "programs": error_of(lambda: spmdir.parallelize(model, mesh, uneven, (ids,))),
    }


NEGATES = """
from dataclasses import dataclass

from xdsl.ir import Operation
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from spmdir.dialects.aten import op_class

@dataclass(frozen=True)
class NegatesPass(ModulePass):
    name = "negates"

    def apply(self, ctx, op):
        for old in [child for child in op.walk() if child.name == "aten.relu"]:
            new = op_class("aten.neg").build_op(
                list(old.operands), list(old.metas), (), list(old.shardings), None, old.location)
            for key in old.properties.keys() - new.properties.keys():
                new.properties[key] = old.properties[key]
            Rewriter.replace_op(old, new)
"""
"""A plug-in whose pass makes another program, so that results tell whether it has run."""


TWO_LAYERS = {"0.weight": "tp: S(0)", "0.bias": "tp: S(0)", "2.weight": "tp: S(1)"}


def two_layers() -> tuple[nn.Sequential, Tensor]:
    """A perceptron, which TWO_LAYERS shards, and its input; equal on all ranks."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).double()
    return model, torch.randn(4, 8, dtype=torch.float64)


def own_pass(mesh: Mesh, rank: int) -> dict[str, Any]:
    """A pass of a plug-in among those of `parallelize`, and pipelines and plug-ins that differ between ranks."""
    file = Path(tempfile.mkdtemp()) / "negates.py"
    file.write_text(NEGATES)
    (model, x), plan = two_layers(), TWO_LAYERS
    rest = "propagate,expand,insert-reshard,lower-reshard,localize"
    texts = (f"negates,{rest}", rest.replace("localize", "negates,localize"))
    pipelines = [spmdir.Pipeline(text, plugins=[file]) for text in texts]
    outputs = [spmdir.parallelize(model, mesh, plan, (x,), pipeline=pipeline)(x) for pipeline in pipelines]
    file.write_text(NEGATES + "# another" * rank)
    changed = spmdir.Pipeline(rest, plugins=[file])
    other = rest.replace("expand,", "" if rank else "expand,")
    return {
        "outputs": outputs,
        "expected": [model[2](-model[0](x))] * 2,
        "plug-ins": error_of(lambda: spmdir.parallelize(model, mesh, plan, (x,), pipeline=changed)),
        "pipelines": error_of(lambda: spmdir.parallelize(model, mesh, plan, (x,), pipeline=other)),
    }


STAR = """
from spmdir.reshard.clause import ON, OP
from spmdir.reshard.collective_spec import CollectiveSpec
from spmdir.reshard.traffic import Traffic

PLUGIN_FILES = ["star.rewrites"]


def lower(site, x):
    from spmdir.lowering.ranges import aten
    from spmdir.lowering.site import functional

    count, shape = site.mesh.group_size(site.axes), site.local(site.source)

    def finish(gathered):
        return site.emit(aten.sum.dim_IntList, site.emit(aten.reshape.default, gathered, [count, *shape]), [0])

    return site.move(functional.all_gather_into_tensor.default, x, count, finish=finish)


STAR = CollectiveSpec(
    name="star_reduce",
    summary="Every rank gets all partial values and sums them",
    clauses=(ON, OP),
    before="partial",
    after="replicated",
    traffic=Traffic(wire=lambda s: s.source / s.group),
    lower=lower,
)
"""
STAR_REWRITES = "star: all_reduce x on A op r => star_reduce x on A op r\n"
"""A plug-in with a collective, and the rewrite that puts it in."""


def own_collective(mesh: Mesh, rank: int) -> dict[str, Any]:
    """A collective and a rewrite of a plug-in in the standard pipeline of `parallelize`."""
    folder = Path(tempfile.mkdtemp())
    (folder / "star.py").write_text(STAR)
    (folder / "star.rewrites").write_text(STAR_REWRITES)
    model, x = two_layers()
    pipeline = spmdir.Pipeline(plugins=[folder / "star.py"])
    parallel = spmdir.parallelize(model, mesh, TWO_LAYERS, (x,), pipeline=pipeline)
    return {
        "outputs": parallel(x),
        "expected": model(x),
        "text": spmdir.print_ir(parallel.module),
        "code": parallel.graph.code,
    }


class Noisy(nn.Module):
    """A layer with dropout and one with statistics of its batches, which are buffers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.norm, self.down = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)
        self.double()

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return self.down(nn.functional.dropout(self.norm(self.up(x)), 0.5)) * scale


NOISY = {"x": "tp: S(0)", "up.weight": "tp: S(0)"}


def compiled(mesh: Mesh) -> dict[str, Any]:
    """A model whose rank programs are compiled by Inductor, and as they are."""
    x, scale = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1)), torch.ones(4)
    outputs, states = [], []
    for compile in (True, False):
        parallel = spmdir.parallelize(Noisy(), mesh, NOISY, (x, scale), compile=compile)
        torch.manual_seed(3)
        outputs.append([parallel(x, scale) for _ in range(2)])
        states.append(parallel.state_dict())
    return {
        "outputs": outputs,
        "states": states,
        "rank_module": spmdir.print_ir(parallel.rank_module),
        "flag": error_of(lambda: spmdir.parallelize(Noisy(), mesh, None, (x, scale), compile="inductor")),  # type: ignore
        "option": error_of(lambda: spmdir.parallelize(Noisy(), mesh, NOISY, (x, scale), compile={"no_such": 1})),
    }


def by_backend(mesh: Mesh) -> dict[str, Any]:
    """A model that torch.compile gives to the backend, its parameters changed between calls."""
    x, scale = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1)), torch.ones(4)
    torch._dynamo.reset()
    model, single = Noisy(), Noisy()
    run = torch.compile(model, backend="spmdir", options={"mesh": mesh, "plan": NOISY})
    outputs: list[Tensor] = []
    for step in (run, single):
        torch.manual_seed(3)
        outputs += [step(x, scale) for _ in range(2)]
        (model if step is run else single).up.weight.mul_(2)
        outputs += [step(x, scale), step(torch.cat([x, x]), scale)]
    wrong = torch.compile(Noisy(), backend=from_options, options={"mash": mesh})
    unknown = {"mesh": mesh, "plan": {"up": ""}}
    with torch.enable_grad():
        gradients = error_of(lambda: run(x, scale))
    return {
        "outputs": outputs[:4],
        "expected": outputs[4:],
        "state": dict(model.state_dict()),
        "expected_state": dict(single.state_dict()),
        "gradients": gradients,
        "options": torch.compile(Noisy().eval(), backend=from_options, options={"mesh": mesh})(x, scale),
        "of one": Noisy().eval()(x, scale),
        "unknown": raised(lambda: wrong(x, scale)),
        "plan": error_of(lambda: torch.compile(Noisy(), backend="spmdir", options=unknown)(x, scale)),
    }


def raised(call: Callable[[], Any]) -> str:
    """The text of what `call` raises."""
    try:
        call()
    except Exception as error:
        return str(error)
    return "no error"


CASES: dict[str, Callable[[Mesh, int], Any]] = {
    "own_pass": own_pass,
    "own_collective": own_collective,
    "compiled": lambda mesh, rank: compiled(mesh),
    "by_backend": lambda mesh, rank: by_backend(mesh),
    "forward": lambda mesh, rank: forward(mesh),
    "sharded": lambda mesh, rank: sharded(mesh),
    "adamw": lambda mesh, rank: training(mesh, "adamw"),
    "sgd": lambda mesh, rank: training(mesh, "sgd"),
    "effects": lambda mesh, rank: effects(mesh),
    "exported": exported,
    "rejected": rejected,
}


def run(rank: int, mesh: Mesh, names: tuple[str, ...]) -> dict[str, Any]:
    """The results of some cases on this rank."""
    with torch.no_grad():
        return {name: CASES[name](mesh, rank) for name in names}
