"""Scheduled steps of Llamas where propagate counts what a schedule will hide: `python -m benchmarks.overlap_decision`.

Each program is decided twice, with `overlap=schedule` and without, and scheduled; steps are simulated on h100x8. The
plan `open` gives a sharding to the batch alone.
"""

from __future__ import annotations

import time
import warnings

import attrs
import torch

import spmdir
from benchmarks.measure import Row, listed, options, print_table
from benchmarks.programs import LLAMA_7B_WIDE, shardings, trace
from benchmarks.schedule import MESH, Case, program_of
from spmdir.pipeline.pipeline import PARTITIONING
from spmdir.schedule.simulate import Execution, simulate

PLANS = ("tp_fsdp", "nocons", "sp", "open")

BATCH = "data: S(0)"


def decided(case: Case, overlap: str) -> tuple[Execution, float]:
    """Return a program as it runs scheduled, and the CPU seconds in which it is decided."""
    config = attrs.evolve(LLAMA_7B_WIDE, layers=case.layers)
    batch = {"tokens": BATCH, "labels": BATCH}
    given, residual = (batch, None) if case.plan == "open" else shardings(config, case.plan)
    graph, *_ = trace(config, residual, getattr(torch, case.dtype))
    module = spmdir.import_fx(graph, MESH, given)
    start = time.process_time()
    spmdir.run_passes(module, f"propagate{{memory=none overlap={overlap}}}")
    took = time.process_time() - start
    return simulate(program_of(spmdir.run_passes(module, f"{PARTITIONING},schedule"))), took


def rows(case: Case) -> list[Row]:
    """Return the figures of one program."""
    plain, plain_took = decided(case, "none")
    hidden, took = decided(case, "schedule")
    return [
        Row("step over that without", hidden.seconds / plain.seconds, 1.0, form="{:.4f}"),
        Row("step, ms", 1e3 * hidden.seconds, detail=f"{1e3 * plain.seconds:.2f} without"),
        Row("exposed, ms", 1e3 * hidden.exposed_seconds, detail=f"{1e3 * plain.exposed_seconds:.2f} without"),
        Row("peak, GiB", hidden.peak_bytes / 2**30, detail=f"{plain.peak_bytes / 2**30:.2f} without"),
        Row("deciding, CPU s", took, detail=f"{plain_took:.2f} without"),
    ]


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--layers", type=listed(int), default=[2], help="default 2")
    parser.add_argument("--plans", type=listed(str), default=list(PLANS), help=f"default {','.join(PLANS)}")
    parser.add_argument("--dtypes", type=listed(str), default=["bfloat16"], help="default bfloat16")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    for dtype in given.dtypes:
        for layers in given.layers:
            for plan in given.plans:
                case = Case(layers, plan, dtype)
                print_table(str(case), rows(case))


if __name__ == "__main__":
    main()
