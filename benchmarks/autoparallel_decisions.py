"""AutoParallel's decisions for Llama-3 8B and 70B, row by row: `python -m benchmarks.autoparallel_decisions`.

AutoParallel publishes how it shards each projection on dp × tp, with two sequences of 8192 tokens a rank of dp
(docs/adaptive_sharding.md of meta-pytorch/autoparallel at a54c252). The training step here has the same setting:
parameters in f32 that are sharded over all ranks, gathered in bf16, and gradients reduced in f32; the batch is sharded
over dp. Everything else is open, and equal layers are decided alike.

For each projection, the table has both decisions, and the modelled step with theirs, which is that of

    spmd explain llama.mlir --set '%l*.wo.out = tp: S(1)'
"""

from __future__ import annotations

import attrs
import torch
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

import spmdir
from benchmarks.measure import listed, options
from benchmarks.programs import Config, loss_and_gradients, parameter_shapes, shardings
from spmdir.core.mesh import Mesh
from spmdir.dialects import ir
from spmdir.dialects.names import keep_name, name_of
from spmdir.dialects.value_op import ValueOp
from spmdir.report.op_sums import table

CONFIGS = {
    "8b": Config(dim=4096, heads=32, kv_heads=8, ffn=14336, seq=8192, batch=2, vocab=128256, attention="sdpa"),
    "70b": Config(dim=8192, heads=64, kv_heads=8, ffn=28672, seq=8192, batch=2, vocab=128256, attention="sdpa"),
    "tiny": Config(dim=64, heads=8, kv_heads=8, ffn=128, seq=32, batch=2, vocab=256, attention="sdpa"),
}
"""Model → its sizes; the batch is that of a rank of dp."""

COLUMN, ROW, SEQUENCE, BATCH = "column", "row", "sequence", "batch"

_MEGATRON = {"wq": COLUMN, "wk": COLUMN, "wv": COLUMN, "wo": ROW, "w1": COLUMN, "w3": COLUMN, "w2": ROW}

THEIRS = {"8b": _MEGATRON | {"wo": SEQUENCE}, "70b": _MEGATRON, "tiny": _MEGATRON}
"""Model → projection → its strategy along tp. Their "column-parallel" wo of 70B is Megatron's: its input
is sharded by heads, so its output is a partial sum."""

ROWS = ("wq", "wk,wv", "wo", "w1,w3", "w2")

PIPELINE = "propagate{memory=none}"


def training_step(model: str, layers: int, axes: tuple[tuple[str, int], ...]) -> ModuleOp:
    """Return the training step of a model in the IR. The outputs of projections are called `%l0.wq.out` and so on."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    mesh = Mesh(axes, intra_node=("tp",))
    config = attrs.evolve(CONFIGS[model], layers=layers, batch=CONFIGS[model].batch * mesh.sizes["dp"])
    step = loss_and_gradients(config, None)

    def mixed(parameters: dict[str, torch.Tensor], tokens: torch.Tensor, labels: torch.Tensor) -> list[torch.Tensor]:
        results = step({name: p.to(torch.bfloat16) for name, p in parameters.items()}, tokens, labels)
        return [results[name].to(torch.float32) for name in ("loss", *parameters)]

    shapes = parameter_shapes(config)
    with FakeTensorMode():
        tokens = torch.zeros(config.batch, config.seq, dtype=torch.int64)
        graph = make_fx(mixed)({name: torch.empty(shape) for name, shape in shapes.items()}, tokens, tokens.clone())
    placed, _ = shardings(config, "nocons")
    given = [placed[name].replace("data", "dp").replace("model", "tp") for name in shapes]
    inputs = [node.name for node in graph.graph.nodes if node.op == "placeholder"]
    results = ["", *given]
    plan = dict(zip(inputs, [*given, "dp: S(0)", "dp: S(0)"], strict=True))
    module = spmdir.import_fx(graph, mesh, plan, out_shardings=results)
    for argument, name in zip(ir.main_function(module).args, shapes, strict=False):
        if name.partition(".")[2] in _MEGATRON:
            keep_name(projection_of(argument).results[0], f"{name}.out")
    return module


def projection_of(weight: SSAValue) -> ValueOp:
    """Return the einsum that multiplies activations by a weight: the first one behind views and casts of it."""
    block = weight.owner
    value = weight
    while True:
        users = [use.operation for use in value.uses if isinstance(use.operation, ValueOp)]
        op = min(users, key=block.get_operation_index)  # type: ignore[attr-defined]  # the block of an argument
        if op.name == "aten.einsum":
            return op
        value = op.results[0]


def placements_of(projection: ValueOp) -> dict[str, str]:
    """Return strategy → placement of the output of a projection, an einsum such as `abc,cde->abde`."""
    operands, _, output = str(projection.argument["equation"]).partition("->")
    activations, weight = operands.split(",")
    batch, sequence = (output.index(letter) for letter in activations if letter not in weight)
    column = next(output.index(letter) for letter in weight if letter not in activations)
    return {COLUMN: f"S({column})", SEQUENCE: f"S({sequence})", BATCH: f"S({batch})", ROW: "P(sum)"}


def projections_of(module: ModuleOp) -> dict[str, ValueOp]:
    """Return projection, such as `l0.wq` → its op."""
    ops = (op for op in ir.main_function(module).body.block.ops if isinstance(op, ValueOp))
    named = ((name_of(op.results[0]) or "", op) for op in ops)
    return {name.removesuffix(".out"): op for name, op in named if name.endswith(".out")}


def compare(model: str, module: ModuleOp) -> list[tuple[str, ...]]:
    """Return a row for each group of projections, and one with all of AutoParallel's decisions."""
    decided = spmdir.run_passes(module.clone(), PIPELINE)
    projections, chosen = projections_of(module), projections_of(decided)
    placements = {name: placements_of(op) for name, op in projections.items()}

    def strategy(name: str) -> str:
        sharding = chosen[f"l0.{name}"].shardings[0]
        assert sharding is not None
        names = {placement: key for key, placement in placements[f"l0.{name}"].items()}
        found = [(axis, names.get(str(placement), str(placement))) for axis, placement in sharding.entries]
        return ", ".join(key if axis == "tp" else f"{key} by {axis}" for axis, key in found if key != BATCH)

    theirs = THEIRS[model]
    rows: list[tuple[str, ...]] = [
        ("projection", "AutoParallel", "spmdir", "step, ms", "with theirs, ms", "difference")
    ]
    for group in (*ROWS, ",".join(theirs)):
        names = group.split(",")
        changes = {f"%l*.{name}.out": f"tp: {placements[f'l0.{name}'][theirs[name]]}" for name in names}
        difference = spmdir.report.what_if(module, changes, pipeline=PIPELINE)
        before, after = difference.before.objective, difference.after.objective
        assert before is not None and after is not None
        strategies = ("; ".join(dict.fromkeys(map(each, names))) for each in (theirs.__getitem__, strategy))
        label = (group, *strategies) if group in ROWS else ("all", "", "")
        rows.append((*label, f"{1e3 * before:.2f}", f"{1e3 * after:.2f}", f"{after / before - 1:+.2%}"))
    return rows


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--models", type=listed(str), default=["8b", "70b"], help="8b,70b, or tiny")
    parser.add_argument("--layers", type=int, default=2, help="default 2; all layers are decided alike")
    parser.add_argument("--mesh", type=listed(int), default=[16, 8], help="ranks of dp and of tp; default 16,8")
    parser.add_argument("-o", dest="output", help="write the program of each model to OUTPUT-MODEL.mlir")
    chosen = parser.parse_args()
    axes = tuple(zip(("dp", "tp"), chosen.mesh, strict=True))
    for model in chosen.models:
        module = training_step(model, chosen.layers, axes)
        if chosen.output:
            with open(f"{chosen.output}-{model}.mlir", "w") as file:
                file.write(spmdir.print_ir(module))
        print(f"\nLlama-3 {model}, {chosen.layers} layers, on {Mesh(axes)}")
        print("\n".join(table(compare(model, module), range(3, 6))), flush=True)


if __name__ == "__main__":
    main()
