"""What Inductor makes of a rank's program has starts and waits where the program has them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import fx
from torch._inductor.utils import run_and_get_code
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

import spmdir
from spmdir.core.errors import UnsupportedError

LAYERS = """
spmd.mesh @mesh <a = 4>
func.func @main(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, a: S(0)>},
                %w0: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, a: S(0)>},
                %w1: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, a: S(0)>},
                %w2: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, a: S(1)>})
    -> (tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, a: S(0)>}) {
  %g0 = spmd.all_gather_start %w0 on [a] dim 0 stream early : !spmd.pending<tensor<8x8xf32>> <>
  %f0 = spmd.wait %g0 : tensor<8x8xf32> <>
  %g1, %g2 = spmd.all_gather_start %w1, %w2 on [a] dim [0, 1] stream early : !spmd.pending<tensor<8x8xf32>> <>, \
!spmd.pending<tensor<8x8xf32>> <>
  %m0 = aten.mm(%x, %f0) : tensor<8x8xf32> <a: S(0)>
  %r0 = aten.relu(%m0) : tensor<8x8xf32> <a: S(0)>
  %f1, %f2 = spmd.wait %g1, %g2 : tensor<8x8xf32> <>, tensor<8x8xf32> <>
  %m1 = aten.mm(%r0, %f1) : tensor<8x8xf32> <a: S(0)>
  %m2 = aten.mm(%m1, %f2) : tensor<8x8xf32> <a: S(0)>
  %t = aten.t(%m2) : tensor<8x8xf32> <a: S(1)>
  %p2 = aten.mm(%t, %m1) : tensor<8x8xf32> <a: P(sum)>
  %p1 = aten.mm(%t, %m0) : tensor<8x8xf32> <a: P(sum)>
  %s = spmd.all_reduce_start %p1 on [a] op sum : !spmd.pending<tensor<8x8xf32>> <>
  %p0 = aten.mm(%t, %r0) : tensor<8x8xf32> <a: P(sum)>
  %s0 = spmd.reduce_scatter_start %p0 on [a] dim 0 op sum : !spmd.pending<tensor<8x8xf32>> <a: S(0)>
  %q1 = spmd.wait %s : tensor<8x8xf32> <>
  %y = spmd.all_reduce %p2 on [a] op sum : tensor<8x8xf32> <>
  %z = aten.mm(%y, %q1) : tensor<8x8xf32> <>
  %q0 = spmd.wait %s0 : tensor<8x8xf32> <a: S(0)>
  return %q1, %z, %q0 : tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>
}
"""
INPUTS = [torch.ones(2, 8), torch.ones(2, 8), torch.ones(2, 8), torch.ones(8, 2)]


@pytest.fixture
def program() -> Iterator[fx.GraphModule]:
    """Yield the program of one of four ranks, of which only one is there."""
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    device_mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("a",))
    yield spmdir.lower_to_fx(spmdir.parse(LAYERS), device_mesh=device_mesh)
    dist.destroy_process_group()


def written(program: fx.GraphModule) -> list[str]:
    """Return the collectives, waits and products of a graph, in order."""
    names = (getattr(node.target, "__name__", "") for node in program.graph.nodes)
    return [name.removesuffix(".default") for name in names if re.match("all_|reduce_|wait|mm", name)]


CALL = re.compile(r"_c10d_functional\.(\w+?)(?:_|_out)?\.default\(|extern_kernels\.(mm)\(")


def compiled(program: fx.GraphModule, options: dict[str, object] | None = None) -> list[str]:
    """Return the same of what Inductor makes of it."""
    torch._dynamo.reset()
    step = spmdir.compile_program(program, options)
    with torch.no_grad():
        _, codes = run_and_get_code(step, *INPUTS)
    return ["".join(found) for found in CALL.findall(codes[-1])]


def test_starts_and_waits_stay_where_they_are(program: fx.GraphModule) -> None:
    assert compiled(program) == written(program)


def test_what_inductor_does_by_default_is_another_order(program: fx.GraphModule) -> None:
    options: dict[str, object] = {"reorder_for_locality": True, "reorder_for_peak_memory": True}
    found = compiled(program, options)
    assert sorted(found) == sorted(written(program)) and found != written(program)


def test_a_program_in_groups_that_are_only_named_is_an_error() -> None:
    with pytest.raises(
        UnsupportedError,
        match="has groups named by mesh axes, mesh:a, mesh:a#early; expected groups of a device mesh: lower it",
    ):
        spmdir.compile_program(spmdir.lower_to_fx(spmdir.parse(LAYERS)))
