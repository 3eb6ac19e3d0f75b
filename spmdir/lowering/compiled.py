"""A rank's program compiled by Inductor, which keeps the order of its collectives and of what goes on meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from spmdir.core.arguments import accepts, instance, keyed
from spmdir.core.errors import SpmdirError, UnsupportedError
from spmdir.lowering.process_groups import group_names, is_runnable


@accepts(
    program=instance(fx.GraphModule, expected="an fx.GraphModule, as lower_to_fx gives"),
    options=keyed("a dict of Inductor's options by name").optional,
)
def compile_program(program: fx.GraphModule, options: Mapping[str, Any] | None = None) -> Callable[..., Any]:
    """Return a rank's program compiled by `torch.compile`, starts and waits of collectives where the program has them.

    By default Inductor moves a start to its wait where that takes less memory, and waits to the end, so that nothing is
    left of a schedule. Call it without gradients: a program has its backward.

    Args:
        program: of one rank, lowered with a device mesh.
        options: Inductor's, as `torch.compile` takes them; those of `KEPT` are set unless they say otherwise.

    Raises:
        SpmdirError: the groups of the program are named by mesh axes, in which nothing can run; or Inductor has no such
            option, or none of such a value.

    Example:
        >>> step = spmdir.compile_program(spmdir.lower_to_fx(module, device_mesh=device_mesh))
    """
    if not is_runnable(program):
        raise UnsupportedError(
            f"the program runs in groups named by mesh axes, {', '.join(group_names(program))}; "
            "expected one that is lowered with a device mesh: lower_to_fx(module, device_mesh=…)"
        )
    try:
        return torch.compile(program, fullgraph=True, options={**KEPT, **(options or {})})
    except RuntimeError as error:
        reason = str(error).partition(", known options")[0]
        raise SpmdirError(f"{reason}; expected options of Inductor, as torch._inductor.list_options() lists") from error


def run_compiled(program: fx.GraphModule, options: Mapping[str, Any]) -> None:
    """Let `executable` give what `compile_program` makes of a program, noted on it in memory; copies have no note."""
    program.__dict__[_COMPILED] = compile_program(program, options)


def executable(program: fx.GraphModule) -> Callable[..., Any]:
    """Return what runs a program: itself, unless `run_compiled` has said otherwise."""
    return program.__dict__.get(_COMPILED, program)


_COMPILED = "_compiled"

KEPT = {
    "fallback_random": True,
    "reorder_for_locality": False,
    "reorder_for_peak_memory": False,
    "reorder_for_compute_comm_overlap": False,
    "bucket_all_gathers_fx": "none",
    "bucket_reduce_scatters_fx": "none",
    "bucket_all_reduces_fx": "none",
    "aten_distributed_optimizations.enable_overlap_scheduling": False,
    "_micro_pipeline_tp": False,
    "triton.reorder_for_reducing_graph_partitions": False,
}
"""Inductor's options that move collectives, join them or draw other random numbers, as they are where it does neither.

`reorder_for_locality` puts waits last, `reorder_for_peak_memory` starts beside their waits; the others are off unless a
process has set them.
"""
