"""Programs of the placements that come with spmdir, simulated and on real ranks, against one device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh

from spmdir.core.placement.sharding import Sharding
from spmdir.dialects import ir
from spmdir.dialects.values import sharding_of
from spmdir.lowering.emit import lower_to_fx
from spmdir.pipeline.pipeline import run_passes
from spmdir.simulator.distribution import collect, distribute, random_like
from spmdir.simulator.simulate import run_single, simulate
from spmdir.tools.spmd_run import random_inputs
from tests.conftest import GOLDEN
from tests.lowering.gloo_ranks import on_ranks

FILES = sorted(
    path for path in (GOLDEN / "placements").glob("*.mlir") if "// RUN: spmd-opt %s --propagate" in path.read_text()
)
INEXACT = {"quantised_sums_are_scattered_as_bytes": 2 * 4 * 1.001 / 254}
"""Program → how far it may be off: two ranks, each of which holds a few times the largest value."""


def lowered(text: str) -> Any:
    return run_passes(ir.parse(text), "propagate,insert-reshard,lower-reshard,localize")


def values(text: str) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the inputs of a program in double precision, and what one device makes of them."""
    module = ir.parse(text)
    inputs, state = random_inputs(module, 0, "f64")
    return list(inputs.values()), run_single(module, inputs, state)


def close(name: str, found: torch.Tensor, right: torch.Tensor) -> None:
    tolerance = INEXACT.get(name, 1e-12)
    torch.testing.assert_close(found, right, rtol=tolerance, atol=tolerance * max(1.0, float(right.abs().max())))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_program_computes_what_one_device_does(path: Path) -> None:
    inputs, expected = values(path.read_text())
    found = simulate(ir.parse(path.read_text()), inputs)
    for one, right in zip(found, expected, strict=True):
        close(path.stem, one, right)


def run_files(rank: int, texts: list[str]) -> list[tuple[torch.Tensor, ...]]:
    """Return what this rank has of the results of every program."""
    outputs = []
    for text in texts:
        module, (inputs, _) = lowered(text), values(text)
        mesh, function = ir.mesh(module), ir.main_function(module)
        device_mesh = init_device_mesh("cpu", tuple(mesh.sizes.values()), mesh_dim_names=tuple(mesh.axis_names))
        shardings = [sharding_of(argument) or Sharding() for argument in function.args]
        noise = random_like(torch.Generator().manual_seed(0))
        held = [distribute(x, sharding, mesh, noise)[rank] for x, sharding in zip(inputs, shardings, strict=True)]
        outputs.append(lower_to_fx(module, device_mesh=device_mesh)(*held))
    return outputs


@pytest.mark.gloo
@pytest.mark.parametrize("count", [2, 3, 4])
def test_real_ranks_compute_what_one_device_does(count: int, tmp_path: Path) -> None:
    chosen = [path for path in FILES if ir.mesh(ir.parse(path.read_text())).world_size == count]
    assert chosen
    outputs = on_ranks(count, run_files, tmp_path, [path.read_text() for path in chosen])
    for index, path in enumerate(chosen):
        module, (_, expected) = lowered(path.read_text()), values(path.read_text())
        results = ir.terminator(ir.main_function(module)).operands
        for at, (result, right) in enumerate(zip(results, expected, strict=True)):
            shards, sharding = [rank[index][at] for rank in outputs], sharding_of(result) or Sharding()
            close(path.stem, collect(shards, sharding, ir.mesh(module), right.shape), right)
