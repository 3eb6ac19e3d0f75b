"""Compile the program of a rank with Inductor, in the order of its schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from spmdir.core.arguments import accepts, instance, keyed
from spmdir.core.errors import SpmdirError, UnsupportedError
from spmdir.lowering.process_groups import group_names, is_runnable
from spmdir.torch_interop.graphs import generate_code


@accepts(
    program=instance(fx.GraphModule, expected="an fx.GraphModule, as lower_to_fx gives"),
    options=keyed("a dict of Inductor's options by name").optional,
)
def compile_program(program: fx.GraphModule, options: Mapping[str, Any] | None = None) -> Callable[..., Any]:
    """Compile the program of a rank with `torch.compile`, without moving starts and waits of collectives.

    By default, Inductor may undo the schedule: it moves starts next to their waits, and waits to the end. Call the
    result without gradients, because the program contains its backward.

    Args:
        program: the program of one rank, lowered with a device mesh.
        options: options of Inductor, as for `torch.compile`. They override those of `KEPT`.

    Raises:
        SpmdirError: the program was lowered without a device mesh, or Inductor rejects an option.

    Example:
        >>> step = spmdir.compile_program(spmdir.lower_to_fx(module, device_mesh=device_mesh))
    """
    if not is_runnable(program):
        raise UnsupportedError(
            f"the program has groups named by mesh axes, {', '.join(group_names(program))}; expected groups "
            "of a device mesh: lower it with lower_to_fx(module, device_mesh=…)"
        )
    generate_code(program)
    try:
        # `program` itself handles errors in Python code that torch.compile cannot trace; their message would be lost.
        return torch.compile(program.forward, fullgraph=True, options={**KEPT, **(options or {})})
    except RuntimeError as error:
        reason = str(error).partition(", known options")[0]
        raise SpmdirError(
            f"{reason}; expected options of Inductor, listed by torch._inductor.list_options()"
        ) from error


def attach_compiled(program: fx.GraphModule, options: Mapping[str, Any]) -> None:
    """Compile a program, and store the result on it for `executable`. Copies of the program have no compiled form."""
    program.__dict__[_COMPILED] = compile_program(program, options)


def executable(program: fx.GraphModule) -> Callable[..., Any]:
    """Return the callable that runs a program: its compiled form after `attach_compiled`, else the program itself."""
    return program.__dict__.get(_COMPILED, program)


_COMPILED = "_compiled"
"""The attribute of a program with its compiled form."""

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
"""Options that stop Inductor from moving or bucketing collectives, and from changing the random numbers.

`fallback_random` keeps the random numbers of PyTorch's kernels. `reorder_for_locality` would put waits last, and
`reorder_for_peak_memory` would put starts next to their waits. `reorder_for_reducing_graph_partitions` would move ops
to get fewer CUDA graphs. The other options are off by default. They are set because a user may have turned them on
globally.
"""
