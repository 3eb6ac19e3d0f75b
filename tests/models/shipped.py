"""Random shardings of a program by the placements that come with spmdir, and its run on real ranks."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh

from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.tensor import TensorMeta
from spmdir.dialects import ir
from spmdir.dialects.values import sharding_of
from spmdir.lowering.emit import lower_to_fx
from spmdir.simulator.distribution import distribute, random_like

PARTIAL = ("P(sum)", "P(avg)", "P(max)", "Masked")
"""Partial placements of any values; norms are of values that are not negative, and quantised sums are inexact."""

Plan = tuple[dict[str, str], list[str | None]]
"""What `import_fx` takes for arguments and for outputs."""


def plan(names: Sequence[str], metas: Sequence[TensorMeta], expected: Sequence[Any], mesh: Mesh, seed: str) -> Plan:
    """Return shardings of half of the parameters and outputs, and of all other arguments.

    Args:
        names: of the arguments; those of parameters have dots.
        metas: shape and element type of each.
        expected: the outputs of the program.
    """
    choice = random.Random(seed)
    arguments = {
        name: sharding(choice, meta.shape, meta.dtype.name == "f64", mesh)
        for name, meta in zip(names, metas, strict=True)
        if "." not in name or choice.random() < 0.5
    }
    outputs = [
        sharding(choice, tuple(value.shape), value.dtype == torch.float64, mesh) if choice.random() < 0.5 else None
        for value in expected
    ]
    return arguments, outputs


def sharding(choice: random.Random, shape: tuple[int, ...], is_f64: bool, mesh: Mesh) -> str:
    """Return a sharding over axes of `mesh`, in any order, that a tensor of `shape` can have."""
    partial = choice.choice(PARTIAL) if is_f64 else "R"
    taken: set[int] = set()
    entries = []
    for axis in choice.sample(mesh.axis_names, len(mesh.axis_names)):
        kinds = ["R", "?", partial]
        if shape:
            dim = choice.randrange(len(shape))
            kinds += _shards(choice, dim, shape[dim], mesh.sizes[axis], dim in taken)
            taken.add(dim)
        entries.append(f"{axis}: {choice.choice(kinds)}")
    return ", ".join(entries)


def _shards(choice: random.Random, dim: int, size: int, count: int, is_nested: bool) -> Iterable[str]:
    yield from (f"S({dim})", f"S({dim})")
    yield from (
        f"ZigZag({dim})",
        f"Cyclic({dim}, {choice.choice((1, 2, 3))})",
        f"Strided({dim}, {choice.choice((2, 3))})",
    )
    if not is_nested:
        cuts = sorted(choice.randint(0, size) for _ in range(count - 1))
        ends = zip([0, *cuts], [*cuts, size], strict=True)
        yield f"Ragged({dim}, [{', '.join(str(end - start) for start, end in ends)}])"


def run(rank: int, text: str, inputs: list[torch.Tensor]) -> list[Any]:
    """Return what this rank has of each result of a program."""
    module = ir.parse(text)
    mesh, noise = ir.mesh(module), random_like(torch.Generator().manual_seed(0))
    device_mesh = init_device_mesh("cpu", tuple(mesh.sizes.values()), mesh_dim_names=tuple(mesh.axis_names))
    shardings = [sharding_of(argument) or Sharding() for argument in ir.main_function(module).args]
    held = [distribute(x, sharding, mesh, noise)[rank] for x, sharding in zip(inputs, shardings, strict=True)]
    return list(lower_to_fx(module, device_mesh=device_mesh)(*held))
