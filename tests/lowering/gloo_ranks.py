"""Real ranks: one process each, joined by gloo."""

from __future__ import annotations

import inspect
import multiprocessing
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from spmdir.core.mesh import Mesh
from spmdir.dialects.ir import parse
from spmdir.lowering.emit import lower_to_fx
from spmdir.simulator.distribution import distribute, random_like
from tests.lowering.collective_programs import Program

TESTS = Path(__file__).parents[1]

LIMIT = 600
"""Seconds after which ranks that have not ended are killed: long, for a busy machine; only a defect waits so long."""


def on_ranks(world_size: int, work: Callable[..., Any], folder: Path, *arguments: Any) -> list[Any]:
    """What `work(rank, *arguments)` returns on each rank of a gloo process group."""
    multiprocessing.set_forkserver_preload(["tests.warm", "tests.runtime.parallelize_cases"])
    context = mp.start_processes(
        _worker,
        (world_size, _importable(work), str(folder), arguments),
        nprocs=world_size,
        join=False,
        start_method="forkserver",  # imports torch and reads the rules once for all ranks of all tests
    )
    deadline = time.monotonic() + LIMIT
    try:
        while not context.join(timeout=1):
            assert time.monotonic() < deadline, f"ranks still run after {LIMIT} s"
    finally:
        for process in context.processes:
            if process.is_alive():
                process.kill()
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(world_size)]


def _importable(work: Callable[..., Any]) -> Callable[..., Any]:
    """The function under the name by which other processes import its file.

    pytest calls the file of a test `lowering.test_x`, other processes know it as `tests.lowering.test_x`.
    """
    file = Path(inspect.getfile(work))
    if not file.is_relative_to(TESTS):
        return work
    module = ".".join(file.relative_to(TESTS.parent).with_suffix("").parts)
    return getattr(import_module(module), work.__name__)


def _worker(rank: int, world_size: int, work: Callable[..., Any], folder: str, arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=LIMIT // 2),
    )
    torch.save(work(rank, *arguments), f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def run_programs(rank: int, mesh: Mesh, programs: Sequence[Program], inputs: Sequence[torch.Tensor]) -> list[Any]:
    """The local result of every program on its input."""
    shape, names = tuple(mesh.sizes.values()), tuple(mesh.axis_names)
    device_mesh = dist.device_mesh.init_device_mesh("cpu", shape, mesh_dim_names=names)
    outputs = []
    for program, x in zip(programs, inputs, strict=True):
        noise = random_like(torch.Generator().manual_seed(0))
        local = distribute(x, program.source, mesh, noise)[rank]
        outputs.append(lower_to_fx(program.parse(), device_mesh=device_mesh)(local)[0])
    return outputs


def run_texts(rank: int, mesh: Mesh, texts: Sequence[str], inputs: Path) -> list[tuple[torch.Tensor, ...]]:
    """What this rank returns of each program of `texts`; `inputs` is a file of what each rank holds of each argument.

    A file, since processes pass each other tensors by open files, of which there may be few.
    """
    shape, names = tuple(mesh.sizes.values()), tuple(mesh.axis_names)
    device_mesh = dist.device_mesh.init_device_mesh("cpu", shape, mesh_dim_names=names)
    held = [shards[rank] for shards in torch.load(inputs)]
    return [lower_to_fx(parse(text), device_mesh=device_mesh)(*held) for text in texts]
