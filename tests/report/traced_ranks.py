"""Profiler traces of a program on gloo ranks, for tests of measured steps."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.distributed.device_mesh import init_device_mesh

import spmdir
from spmdir.dialects import ir
from spmdir.dialects.attributes import meta_of
from spmdir.dialects.values import sharding_of
from spmdir.simulator.distribution import local_tensor

PROGRAM = """
spmd.mesh @mesh <dp = 2, tp = 2>

func.func @f(%x: tensor<256x128xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>},
             %up: tensor<128x512xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(1)>},
             %down: tensor<512x128xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0), dp: S(1)>})
    -> (tensor<256x128xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  %hidden = aten.mm(%x, %up) : tensor<256x512xf32>
  %active = aten.gelu(%hidden) : tensor<256x512xf32>
  %out = aten.mm(%active, %down) : tensor<256x128xf32>
  %result = aten.mul.Tensor(%out, %out) : tensor<256x128xf32>
  return %result : tensor<256x128xf32>
}
"""
PASSES = "propagate,insert-reshard,lower-reshard,fuse-collectives,localize,schedule"
STEPS = 2


def trace(rank: int, folder: str) -> str:
    """Run STEPS steps of a rank with the profiler, and return the path of their trace."""
    module = spmdir.run_passes(spmdir.parse(PROGRAM), PASSES)
    mesh = ir.mesh(module)
    device_mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    program = spmdir.lower_to_fx(module, device_mesh=device_mesh)
    source = ir.main_function(spmdir.parse(PROGRAM))
    pieces = [
        local_tensor(torch.randn(meta.shape), sharding, mesh, rank).clone()
        for argument in source.args
        if (meta := meta_of(argument.type)) is not None and (sharding := sharding_of(argument)) is not None
    ]
    path = str(Path(folder) / f"rank{rank}.json")
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=STEPS, repeat=1)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        record_shapes=True,
        schedule=schedule,
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(path),
    ) as profiler:
        for _ in range(STEPS + 1):
            program(*pieces)
            profiler.step()
    return path
