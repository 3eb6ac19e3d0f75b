"""What each rank does in `test_parallel_sizes`."""

from __future__ import annotations

from typing import Any

import torch
from torch.export import Dim

import spmdir
from spmdir.mesh import Mesh
from tests.lowering.parallel_cases import SHARDINGS, error_of, loss_of, transformer

PAIRS = [(4, 6), (3, 7), (5, 2)]
"""Batch and sequence of each call: as traced, and such that nothing divides."""


def inputs(batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and targets; equal on all ranks."""
    generator = torch.Generator().manual_seed(batch * 100 + length)
    return torch.randint(24, (batch, length), generator=generator), torch.randint(
        24, (batch, length), generator=generator
    )


def run(rank: int, mesh: Mesh) -> dict[str, Any]:
    """A forward and training steps, each compiled once and called at all sizes."""
    model, ids, target = transformer()
    open_sizes = {0: Dim("batch", max=16), 1: Dim("length", max=16)}
    expected = [model(inputs(*pair)[0]) for pair in PAIRS]
    plan: dict[str, object] = {**SHARDINGS, "ids": "dp: S(0)"}
    program = spmdir.parallelize(model, (ids,), mesh, plan, dynamic_shapes=(open_sizes,))
    outputs = [program(inputs(*pair)[0]) for pair in PAIRS]
    again = program(inputs(*PAIRS[0])[0])
    refused = error_of(lambda: program(torch.zeros(17, 3, dtype=torch.int64)))
    step, state = spmdir.training_step(model, loss_of, "sgd", lr=0.1)
    trained = spmdir.parallelize(step, (ids, target), mesh, SHARDINGS, state=state, dynamic_shapes=(open_sizes,) * 2)
    losses, wanted = [], []
    for pair in PAIRS:
        losses.append(trained(*inputs(*pair)))
        loss, state = step(state, *inputs(*pair))
        wanted.append(loss)
    return {
        "outputs": [*outputs, again],
        "expected": [*expected, expected[0]],
        "losses": losses,
        "wanted": wanted,
        "state": trained.gather_state(),
        "wanted state": state,
        "refused": refused,
        "different": error_of(lambda: trained(inputs(3, 4)[0], inputs(3, 5)[1])),
        "local": error_of(
            lambda: spmdir.parallelize(model, (ids,), mesh, local_inputs=True, dynamic_shapes=(open_sizes,))
        ),
    }
