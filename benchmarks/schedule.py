"""The modelled step of Llamas on h100x8, scheduled by spmdir, by PyTorch and by hand: `python -m benchmarks.schedule`.

All start from one program of a rank, with its collectives where the passes put them, and all are simulated by the
prices of spmdir: for PyTorch's and the manual schedule the program is a fx graph, which is read back. PyTorch's is
`schedule_overlap_bucketing` with buckets, else by default, and in variants. The manual one has a communicator of its
own for gathers, or shares one, whichever is faster.
"""

from __future__ import annotations

import functools
import math
import statistics
import warnings
from collections.abc import Iterator, Sequence

import attrs
import torch
import torch.distributed as dist
from xdsl.dialects.builtin import ModuleOp

import spmdir
from benchmarks import manual_schedule
from benchmarks.measure import Row, listed, options, print_table
from benchmarks.programs import LLAMA_7B_WIDE, parameter_shapes, shardings, trace
from benchmarks.rank_graph import RankGraph, connect, rank_graph, read
from benchmarks.torch_schedules import VARIANTS, compared, schedule_overlap_bucketing
from spmdir.analysis.scheduling.rank_program import rank_program
from spmdir.dialects import ir
from spmdir.pipeline.pipeline import as_pipeline
from spmdir.reshard.topology import H100X8
from spmdir.schedule.program import Program
from spmdir.schedule.simulate import Execution, simulate

MESH = spmdir.Mesh({"data": 2, "model": 4})

PLANS = ("tp_fsdp", "fsdp", "tp", "sp")

PIPELINE = "propagate{memory=none},expand,insert-reshard,lower-reshard,fuse-collectives,localize"

TOPOLOGY = H100X8


@attrs.frozen
class Case:
    """A program: a number of layers and a plan of `benchmarks.programs`, and its element type."""

    layers: int
    plan: str
    dtype: str

    def __str__(self) -> str:
        return f"L={self.layers} {self.plan} {self.dtype}"


@functools.cache
def decided(case: Case) -> ModuleOp:
    """Return the program of a rank, not scheduled."""
    config = attrs.evolve(LLAMA_7B_WIDE, layers=case.layers)
    given, residual = shardings(config, case.plan)
    graph, *_ = trace(config, residual, getattr(torch, case.dtype))
    module = spmdir.import_fx(graph, MESH, given)
    return spmdir.run_passes(module, PIPELINE)


def program_of(module: ModuleOp) -> Program:
    """Return the program of a rank as a schedule sees it."""
    return rank_program(ir.main_function(module), ir.mesh(module), as_pipeline(None).rules, TOPOLOGY)[0]


def as_graph(module: ModuleOp) -> RankGraph:
    """Return the fx graph of a rank, not scheduled, with each collective started and waited for."""
    module = spmdir.run_passes(module.clone(), "split-async")
    program, units = rank_program(ir.main_function(module), ir.mesh(module), as_pipeline(None).rules, TOPOLOGY)
    if dist.is_initialized():
        dist.destroy_process_group()
    return rank_graph(module, connect(MESH), program, units)


def schedules(case: Case) -> Iterator[tuple[str, Execution]]:
    """Yield who scheduled a program, and how it runs then."""
    module = decided(case)
    unscheduled = simulate(program_of(module))
    same = simulate(read(as_graph(module), TOPOLOGY))
    assert math.isclose(same.seconds, unscheduled.seconds) and math.isclose(same.peak_bytes, unscheduled.peak_bytes)
    yield "unscheduled", unscheduled
    yield "spmdir", simulate(program_of(spmdir.run_passes(module.clone(), "schedule")))
    yield "manual", by_hand(as_graph(module), case)
    for variant, given in VARIANTS.items():
        graph = as_graph(module)
        schedule_overlap_bucketing(graph, **given)
        yield variant, simulate(read(graph, TOPOLOGY))


def by_hand(found: RankGraph, case: Case) -> Execution:
    """Return the program as it runs in the manual schedule."""

    def block(name: str) -> str:
        return name.replace(".", "_").partition("_")[0]

    results = ["loss", *parameter_shapes(attrs.evolve(LLAMA_7B_WIDE, layers=case.layers))]
    gathered, reduced = manual_schedule.gathers(found, block), manual_schedule.reductions(found, results, block)
    starts = {node.name: node for node in found.operands}

    def packing(program: Program, bucket: Sequence[int]) -> tuple[float, float]:
        return found.copies([starts[program.tasks[at].name] for at in bucket], TOPOLOGY)

    program = manual_schedule.scheduled(read(found, TOPOLOGY), gathered, reduced, packing)
    apart = [
        attrs.evolve(task, transfer=attrs.evolve(task.transfer, stream=f"{task.transfer.stream} gathers"))
        if task.transfer is not None and task.name in gathered
        else task
        for task in program.tasks
    ]
    return min(simulate(program), simulate(attrs.evolve(program, tasks=tuple(apart))), key=lambda run: run.seconds)


def rows(case: Case) -> list[Row]:
    """Return the figures of one program."""
    found = dict(schedules(case))
    over = found["spmdir"].seconds / found["manual"].seconds
    return [*compared(found), Row("step over manual", over, 1.02)]


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--layers", type=listed(int), default=[4, 8], help="default 4,8")
    parser.add_argument("--plans", type=listed(str), default=list(PLANS), help=f"default {','.join(PLANS)}")
    parser.add_argument("--dtypes", type=listed(str), default=["bfloat16", "float32"], help="default bfloat16,float32")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    for dtype in given.dtypes:
        over: list[float] = []
        for case in (Case(layers, plan, dtype) for layers in given.layers for plan in given.plans):
            found = rows(case)
            over.append(found[0].value)
            print_table(str(case), found)
        print_table(f"all of {dtype}", [Row("mean step over PyTorch", statistics.mean(over), 0.95)])


if __name__ == "__main__":
    main()
