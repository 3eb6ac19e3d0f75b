"""What fit-memory does again to fit training steps into the memory of a rank, and what that takes.

One step is of a Llama of 70B parameters on 512 ranks, whose memory is short. The other has its parameters sharded over
all ranks, as ZeRO-3 has them: they are gathered again for the backward part, so that few layers' are whole at once.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs

from benchmarks.measure import Row, cold, options, print_table

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

PIPELINE = "propagate{memory=none},expand,insert-reshard,lower-reshard,fuse-collectives,localize"
LAYER = re.compile(r"%?l[0-9]+\.")
"""How the names of the weights of layers begin."""


def local_step(layers: int, batch: int, plan: str, axes: Mapping[str, int]) -> ModuleOp:
    """Return the program of a rank for a training step of a wide Llama, where node also divides what data does, and
    nothing is divided over an axis that is not in `axes`."""
    import torch

    import spmdir
    from benchmarks.programs import Config, shardings, trace

    def on_mesh(text: str) -> str:
        text = re.sub(r"data: (\S+?)(,|$)", r"node: \1, data: \1\2", text)
        return ", ".join(part for part in text.split(", ") if part.partition(":")[0] in axes)

    config = Config(layers, 8192, 64, 8, 28672, seq=4096, batch=batch, vocab=128256, attention="sdpa")
    given, residual = shardings(config, plan)
    graph, *_ = trace(config, on_mesh(residual or ""), torch.bfloat16)
    module = spmdir.import_fx(graph, spmdir.Mesh(dict(axes)), {name: on_mesh(text) for name, text in given.items()})
    return spmdir.run_passes(module, PIPELINE)


def scheduled_seconds(module: ModuleOp, passes: str) -> float:
    """Return the modelled seconds of a step as `passes` make it; the module stays as it is."""
    import spmdir

    return spmdir.report.schedule_report(spmdir.run_passes(module.clone(), passes)).seconds


def fitted(layers: int, batch: int, memory: int) -> tuple[float, ...]:
    """Return the peak of a step on 512 ranks before and after fit-memory, in bytes, the seconds of the step as it is
    scheduled without a budget, with it, and with it but nothing on the host, the bytes that are there, and the CPU
    seconds of the pipeline and of the pass."""
    import spmdir

    start = time.process_time()
    module = local_step(layers, batch, "tp_fsdp", {"node": 8, "data": 8, "model": 8})
    compiled = time.process_time() - start
    before, step = spmdir.report.memory_report(module).peak_bytes, scheduled_seconds(module, "schedule")
    held = scheduled_seconds(module, f"schedule{{memory={memory} offload=false}}")
    report = spmdir.report.schedule_report(spmdir.run_passes(module.clone(), f"schedule{{memory={memory}}}"))
    start = time.process_time()
    spmdir.run_passes(module, f"fit-memory{{budget={memory} remarks=true}}")
    taken = time.process_time() - start
    return before, report.peak_bytes, step, report.seconds, held, report.host_bytes, compiled, taken


def gathered_again(layers: int, batch: int, axes: Mapping[str, int]) -> tuple[float, float, float, float]:
    """Return the gathered weights of a layer and the most of all layers that are live at once, in bytes, where as many
    are gathered again as leaves memory for those of one layer, and the seconds of a step without that and with it, both
    scheduled."""
    from spmdir.analysis.scheduling.rank_program import rank_program
    from spmdir.dialects import ir
    from spmdir.pipeline.pipeline import Pipeline, run_passes
    from spmdir.reshard.topology import DEFAULT
    from spmdir.schedule.memory import peak_bytes
    from spmdir.schedule.memory_fitting import fit
    from spmdir.schedule.program import Program
    from spmdir.schedule.repeated_tasks import insert_repeats
    from spmdir.transforms.insert_repeats import repeat

    def of_weights(program: Program) -> Program:
        counts = [buffer.kind == "gathered weights" and LAYER.match(buffer.name) for buffer in program.buffers]
        sizes = [buffer.bytes if counted else 0.0 for buffer, counted in zip(program.buffers, counts, strict=True)]
        buffers = tuple(attrs.evolve(one, bytes=size) for one, size in zip(program.buffers, sizes, strict=True))
        return attrs.evolve(program, buffers=buffers)

    def program_of(module: ModuleOp):
        return rank_program(ir.main_function(module), ir.mesh(module), pipeline.rules, DEFAULT)

    module, pipeline = local_step(layers, batch, "fsdp", axes), Pipeline()
    with pipeline.rules:
        program, units = program_of(module)
        alone = of_weights(program)
        total = sum(buffer.bytes for buffer in alone.buffers)
        budget = math.ceil(peak_bytes(program) - (1 - 1 / layers) * total)
        repeatable = [any(alone.buffers[buffer].bytes for buffer in task.allocates) for task in program.tasks]
        step = scheduled_seconds(module, "schedule")
        for added in fit(program, budget, repeatable).rounds:
            units, program = repeat(ir.main_function(module), program, units, added), insert_repeats(program, added)
        run_passes(module, f"bucket{{memory={budget}}},split-async,reorder{{memory={budget}}}")
        longer = scheduled_seconds(module, "")
        return total / layers, peak_bytes(of_weights(program_of(module)[0])), step, longer


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--layers", type=int, default=80, help="of the Llama of 70B parameters")
    parser.add_argument("--batch", type=int, default=256, help="its sequences of 4096 tokens on all ranks")
    parser.add_argument("--memory", type=int, default=80, help="of a rank, in GiB")
    chosen = parser.parse_args()
    memory = chosen.memory * 2**30
    before, after, step, longer, held, on_host, compiled, taken = cold(fitted, chosen.layers, chosen.batch, memory)
    rows = [
        Row("peak, GB", after / 1e9, memory / 1e9, detail=f"{before / 1e9:.1f} GB without"),
        Row("step, % longer", 100 * (longer / step - 1), 2.0, detail=f"of {step:.3f} s, both scheduled"),
        Row("without copies to the host, % longer", 100 * (held / step - 1), detail=f"{on_host / 1e9:.1f} GB with"),
        Row("fit-memory, CPU s", taken, detail=f"{compiled:.0f} s from the trace to localize"),
    ]
    print_table(f"Llama 70B, {chosen.layers} layers, mesh 8×8×8, tensor parallelism and sharded parameters", rows)
    layers = 8
    for axes, batch in (({"data": 8}, 32), ({"data": 8, "model": 8}, 64)):
        layer, most, step, longer = cold(gathered_again, layers, batch, axes)
        rows = [
            Row("gathered weights, layers", most / layer, 2.0, detail=f"of {layer / 1e9:.2f} GB"),
            Row("step, % longer", 100 * (longer / step - 1), 2.0, detail=f"of {step:.3f} s, both scheduled"),
        ]
        ranks, tokens = math.prod(axes.values()), 4096 * batch // math.prod(axes.values())
        print_table(
            f"the same width, {layers} layers, parameters sharded over {ranks} ranks, {tokens} tokens each", rows
        )


if __name__ == "__main__":
    main()
