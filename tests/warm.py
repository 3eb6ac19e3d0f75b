"""Importing this does all that makes a first call slow: torch is imported, and rules, rewrites and grammars are read.

Processes from which others are forked import it.
"""

from __future__ import annotations

import gc
from pathlib import Path

import torch

import spmdir.runtime.parallelize  # noqa: F401
from spmdir.dialects import ir
from spmdir.pipeline.pipeline import run_passes
from spmdir.simulator.simulate import simulate

PASSES = "print-rules,propagate,expand,insert-reshard,verify-spmd,lower-reshard,fuse-collectives,localize"
MLP = Path(__file__).parents[1] / "examples" / "mlp.mlir"


def _run() -> None:
    torch.set_num_threads(1)  # a process with threads cannot be forked
    module = run_passes(ir.parse(MLP.read_text()), PASSES)
    simulate(module, [torch.zeros(shape) for shape in ((16, 1024), (1024, 4096), (4096, 1024))])
    ir.print_ir(module)
    gc.freeze()  # collections of the processes to come neither look at all this nor copy its pages
    gc.set_threshold(200_000, 10, 10)


_run()
