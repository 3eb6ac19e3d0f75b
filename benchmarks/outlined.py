"""Programs of 32 layers with outlined layers beside the same without: lines, and CPU seconds of each pass.

`python -m benchmarks.outlined`. The programs are a Llama's forward, its loss with gradients, and its training step with
AdamW. Each is read, taken from a decided program to that of one rank, and printed, with layers and without, in turns.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping

import attrs
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from xdsl.dialects.builtin import ModuleOp

import spmdir
from benchmarks.gloo_step import VOCABULARY, Sizes, llama, loss_of
from benchmarks.measure import Row, Stopwatch, listed, options, print_table
from benchmarks.programs import LLAMA_7B_WIDE, shardings, trace
from spmdir.pipeline.pipeline import PARTITIONING

LINES = {"forward": 250, "forward and backward": 600, "AdamW step": 600}
"""Program → the most lines that it should have, undecided or as that of one rank."""

GIVEN = {"*q_proj.weight": "tp: S(0)", "*gate_proj.weight": "tp: S(0)"}
"""The shardings of weights of the programs that transformers gives."""


def forward(layers: int) -> ModuleOp:
    """Return a forward, undecided."""
    model = llama(Sizes(layers, 128, 128, 8))

    def run(state: dict[str, torch.Tensor], ids: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, state, (ids,), {"use_cache": False}).logits

    ids = torch.randint(0, VOCABULARY, (8, 128))
    graph = make_fx(run, tracing_mode="fake")({**dict(model.named_parameters()), **dict(model.named_buffers())}, ids)
    return spmdir.import_fx(graph, spmdir.Mesh({"dp": 2, "tp": 4}), {**GIVEN, "ids_1": "dp: S(0)"})


def gradients(layers: int) -> ModuleOp:
    """Return a loss with its gradients, 4096 wide, undecided."""
    config = attrs.evolve(LLAMA_7B_WIDE, layers=layers)
    given, residual = shardings(config, "tp_fsdp")
    return spmdir.import_fx(trace(config, residual)[0], spmdir.Mesh({"data": 2, "model": 4}), given)


def step(layers: int) -> ModuleOp:
    """Return a training step, undecided."""
    model = llama(Sizes(layers, 128, 128, 8))
    run, state = spmdir.training_step(model, loss_of, torch.optim.AdamW(model.parameters()))
    graph = make_fx(run, tracing_mode="fake")(state, torch.randint(0, VOCABULARY, (8, 128)))
    return spmdir.import_fx(graph, spmdir.Mesh({"dp": 2, "tp": 4}), {**GIVEN, "arg1_1": "dp: S(0)"})


PROGRAMS = {"forward": forward, "forward and backward": gradients, "AdamW step": step}


def outlined(module: ModuleOp) -> ModuleOp:
    """Return a copy of a module with outlined layers."""
    return spmdir.run_passes(module.clone(), "outline-layers")


def partitioned(text: str) -> tuple[dict[str, float], str]:
    """Return the seconds of each stage from the text of a decided program to that of one rank, and that text."""
    watch = Stopwatch()
    module = spmdir.parse(text)
    watch.lap("parse")
    spmdir.run_passes(module, PARTITIONING, after=lambda name, _: watch.lap(name))
    watch.lap("verify")
    text = spmdir.print_ir(module)
    watch.lap("print")
    return watch.seconds, text


def rows(name: str, layers: int, repeats: int) -> list[Row]:
    """Return lines and seconds of one program, the median of `repeats` runs."""
    module = PROGRAMS[name](layers)
    target = LINES[name] if layers == 32 else None
    texts = {"undecided": spmdir.print_ir(outlined(module))}
    spmdir.run_passes(module, "propagate{memory=none}")
    inlined, functions = spmdir.print_ir(module), spmdir.print_ir(outlined(module))
    texts["decided"] = functions
    runs = [(partitioned(inlined)[0], partitioned(functions)) for _ in range(repeats)]
    without, with_ = _medians([run for run, _ in runs]), _medians([run[0] for _, run in runs])
    texts["of one rank"] = runs[-1][1][1]
    found = [
        Row(f"lines, {stage}", text.count("\n"), target, form="{:.0f}", detail=_longest(text))
        for stage, text in texts.items()
    ]
    found += [Row(stage, with_[stage] / without[stage], detail=_beside(with_, without, stage)) for stage in without]
    totals = [math.fsum(one.values()) for one in (with_, without)]
    return [*found, Row("in all", totals[0] / totals[1], 1.0, detail="{:.2f} s, {:.2f} s without".format(*totals))]


def _medians(runs: list[dict[str, float]]) -> dict[str, float]:
    return {stage: statistics.median(run[stage] for run in runs) for stage in runs[0]}


def _longest(text: str) -> str:
    return f"the longest has {max(map(len, text.splitlines()))} characters"


def _beside(with_: Mapping[str, float], without: Mapping[str, float], stage: str) -> str:
    return f"{with_[stage]:.3f} s, {without[stage]:.3f} s without"


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--layers", type=int, default=32, help="default 32")
    parser.add_argument("--programs", type=listed(str), default=list(PROGRAMS), help=",".join(PROGRAMS))
    parser.add_argument("--repeats", type=int, default=3, help="runs of each program; default 3")
    given = parser.parse_args()
    rows("forward", 2, 1)  # loads what is loaded once
    for name in given.programs:
        print_table(f"{name} of {given.layers} layers", rows(name, given.layers, given.repeats))


if __name__ == "__main__":
    main()
