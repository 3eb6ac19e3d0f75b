"""Programs of one rank with functional collectives, as hand-written tensor parallel code gives them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from xdsl.dialects.builtin import ModuleOp

import spmdir
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import as_sharding

FUNCTIONAL = torch.ops._c10d_functional
MESH = Mesh({"dp": 2, "tp": 2})


def group(axes: str) -> str:
    return f"mesh:{axes}"


def all_reduce(x: Tensor, axes: str = "tp", op: str = "sum") -> Tensor:
    return FUNCTIONAL.wait_tensor(FUNCTIONAL.all_reduce(x, op, group(axes)))


def all_gather(x: Tensor, dim: int = 0, axes: str = "tp", count: int = 2) -> Tensor:
    """Gather dimension `dim` as torch.distributed does: along dimension 0, then split and concatenated."""
    gathered = FUNCTIONAL.wait_tensor(FUNCTIONAL.all_gather_into_tensor(x, count, group(axes)))
    return gathered if dim == 0 else torch.cat(gathered.chunk(count, 0), dim)


def reduce_scatter(x: Tensor, dim: int = 0, axes: str = "tp", count: int = 2, op: str = "sum") -> Tensor:
    x = x if dim == 0 else torch.cat(x.chunk(count, dim), 0)
    return FUNCTIONAL.wait_tensor(FUNCTIONAL.reduce_scatter_tensor(x, op, count, group(axes)))


def random_inputs(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Return random f64 tensors of the global shapes."""
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}


def trace(
    function: Callable[..., Any],
    inputs: Mapping[str, Tensor],
    shardings: Mapping[str, str],
    mesh: Mesh = MESH,
    rank: int = 0,
) -> fx.GraphModule:
    """Return the graph of `function` on the local tensors of a rank."""
    coordinate = mesh.coordinate(rank)
    local = []
    for name, value in inputs.items():
        sharding = as_sharding(shardings.get(name, ""), mesh)
        local.append(value.new_zeros(sharding.local_shape(value.shape, mesh, coordinate)))
    return make_fx(function, tracing_mode="fake")(*local)


def import_function(
    function: Callable[..., Any],
    inputs: Mapping[str, Tensor],
    shardings: Mapping[str, str],
    mesh: Mesh = MESH,
    rank: int = 0,
) -> ModuleOp:
    return import_graph(trace(function, inputs, shardings, mesh, rank), inputs, shardings, mesh, rank)


def import_graph(
    graph: fx.GraphModule, inputs: Mapping[str, Tensor], shardings: Mapping[str, str], mesh: Mesh = MESH, rank: int = 0
) -> ModuleOp:
    """Import a graph whose inputs are `inputs`, in order."""
    keys = {f"input:{list(inputs).index(name)}": sharding for name, sharding in shardings.items()}
    return spmdir.import_ranks(graph, mesh, keys, rank=rank)


def assert_equals_one_device(module: ModuleOp, function: Callable[..., Any], inputs: Mapping[str, Tensor]) -> None:
    """Require that all simulated ranks together compute what `function` computes on one device."""
    expected = function(*inputs.values())
    actual = spmdir.simulate(module, list(inputs.values()))
    for value, other in zip(actual, expected if isinstance(expected, tuple) else (expected,), strict=True):
        torch.testing.assert_close(value, other, rtol=1e-12, atol=1e-12)
