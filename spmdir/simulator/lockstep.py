"""Simulate all ranks in one process: each graph runs to its next collective, then the collective runs for all ranks.

Nothing is sent, so nothing can hang. If ranks issue different collectives, that is a located error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from spmdir.core.mesh import Mesh
from spmdir.core.progress import say
from spmdir.simulator.collective_steps import Steps, all_steps
from spmdir.simulator.rank_run import InFlight, Issued, Random, run

Tensor = torch.Tensor


def run_lockstep(
    programs: Sequence[fx.GraphModule],
    inputs: Sequence[Sequence[Tensor]],
    mesh: Mesh,
    seed: int = 0,
    extra_steps: Steps | None = None,
) -> list[Any]:
    """Return the result of each rank.

    Args:
        programs: [rank], its graph.
        inputs: [rank], its local tensors.
        mesh: the mesh of the ranks.
        seed: the seed of random ops.
        extra_steps: further ops that all ranks of a group execute together.

    Raises:
        DivergenceError: ranks issue different collectives, or a result is used before its wait.
        SpmdirError: an op fails on a rank.
    """
    steps = all_steps(extra_steps)
    runs = [
        run(program, rank_inputs, rank, Random(seed), steps)
        for rank, (program, rank_inputs) in enumerate(zip(programs, inputs, strict=True))
    ]
    outputs: dict[int, Any] = {}
    while True:
        in_flight: list[InFlight] = []
        for rank, rank_run in enumerate(runs):
            say("running rank {} of {}", rank, len(runs))
            try:
                in_flight.append(next(rank_run))
            except StopIteration as end:
                outputs[rank] = end.value
        if len(outputs) == len(runs):
            return [outputs[rank] for rank in range(len(runs))]
        if outputs:
            raise in_flight[0].issued.error(f"is never reached by rank {min(outputs)}, which has ended; {_SAME_ORDER}")
        results = _run_collective([started.issued for started in in_flight], mesh, steps)
        for started, result in zip(in_flight, results, strict=True):
            started.result = result


_SAME_ORDER = "expected the same collectives in the same order on all ranks"


def run_alone(program: fx.GraphModule, inputs: Sequence[Tensor], seed: int = 0) -> Any:
    """Return the result of a program without collectives.

    Raises:
        SpmdirError: an op fails.
    """
    return run_lockstep([program], [inputs], Mesh({}), seed)[0]


def _run_collective(issued: Sequence[Issued], mesh: Mesh, steps: Steps) -> list[Tensor]:
    """Run one collective in all groups, and return its result on each rank.

    Args:
        issued: [rank], the collective that the rank has issued.

    Raises:
        DivergenceError: ranks issue different collectives, or the mesh lacks an axis.
    """
    reference = issued[0]
    for rank, collective in enumerate(issued):
        if (collective.node.target, collective.axes) != (reference.node.target, reference.axes):
            raise reference.error(
                f"is issued by rank 0 while rank {rank} issues {collective} over {list(collective.axes)}; {_SAME_ORDER}"
            )
    reference.check(mesh)
    results: list[Tensor | None] = [None] * len(issued)
    for rank in range(len(issued)):
        if results[rank] is None:
            members = sorted(mesh.group(rank, reference.axes))
            calls = [issued[member] for member in members]
            for member, result in zip(members, steps[reference.node.target](calls), strict=True):
                results[member] = result
    return results  # type: ignore  # every rank is in a group
