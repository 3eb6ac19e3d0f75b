"""Gaps of decisions for large models, and the time to prove them: `python -m benchmarks.certified_gaps --models 8b`.

The programs are training steps without the optimizer: forward, loss and gradients. Parameters are in f32, and computed
with in bf16. All mesh axes but the last shard the batch, 2 sequences of 8192 tokens a rank (Llama-3) or 4 of 1024
(GPT-2 XL). Plan "fixed" shards parameters and gradients over all axes; plan "open" leaves them to the search.

Each program is decided with `propagate{certify}` in a process of its own. CPU seconds.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Mapping

import attrs
import torch
import torch.nn.functional as F
from torch import Tensor
from xdsl.dialects.builtin import ModuleOp

import spmdir
from benchmarks.measure import Row, Stopwatch, cold, listed, options, peak_memory, print_table
from benchmarks.peers import Sizes, layer, shapes_of
from benchmarks.programs import Config, loss_and_gradients, parameter_shapes
from spmdir.core.mesh import Mesh

GAP, SECONDS = 0.05, 30.0
"""The largest gap, in per cent, and the most seconds for search and certificate."""

LLAMAS = {
    "8b": Config(32, 4096, heads=32, kv_heads=8, ffn=14336, seq=8192, batch=2, vocab=128256, attention="sdpa"),
    "70b": Config(80, 8192, heads=64, kv_heads=8, ffn=28672, seq=8192, batch=2, vocab=128256, attention="sdpa"),
    "tiny": Config(2, 64, heads=8, kv_heads=8, ffn=128, seq=32, batch=2, vocab=256, attention="sdpa"),
}
"""Model → its sizes; the batch is that of a rank."""

GPT2_XL, GPT2_LAYERS, GPT2_VOCABULARY = Sizes(1600, 25, 25, 6400, 1024, 4), 48, 50257

Step = Callable[[dict[str, Tensor], Tensor, Tensor], dict[str, Tensor]]
"""A function of parameters, tokens and labels that returns the loss and a gradient for each parameter."""

PLANS = ("fixed", "open")


@attrs.frozen
class Proved:
    """One run of `propagate{certify}`.

    Attributes:
        objective, bound: modelled seconds of a step, and the lower bound on them.
        gap: in per cent.
        seconds: CPU time of search and certificate.
        memory: the largest resident size of the process, in MB.
        ends: the remark on the search.
    """

    objective: float
    bound: float
    gap: float
    seconds: float
    memory: float
    ends: str


def gpt2_shapes(layers: int) -> dict[str, tuple[int, ...]]:
    """Return parameter → shape."""
    of_layer = shapes_of("gpt2", GPT2_XL)
    width = (GPT2_XL.dim,)
    shapes = {"embed": (GPT2_VOCABULARY, *width), "positions": (GPT2_XL.seq, *width)}
    shapes |= {f"l{index}.{name}": shape for index in range(layers) for name, shape in of_layer.items()}
    return shapes | {"norm.weight": width, "norm.bias": width}


def gpt2_step(layers: int, batch: int) -> Step:
    """Return the training step of GPT-2 XL; the embedding is also the last product."""
    forward = layer("gpt2", attrs.evolve(GPT2_XL, batch=batch))

    def step(parameters: dict[str, Tensor], tokens: Tensor, labels: Tensor) -> dict[str, Tensor]:
        leaves = {name: p.detach().requires_grad_() for name, p in parameters.items()}
        x = F.embedding(tokens, leaves["embed"]) + leaves["positions"]
        for index in range(layers):
            x = forward({n.partition(".")[2]: p for n, p in leaves.items() if n.startswith(f"l{index}.")}, x)
        x = F.layer_norm(x, x.shape[-1:], leaves["norm.weight"], leaves["norm.bias"])
        loss = F.cross_entropy((x @ leaves["embed"].t()).view(-1, GPT2_VOCABULARY), labels.view(-1))
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        return {"loss": loss.detach()} | dict(zip(leaves, gradients, strict=True))

    return step


def training_step(model: str, layers: int | None, mesh: Mesh, plan: str) -> ModuleOp:
    """Return the training step of a model in the IR.

    Args:
        layers: their number; None for all.
        plan: "fixed" or "open".
    """
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    *outer, inner = mesh.axis_names
    ranks = mesh.group_size(tuple(outer))
    if model == "gpt2-xl":
        depth, seq, batch = layers or GPT2_LAYERS, GPT2_XL.seq, GPT2_XL.batch * ranks
        step, shapes = gpt2_step(depth, batch), gpt2_shapes(depth)
    else:
        config = LLAMAS[model]
        config = attrs.evolve(config, layers=layers or config.layers, batch=config.batch * ranks)
        step, shapes, seq, batch = loss_and_gradients(config, None), parameter_shapes(config), config.seq, config.batch

    def mixed(parameters: dict[str, Tensor], tokens: Tensor, labels: Tensor) -> list[Tensor]:
        results = step({name: p.to(torch.bfloat16) for name, p in parameters.items()}, tokens, labels)
        return [results[name].to(torch.float32) for name in ("loss", *parameters)]

    with FakeTensorMode():
        tokens = torch.zeros(batch, seq, dtype=torch.int64)
        graph = make_fx(mixed)({name: torch.empty(shape) for name, shape in shapes.items()}, tokens, tokens.clone())
    tokens_sharding = ", ".join(f"{axis}: S(0)" for axis in outer)
    inputs = [node.name for node in graph.graph.nodes if node.op == "placeholder"]
    given: list[str | None] = [None] * len(shapes)
    if plan == "fixed":
        given = [_sharding(name, shape, outer, inner) for name, shape in shapes.items()]
    placed: Mapping[str, str] = {
        name: text
        for name, text in zip(inputs, [*given, tokens_sharding, tokens_sharding], strict=True)
        if text is not None
    }
    return spmdir.import_fx(graph, mesh, placed, out_shardings=["", *given])


def _sharding(name: str, shape: tuple[int, ...], outer: list[str], inner: str) -> str:
    """Return the sharding of a parameter: matrices over all axes, each dimension over as few as possible."""
    if len(shape) < 2:
        return ""
    kind = name.rpartition(".")[2]
    row = int(kind not in ("wo", "w2", "embed", "positions"))
    if kind == "embed" and shape[0] % 8:
        row = 1
    return ", ".join([*(f"{axis}: S({1 - row})" for axis in outer), f"{inner}: S({row})"])


def proved(model: str, layers: int | None, axes: tuple[tuple[str, int], ...], plan: str, option: str) -> Proved:
    """Decide a program and prove how good the decision is.

    Args:
        option: further options of `propagate`.
    """
    module = training_step(model, layers, Mesh(axes), plan)
    remarks = io.StringIO()
    watch = Stopwatch()
    with contextlib.redirect_stderr(remarks):
        spmdir.run_passes(module, f"propagate{{memory=none certify remarks {option}}}")
    watch.lap("propagate")
    certificate = spmdir.report.comm_report(module).certificate
    assert certificate is not None
    ends = "; ".join(re.findall(r"axes [^;\n]*", remarks.getvalue()))
    objective, bound = certificate.objective, certificate.lower_bound
    return Proved(objective, bound, 100 * certificate.gap, watch.seconds["propagate"], peak_memory(), ends)


def rows_of(model: str, layers: int | None, axes: tuple[tuple[str, int], ...], plan: str, option: str) -> list[Row]:
    found = cold(proved, model, layers, axes, plan, option)
    name = f"{model} L={layers or 'all'} {'x'.join(str(size) for _, size in axes)} {plan}"
    detail = f"{1e3 * found.objective:.6g} ms, {1e3 * found.bound:.6g} at the least; {found.ends}"
    return [
        Row(f"{name}: gap, %", found.gap, GAP, form="{:.3f}", detail=detail),
        Row(f"{name}: propagate and certify, s", found.seconds, SECONDS, detail=f"{found.memory:.0f} MB"),
    ]


def read_mesh(text: str) -> tuple[tuple[str, int], ...]:
    """Read a mesh of two to four axes, such as 2x4x8."""
    sizes = [int(size) for size in text.split("x")]
    return tuple(zip(("pod", "group", "data", "model")[-len(sizes) :], sizes, strict=True))


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--models", type=listed(str), default=["8b", "70b", "gpt2-xl"], help="8b,70b,gpt2-xl, or tiny")
    parser.add_argument("--layers", type=listed(int), default=[2], help="2; 0 for all layers")
    parser.add_argument("--meshes", type=listed(read_mesh), default=[read_mesh("8x8"), read_mesh("2x4x8")])
    parser.add_argument("--plans", type=listed(str), default=list(PLANS), help=",".join(PLANS))
    parser.add_argument("--options", default="", help="further options of propagate, such as effort=1000")
    chosen = parser.parse_args()
    rows = []
    for axes in chosen.meshes:
        for model in chosen.models:
            for layers in chosen.layers:
                for plan in chosen.plans:
                    rows += rows_of(model, layers or None, axes, plan, chosen.options)
                    print_table("", rows[-2:])
    print_table("certified gaps", rows)


if __name__ == "__main__":
    main()
