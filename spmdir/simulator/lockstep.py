"""All ranks of a program in one process: each graph runs up to its next collective, then all do it at once.

Nothing is sent and nothing can hang: ranks that would issue different collectives are an error at that place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from spmdir.core.mesh import Mesh
from spmdir.core.progress import say
from spmdir.simulator.collective_steps import Steps, executed
from spmdir.simulator.rank_run import InFlight, Issued, Random, run

Tensor = torch.Tensor


def run_lockstep(
    programs: Sequence[fx.GraphModule],
    inputs: Sequence[Sequence[Tensor]],
    mesh: Mesh,
    seed: int = 0,
    others: Steps | None = None,
) -> list[Any]:
    """What each rank returns; `programs` and `inputs` are by rank, `seed` is that of random ops.

    Args:
        others: what is done together beside the collectives.

    Raises:
        DivergenceError: ranks issue different collectives, or a result is used before its wait.
        SpmdirError: an op fails on a rank.
    """
    steps = executed(others)
    runs = [
        run(program, given, rank, Random(seed), steps)
        for rank, (program, given) in enumerate(zip(programs, inputs, strict=True))
    ]
    outputs: dict[int, Any] = {}
    while True:
        flying: list[InFlight] = []
        for rank, one in enumerate(runs):
            say("running rank {} of {}", rank, len(runs))
            try:
                flying.append(next(one))
            except StopIteration as end:
                outputs[rank] = end.value
        if len(outputs) == len(runs):
            return [outputs[rank] for rank in range(len(runs))]
        if outputs:
            raise flying[0].issued.error(f"is never reached by rank {min(outputs)}, which has ended")
        for started, result in zip(flying, _exchange([one.issued for one in flying], mesh, steps), strict=True):
            started.result = result


def run_alone(program: fx.GraphModule, inputs: Sequence[Tensor], seed: int = 0) -> Any:
    """What a program without collectives returns.

    Raises:
        SpmdirError: an op fails.
    """
    return run_lockstep([program], [inputs], Mesh({}), seed)[0]


def _exchange(issued: Sequence[Issued], mesh: Mesh, steps: Steps) -> list[Tensor]:
    """The result of one collective on every rank, group by group."""
    first = issued[0]
    for rank, other in enumerate(issued):
        if (other.node.target, other.axes) != (first.node.target, first.axes):
            raise first.error(f"is what rank 0 reaches while rank {rank} reaches {other} over {list(other.axes)}")
    first.check(mesh)
    results: list[Tensor | None] = [None] * len(issued)
    for rank in range(len(issued)):
        if results[rank] is None:
            members = sorted(mesh.group(rank, first.axes))
            calls = [issued[member] for member in members]
            for member, result in zip(members, steps[first.node.target](calls), strict=True):
                results[member] = result
    return results  # type: ignore  # every rank is in a group
