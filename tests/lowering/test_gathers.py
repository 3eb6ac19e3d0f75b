"""Programs that run on CPUs gather into new memory: two functional all-gathers of gloo may corrupt the heap."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, fx
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

import spmdir
from spmdir.core.mesh import Mesh
from spmdir.lowering.gathers import all_gather_into_tensor, functional
from spmdir.lowering.process_groups import name_groups

GATHERS = """
spmd.mesh @mesh <a = 2>
func.func @main(%x: tensor<4x3xf32> {spmd.sharding = #spmd.sharding<@mesh, a: S(0)>},
                %y: tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh, a: S(1)>})
    -> (tensor<4x3xf32>, tensor<4x6xf32>) {
  %0 = spmd.all_gather_start %x on [a] dim 0 : !spmd.pending<tensor<4x3xf32>> <>
  %1 = spmd.all_gather_start %y on [a] dim 1 : !spmd.pending<tensor<4x6xf32>> <>
  %2 = spmd.wait %0 : tensor<4x3xf32> <>
  %3 = spmd.wait %1 : tensor<4x6xf32> <>
  return %2, %3 : tensor<4x3xf32>, tensor<4x6xf32>
}
"""


class Collectives(TorchDispatchMode):
    """Lists the collectives that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == functional.name and func is not functional.wait_tensor.default:
            self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


@pytest.fixture
def device_mesh() -> Iterator[Any]:
    """Yield the mesh of two ranks, of which only one is there."""
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield dist.init_device_mesh("cpu", (2,), mesh_dim_names=("a",))
    dist.destroy_process_group()


@pytest.fixture
def group() -> Iterator[str]:
    """Yield the name of a gloo group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD.group_name  # type: ignore[union-attr]
    dist.destroy_process_group()


def lowered(device_mesh: Any) -> fx.GraphModule:
    return spmdir.lower_to_fx(spmdir.parse(GATHERS), device_mesh=device_mesh)


def named(device_mesh: Any) -> fx.GraphModule:
    program = spmdir.lower_to_fx(spmdir.parse(GATHERS))
    name_groups(program, Mesh({"a": 2}), device_mesh)
    return program


@pytest.mark.parametrize("made", [lowered, named])
def test_a_program_on_a_cpu_writes_its_gathers(made: Callable[[Any], fx.GraphModule], device_mesh: Any) -> None:
    program = made(device_mesh)
    with torch.no_grad(), Collectives() as ran:
        outputs = program(torch.ones(2, 3), torch.ones(4, 3))
    assert [tuple(output.shape) for output in outputs] == [(4, 3), (4, 6)]
    assert ran.names == ["all_gather_into_tensor_out.default"] * 2


@pytest.mark.parametrize("x", [torch.arange(3), torch.rand(2, 3), torch.tensor([[True], [False]])])
def test_a_written_gather_is_the_functional_one(x: Tensor, group: str) -> None:
    expected = functional.wait_tensor.default(functional.all_gather_into_tensor.default(x, 1, group))
    found = functional.wait_tensor.default(all_gather_into_tensor(x, 1, group))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_gradients_flow_through_a_gather(group: str) -> None:
    x = torch.rand(3, requires_grad=True)
    functional.wait_tensor.default(all_gather_into_tensor(x, 1, group)).mul(2).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2, 2, 2]
