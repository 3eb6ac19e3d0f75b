"""Programs that index, cut, pad and order tensors along a sharded dimension, from import to simulated ranks."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import spmdir
from spmdir.core.mesh import Mesh


def f(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def i(low: int, high: int, *shape: int) -> Tensor:
    return torch.randint(low, high, shape)


class Program(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        self.function = function

    def forward(self, *tensors: Tensor) -> Any:
        return self.function(*tensors)


LONG = 40
"""So many rows that moving the few that are wanted is cheaper than gathering all."""

READS = {
    "select": (lambda x: x.select(0, -2) * 2, (f(LONG, 2),)),
    "slice": (lambda x: x[3:9:2] + 1, (f(LONG, 2),)),
    "slice of truth values": (lambda x: x[-3:], (f(LONG, 2) > 0,)),
    "narrow": (lambda x: x.narrow(0, 30, 3), (f(LONG, 2),)),
    "index": (lambda x, k: x[k], (f(LONG, 2), i(-LONG, LONG, 4))),
    "two indices": (lambda x, j, k: x[j, :, k], (f(LONG, 2, 3), i(-LONG, LONG, 4), i(0, 3, 4))),
    "index_select": (lambda x, k: x.index_select(0, k), (f(LONG, 2), i(0, LONG, 4))),
    "gather": (lambda x, k: x.gather(0, k), (f(LONG, 2), i(0, LONG, 3, 2))),
    "argmax": (lambda x: x.argmax(0), (f(1000 * LONG, 4),)),
    "largest": (lambda x: x.max(0), (f(1000 * LONG, 4),)),
    "place in an order": (torch.searchsorted, (f(LONG).sort().values, f(3))),
}
WRITES = {
    "index_put": (lambda x, k, v: x.index_put((k,), v), (f(LONG, 2), torch.tensor([39, -7, 0]), f(3, 2))),
    "index_put that adds": (
        lambda x, k, v: x.index_put((k,), v, accumulate=True),
        (f(LONG, 2), i(-LONG, LONG, 60), f(60, 2)),
    ),
    "scatter": (lambda x, k, v: x.scatter(0, k, v), (f(LONG, 2), torch.tensor([[3, 39], [17, 0]]), f(2, 2))),
    "scatter_add": (lambda x, k, v: x.scatter_add(0, k, v), (f(LONG, 2), i(0, LONG, 60, 2), f(60, 2))),
    "scatter_reduce": (
        lambda x, k, v: x.scatter_reduce(0, k, v, "amax", include_self=False),
        (f(LONG, 2), i(0, LONG, 60, 2), f(60, 2)),
    ),
    "index_add": (lambda x, k, v: x.index_add(0, k, v), (f(LONG, 2), i(0, LONG, 60), f(60, 2))),
    "index_copy": (lambda x, k, v: x.index_copy(0, k, v), (f(LONG, 2), torch.tensor([39, 7]), f(2, 2))),
    "index_fill": (lambda x, k: x.index_fill(0, k, 2.0), (f(LONG, 2), i(0, LONG, 4))),
    "select_scatter": (lambda x, v: x.select_scatter(v, 0, -3), (f(LONG, 2), f(2))),
    "slice_scatter": (lambda x, v: x.slice_scatter(v, 0, 9, 23), (f(LONG, 2), f(14, 2))),
}
PIPELINE = spmdir.Pipeline(topology="flat")
"""Latencies would make gathering all of tensors as small as these the cheapest."""

MESHES = ({"x": 3}, {"x": 2, "y": 2})


def outcome(name: str, axes: dict[str, int], out_shardings: list[str] | None = None) -> Any:
    """The collectives of a program whose first tensor has its rows divided, once it gave what one device gives."""
    function, tensors = {**READS, **WRITES}[name]
    mesh = Mesh(axes)
    rows = ", ".join(f"{axis}: S(0)" for axis in axes)
    exported = torch.export.export(Program(function), tensors)
    first, *others = [spec.arg.name for spec in exported.graph_signature.input_specs]
    module = spmdir.import_fx(exported, mesh, {first: rows, **dict.fromkeys(others, "")}, out_shardings=out_shardings)
    expected = function(*tensors)
    for found, right in zip(
        spmdir.simulate(module, list(tensors), pipeline=PIPELINE),
        expected if isinstance(expected, tuple) else (expected,),
        strict=True,
    ):
        assert found.dtype == right.dtype and torch.allclose(found * 1.0, right * 1.0, rtol=1e-12)
    spmdir.run_passes(module, PIPELINE)
    return spmdir.report.comm_report(module).by_kind


@pytest.mark.parametrize(("name", "axes"), list(itertools.product(READS, MESHES)), ids=str)
def test_what_is_read_from_a_sharded_dimension_is_summed_and_nothing_is_gathered(name: str, axes: dict[str, int]):
    assert "all_gather" not in outcome(name, axes)


@pytest.mark.parametrize(("name", "axes"), list(itertools.product(WRITES, MESHES)), ids=str)
def test_a_rank_writes_what_is_its_own_and_nothing_is_sent(name: str, axes: dict[str, int]):
    assert not outcome(name, axes, [", ".join(f"{axis}: S(0)" for axis in axes)])
