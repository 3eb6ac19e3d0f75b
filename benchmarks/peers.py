"""The same programs decided by DTensor, by Shardy and by spmdir: `python -m benchmarks.peers --meshes 8,2x4`.

Each program is the forward and backward of one layer, traced to aten ops. Its arguments have the shardings of a plan.
Each system decides the sharding of every value:

- DTensor executes the ops one by one on fake tensors. An op has the placements that its operands lead to.
- Shardy propagates over the exported program, in which each op has spmdir's rule as its `sdy.sharding_rule`. It runs
  from the wheel of jaxlib, which `make peers` installs.
- spmdir's `propagate` minimises the modelled time.

All decisions are priced alike. The decided values are constraints of the program, and spmdir chooses the strategy of
each op and the collectives between them at the least modelled time. A peer's own lowering takes no less.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import attrs
import torch
import torch.nn.functional as F
from torch import Tensor, fx
from xdsl.dialects.builtin import IntegerAttr, ModuleOp

import spmdir
from benchmarks.dtensor_programs import strided_shards_on_real_tensors
from benchmarks.measure import listed, options
from benchmarks.programs import rms_norm, rotate
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding, as_sharding
from spmdir.dialects import ir
from spmdir.dialects.aten import AtenOp
from spmdir.dialects.attributes import meta_of
from spmdir.dialects.reshard_ops import ConstraintOp
from spmdir.dialects.values import sharding_of
from spmdir.report.communication import CommReport
from spmdir.report.op_sums import table
from spmdir.rules.rule_set import default

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

PIPELINE = "propagate{memory=none},insert-reshard,lower-reshard,fuse-collectives"

INDEX = "spmd.index"
"""The attribute that numbers ops, so that they are found again after Shardy's passes."""

NOT_INSTALLED = "not installed"


@attrs.frozen
class Sizes:
    """The sizes of a layer."""

    dim: int
    heads: int
    kv_heads: int
    ffn: int
    seq: int
    batch: int


LARGE = {
    "mlp": Sizes(4096, 32, 8, 14336, 2048, 8),
    "attention": Sizes(4096, 32, 8, 14336, 2048, 8),
    "llama": Sizes(4096, 32, 8, 14336, 2048, 8),
    "gpt2": Sizes(1600, 16, 16, 6400, 1024, 16),
}
"""Program → its sizes: those of Llama-3 8B, and of GPT-2 XL with 16 heads, which 8 ranks divide."""

SMALL = Sizes(64, 8, 8, 128, 16, 8)


def shapes_of(program: str, sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """Return parameter → shape."""
    width, kv_width = sizes.dim, sizes.dim // sizes.heads * sizes.kv_heads
    attention = {"wq": (width, width), "wk": (width, kv_width), "wv": (width, kv_width), "wo": (width, width)}
    mlp = {"w1": (width, sizes.ffn), "w2": (sizes.ffn, width)}
    if program == "mlp":
        return mlp
    if program == "attention":
        return attention
    if program == "llama":
        return {"norm1": (width,), **attention, "norm2": (width,), **mlp, "w3": (width, sizes.ffn)}
    norms = {f"{norm}.{part}": (width,) for norm in ("norm1", "norm2") for part in ("weight", "bias")}
    biases = {f"b{name[1:]}": shape[1:] for name, shape in {**attention, **mlp}.items()}
    return {**norms, **attention, **mlp, **biases}


def layer(program: str, sizes: Sizes) -> Callable[[Mapping[str, Tensor], Tensor], Tensor]:
    """Return the forward of a layer: parameters and activations of shape (batch, seq, dim) → activations."""

    def heads(x: Tensor, count: int) -> Tensor:
        return x.view(sizes.batch, sizes.seq, count, sizes.dim // sizes.heads)

    def attention(w: Mapping[str, Tensor], x: Tensor, is_rotary: bool = True) -> Tensor:
        q, k, v = (_linear(w, name, x) for name in "qkv")
        q, k, v = heads(q, sizes.heads), heads(k, sizes.kv_heads), heads(v, sizes.kv_heads)
        if is_rotary:
            cos, sin = w["cos"][:, None], w["sin"][:, None]
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        group = sizes.heads // sizes.kv_heads
        if group > 1:
            wide = (sizes.batch, sizes.seq, sizes.kv_heads, group, sizes.dim // sizes.heads)
            k, v = (t[:, :, :, None].expand(wide).reshape(q.shape) for t in (k, v))
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        scores = torch.softmax(q @ k.transpose(-1, -2) * (sizes.dim // sizes.heads) ** -0.5, dim=-1)
        return _linear(w, "o", (scores @ v).transpose(1, 2).reshape(x.shape))

    def llama(w: Mapping[str, Tensor], x: Tensor) -> Tensor:
        x = x + attention(w, rms_norm(x, w["norm1"]))
        h = rms_norm(x, w["norm2"])
        return x + (F.silu(h @ w["w1"]) * (h @ w["w3"])) @ w["w2"]

    def gpt2(w: Mapping[str, Tensor], x: Tensor) -> Tensor:
        def norm(name: str, x: Tensor) -> Tensor:
            return F.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"])

        x = x + attention(w, norm("norm1", x), is_rotary=False)
        return x + _linear(w, "2", F.gelu(_linear(w, "1", norm("norm2", x))))

    def mlp(w: Mapping[str, Tensor], x: Tensor) -> Tensor:
        return F.gelu(x @ w["w1"]) @ w["w2"]

    return {"mlp": mlp, "attention": attention, "llama": llama, "gpt2": gpt2}[program]


def _linear(w: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
    product = x @ w[f"w{name}"]
    return product + w[f"b{name}"] if f"b{name}" in w else product


def trace(program: str, sizes: Sizes) -> fx.GraphModule:
    """Return the aten ops of the forward and backward: (parameters, x, gradient of y) → y, gradients."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    forward = layer(program, sizes)

    def step(parameters: dict[str, Tensor], tables: dict[str, Tensor], x: Tensor, dy: Tensor) -> list[Tensor]:
        leaves = {name: p.detach().requires_grad_() for name, p in [*parameters.items(), ("x", x)]}
        activations = leaves.pop("x")
        y = forward({**leaves, **tables}, activations)
        return [y.detach(), *torch.autograd.grad(y, [activations, *leaves.values()], dy)]

    with FakeTensorMode():
        parameters = {name: torch.empty(shape) for name, shape in shapes_of(program, sizes).items()}
        tables = {name: torch.empty(sizes.seq, sizes.dim // sizes.heads) for name in tables_of(program)}
        x = torch.empty(sizes.batch, sizes.seq, sizes.dim)
        return make_fx(step)(parameters, tables, x, torch.empty_like(x))


def tables_of(program: str) -> tuple[str, ...]:
    """Return the names of the inputs that are neither parameters nor activations: the rotary tables."""
    return ("cos", "sin") if program in ("attention", "llama") else ()


_COLUMN = {"wq", "wk", "wv", "w1", "w3", "bq", "bk", "bv", "b1"}
_ROW = {"wo", "w2"}


def shardings(program: str, sizes: Sizes, plan: str, mesh: Mesh) -> tuple[list[str], list[str]]:
    """Return the shardings of the arguments, and those of the results.

    Args:
        plan: "tp", Megatron's weights over the last mesh axis, or "fsdp", weights and batch over all axes. In a plan
            "tp" on two axes, the batch is sharded over the first axis.
    """
    *outer, inner = mesh.axis_names
    batch = [f"{axis}: S(0)" for axis in (mesh.axis_names if plan == "fsdp" else outer)]
    activations = ", ".join(batch)

    def weight(name: str, shape: tuple[int, ...]) -> str:
        if plan == "fsdp":
            return activations
        if name in _COLUMN:
            return f"{inner}: S({len(shape) - 1})"
        return f"{inner}: S(0)" if name in _ROW else ""

    weights = [weight(name, shape) for name, shape in shapes_of(program, sizes).items()]
    tables = [""] * len(tables_of(program))
    return [*weights, *tables, activations, activations], [activations, activations, *weights]


def imported(program: str, sizes: Sizes, plan: str, mesh: Mesh) -> ModuleOp:
    """Return the traced program in the IR, with the shardings of arguments and results."""
    graph = trace(program, sizes)
    arguments, results = shardings(program, sizes, plan, mesh)
    names = [node.name for node in graph.graph.nodes if node.op == "placeholder"]
    given = dict(zip(names, arguments, strict=True))
    return spmdir.import_fx(graph, mesh, given, out_shardings=results)


Decision = Mapping[int, Sequence[Sharding | None]]
"""The index of an op of the main function → the shardings of its results."""


def ops_of(module: ModuleOp) -> list[AtenOp]:
    return [op for op in ir.main_function(module).body.block.ops if isinstance(op, AtenOp)]


def pin(module: ModuleOp, decision: Decision) -> ModuleOp:
    """Return the program in which a constraint after each op states the decided sharding."""
    module = module.clone()
    for index, op in enumerate(ops_of(module)):
        for result, sharding in zip(op.results, decision[index], strict=True):
            if sharding is None or not list(result.uses):
                continue
            uses = list(result.uses)
            constraint = ConstraintOp.build(result, sharding, op.location)
            block = op.parent_block()
            assert block is not None
            block.insert_op_after(constraint, op)
            for use in uses:
                use.operation.operands[use.index] = constraint.results[0]
    return module


def price(module: ModuleOp) -> CommReport:
    """Return the costs of the cheapest program with these constraints."""
    return spmdir.report.comm_report(spmdir.run_passes(module, PIPELINE))


def decide_by_shardy(module: ModuleOp) -> Decision:
    """Return the shardings that Shardy's propagation gives the results of ops.

    Raises:
        ImportError: jaxlib is not installed.
    """
    from spmdir.shardy.export_sdy import export_sdy
    from spmdir.shardy.import_sdy import import_sdy

    numbered = module.clone()
    for index, op in enumerate(ops_of(numbered)):
        op.attributes[INDEX] = IntegerAttr(index, 64)
    propagated = import_sdy(propagate_by_shardy(export_sdy(numbered, default())), "propagated.mlir")
    shardings = {op.attributes[INDEX].value.data: op.shardings for op in ops_of(propagated)}  # type: ignore[union-attr]
    replicated = Sharding((), ir.mesh(module).name)
    return {
        index: [sharding or replicated for sharding in shardings.get(index, [None] * len(op.results))]
        for index, op in enumerate(ops_of(module))
    }


def propagate_by_shardy(text: str) -> str:
    """Run Shardy's propagation on a program.

    Raises:
        ImportError: jaxlib is not installed.
    """
    from jaxlib.mlir import ir as mlir  # pyright: ignore[reportMissingImports]
    from jaxlib.mlir._mlir_libs import _jax_mlir_ext  # pyright: ignore[reportMissingImports]
    from jaxlib.mlir.dialects import sdy, stablehlo  # pyright: ignore[reportMissingImports]
    from jaxlib.mlir.passmanager import PassManager  # pyright: ignore[reportMissingImports]

    registry, context = mlir.DialectRegistry(), mlir.Context()
    _jax_mlir_ext.register_dialects(registry)
    context.append_dialect_registry(registry)
    for dialect in (sdy, stablehlo):
        dialect.register_dialect(context)
    context.load_all_available_dialects()
    with context:
        module = mlir.Module.parse(text)
        PassManager.parse("builtin.module(sdy-propagation-pipeline)").run(module.operation)
        return str(module)


def decide_by_dtensor(module: ModuleOp) -> Decision:
    """Return the placements of the results of ops that DTensor executes one by one, on fake tensors."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed.tensor.experimental import implicit_replication

    from spmdir.lowering.torch_calls import TorchCalls, fill_operands

    mesh, function = ir.mesh(module), ir.main_function(module)
    calls = TorchCalls(lambda number: 0, lambda: "cpu")
    decision: dict[int, list[Sharding | None]] = {}
    with contextlib.ExitStack() as stack:
        device_mesh = stack.enter_context(fake_ranks(mesh))
        for context in (FakeTensorMode(), strided_shards_on_real_tensors(), implicit_replication(), torch.no_grad()):
            stack.enter_context(context)
        values: dict[Any, Any] = {argument: _dtensor(argument, mesh, device_mesh) for argument in function.args}
        for index, op in enumerate(ops_of(module)):
            call = calls.of(op, (None,) * len(op.operands), (None,) * len(op.results))
            operands = [values[operand] for operand in op.operands]
            returned = call.target(*fill_operands(call.args, operands), **fill_operands(call.kwargs, operands))
            results = [returned] if isinstance(returned, Tensor) else list(returned)
            values.update(zip(op.results, results, strict=True))
            decision[index] = [_placements(result, mesh) for result in results]
    return decision


def _dtensor(argument: Any, mesh: Mesh, device_mesh: DeviceMesh) -> Any:
    """Return the DTensor of an argument of the program, with a local tensor without data."""
    from torch.distributed.tensor import DTensor

    from spmdir.runtime.local_state import dtensor_placements
    from spmdir.torch_interop.dtypes import TORCH_DTYPES

    meta, sharding = meta_of(argument.type), sharding_of(argument)
    assert meta is not None and sharding is not None
    local = torch.empty(sharding.local_shape(meta.shape, mesh, mesh.coordinate(0)), dtype=TORCH_DTYPES[meta.dtype])
    placements = dtensor_placements(sharding, meta.shape, mesh)
    return DTensor.from_local(local, device_mesh, placements, run_check=False)


def _placements(result: Any, mesh: Mesh) -> Sharding | None:
    """Return the sharding of a result; replicated if it is no DTensor."""
    if result is None:
        return None
    placements = getattr(result, "placements", None)
    return Sharding((), mesh.name) if placements is None else as_sharding(list(placements), mesh, result.dim())


@contextlib.contextmanager
def fake_ranks(mesh: Mesh) -> Iterator[DeviceMesh]:
    """Yield a DeviceMesh of fake ranks."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=mesh.world_size)
    try:
        sizes = tuple(size for _, size in mesh.axes)
        yield init_device_mesh("cpu", sizes, mesh_dim_names=mesh.axis_names)
    finally:
        dist.destroy_process_group()


SYSTEMS: dict[str, Callable[[ModuleOp], Decision | None]] = {
    "DTensor": decide_by_dtensor,
    "Shardy": decide_by_shardy,
    "spmdir": lambda module: None,
}
"""System → its decision on a program; None if `propagate` decides."""


@attrs.frozen
class Cost:
    """The costs of a program as one system decided it.

    Attributes:
        wire_bytes: the bytes that a rank sends.
        sending, step: modelled seconds of the collectives, and of the whole program.
        failure: the reason if the system has no decision; "" otherwise.
    """

    wire_bytes: float = math.nan
    sending: float = math.nan
    step: float = math.nan
    failure: str = ""

    @property
    def cells(self) -> tuple[str, str, str]:
        if self.failure:
            return self.failure, "", ""
        return f"{self.wire_bytes / 1e6:.2f}", f"{1e3 * self.sending:.3f}", f"{1e3 * self.step:.3f}"


def cost(program: str, sizes: Sizes, plan: str, axes: tuple[tuple[str, int], ...], system: str) -> Cost:
    """Return the costs of one program on one mesh, decided by one system."""
    if system == "Shardy" and find_spec("jaxlib") is None:
        return Cost(failure=NOT_INSTALLED)
    warnings.simplefilter("ignore")
    module = imported(program, sizes, plan, Mesh(axes))
    try:
        decision = SYSTEMS[system](module)
    except (NotImplementedError, RuntimeError, spmdir.errors.SpmdirError) as error:
        return Cost(failure=str(error).partition("\n")[0][:60])
    report = price(module if decision is None else pin(module, decision))
    assert report.objective is not None
    return Cost(report.wire_bytes, report.seconds, report.objective)


def read_mesh(text: str) -> tuple[tuple[str, int], ...]:
    """Read a mesh such as `2x4`.

    Raises:
        argparse.ArgumentTypeError: it has no or more than two sizes, or one is not a number.
    """
    sizes = text.split("x")
    if not all(size.isdecimal() for size in sizes) or len(sizes) > 2:
        raise argparse.ArgumentTypeError(f"found '{text}'; expected one or two sizes, as in 8 or 2x4")
    return tuple(zip(("dp", "tp")[-len(sizes) :], map(int, sizes), strict=True))


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--programs", type=listed(str), default=list(LARGE), help=",".join(LARGE))
    parser.add_argument("--plans", type=listed(str), default=["tp", "fsdp"], help="default tp,fsdp")
    parser.add_argument("--meshes", type=listed(read_mesh), default=[read_mesh("8"), read_mesh("2x4")], help="8,2x4")
    parser.add_argument("--small", action="store_true", help="small sizes instead of those of Llama-3 8B and GPT-2 XL")
    chosen = parser.parse_args()
    if find_spec("jaxlib") is None:
        print("Shardy is not installed; install it with `make peers`, or `pip install 'spmdir[peers]'`")
    for axes in chosen.meshes:
        rows: list[tuple[str, ...]] = [
            ("program", "plan", "by", "MB sent", "collectives, ms", "step, ms", "over spmdir")
        ]
        for program in chosen.programs:
            for plan in chosen.plans:
                sizes = SMALL if chosen.small else LARGE[program]
                costs = {system: cost(program, sizes, plan, axes, system) for system in SYSTEMS}
                for system, each in costs.items():
                    ratio = "" if each.failure else f"{each.step / costs['spmdir'].step:.2f}"
                    rows.append((program, plan, system, *each.cells, ratio))
        print(f"\nOne layer, forward and backward, on {Mesh(axes)}")
        print("\n".join(table(rows, range(3, 7))), flush=True)


if __name__ == "__main__":
    main()
