"""schedule: all that makes the program of one rank a schedule of what it computes and sends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from xdsl.dialects.func import FuncOp

from spmdir.core.mesh import Mesh
from spmdir.dialects.syntax.context import IRContext
from spmdir.passes.bucket import BucketPass
from spmdir.passes.fit_memory import FitMemoryPass
from spmdir.passes.propagation.noted_options import Memory
from spmdir.passes.reorder import ReorderPass
from spmdir.passes.scheduling.local_pass import LocalPass
from spmdir.passes.split_async import SplitAsyncPass


@dataclass(frozen=True)
class SchedulePass(LocalPass):
    """Runs fit-memory, bucket, split-async and reorder."""

    name = "schedule"

    mode: Literal["full", "simple"] = "full"
    """That of reorder."""

    topology: str = "auto"
    """What the mesh runs on, a preset or a TOML file. `auto` is what propagate decided for."""

    costs: str = ""
    """A file of measured times, which come before those of the topology; those of propagate if none is given."""

    memory: Memory = "auto"
    """What a rank may hold: `auto` is what propagate decided for; without a limit what it holds anyway."""

    offload: bool = True
    """That of fit-memory."""

    def schedule(self, ctx: IRContext, function: FuncOp, mesh: Mesh) -> None:
        topology, costs, memory = self.topology, self.costs, self.memory
        FitMemoryPass(memory, topology, costs, self.offload).schedule(ctx, function, mesh)
        BucketPass(topology, costs, memory).schedule(ctx, function, mesh)
        SplitAsyncPass().schedule(ctx, function, mesh)
        ReorderPass(self.mode, topology, costs, memory).schedule(ctx, function, mesh)
