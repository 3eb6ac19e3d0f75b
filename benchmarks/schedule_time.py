"""Seconds that the passes of a schedule take, by the number of layers: `python -m benchmarks.schedule_time`.

The program is that of one rank for a training step of a Llama, 4096 wide, without limit of memory.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

from xdsl.dialects.builtin import ModuleOp

from benchmarks.measure import Row, Stopwatch, listed, options, print_table
from benchmarks.schedule import MESH, Case, decided
from spmdir.dialects import ir
from spmdir.pipeline.pipeline import run_passes

PASSES = ("fit-memory", "bucket", "split-async", "reorder")

REPEATS = 3


def seconds(case: Case) -> tuple[dict[str, float], int]:
    """Return the time of each pass of one pipeline, which is verified at its end, and how many ops the program has."""
    module = decided(case)
    runs = [_timed(module.clone()) for _ in range(REPEATS)]
    found = {name: statistics.median(run[name] for run in runs) for name in PASSES}
    return found, sum(1 for _ in ir.main_function(module).body.block.ops)


def _timed(module: ModuleOp) -> dict[str, float]:
    watch = Stopwatch()
    run_passes(module, ",".join(PASSES), after=lambda name, _: watch.lap(name))
    return watch.seconds


def rows(found: Sequence[tuple[int, dict[str, float], int]]) -> list[Row]:
    """Return the times of programs of some layers each, and how the last ones grow beside the number of ops."""
    shown = []
    for layers, took, ops in found:
        each = ", ".join(f"{name} {seconds:.2f}" for name, seconds in took.items())
        target = 1.0 if layers == 32 else None
        shown.append(Row(f"L={layers}, {ops} ops", math.fsum(took.values()), target, form="{:.2f} s", detail=each))
    for (few, less, some), (many, more, all_) in itertools.pairwise(found):
        ratio = math.fsum(more.values()) / math.fsum(less.values()) / (all_ / some)
        shown.append(Row(f"L={many} over L={few}, by ops", ratio, 1.3))
    return shown


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--layers", type=listed(int), default=[2, 8, 32], help="default 2,8,32")
    parser.add_argument("--plans", type=listed(str), default=["tp_fsdp"], help="default tp_fsdp")
    given = parser.parse_args()
    run_passes(decided(Case(1, "tp_fsdp", "bfloat16")).clone(), "schedule")  # loads what is loaded once
    for plan in given.plans:
        found = [(layers, *seconds(Case(layers, plan, "bfloat16"))) for layers in given.layers]
        print_table(f"{plan} on {MESH}", rows(found))


if __name__ == "__main__":
    main()
