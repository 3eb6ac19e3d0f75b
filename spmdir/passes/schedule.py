"""schedule: run the passes that schedule the program of one rank."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from spmdir.analysis.scheduling.rank_program import RankProgram, rank_program
from spmdir.core.byte_size import Bytes
from spmdir.core.errors import ShardingError
from spmdir.core.mesh import Mesh
from spmdir.core.progress import say
from spmdir.dialects.context import IRContext
from spmdir.dialects.mesh_op import MeshOp
from spmdir.passes.bucket import BucketPass
from spmdir.passes.fit_memory import FitMemoryPass, MemoryDecision
from spmdir.passes.reorder import ReorderPass
from spmdir.passes.split_async import SplitAsyncPass
from spmdir.pipeline.base_passes import LocalPass
from spmdir.pipeline.machine_options import MachineOptions
from spmdir.pipeline.options import Count, changed_options
from spmdir.pipeline.pipeline import Step
from spmdir.pipeline.recorded_options import Memory
from spmdir.pipeline.trials import run_trial
from spmdir.schedule.memory import peak_bytes
from spmdir.schedule.mobility import advance_transfers
from spmdir.schedule.simulate import simulate


@dataclass(frozen=True)
class SchedulePass(LocalPass, MachineOptions):
    """Runs fit-memory, bucket, split-async and reorder."""

    name = "schedule"

    mode: Literal["full", "simple"] = "full"
    """The option of reorder."""

    memory: Memory = "auto"
    """The memory limit of a rank for all four passes: a size, or `auto` for the limit of propagate."""

    offload: bool = True
    """The option of fit-memory."""

    regather: bool = False
    """The option of fit-memory."""

    spare: Count = 0
    """By how many percent messages may raise the peak of a program without a limit, up to the topology's memory."""

    def schedule(self, ctx: IRContext, function: FuncOp, mesh: Mesh) -> None:
        """Schedule `function`.

        If fit-memory copies values to the host, a copy of the function is scheduled without such copies. If the copy
        fits the memory and is not slower, its body replaces that of `function`.
        """
        fit_memory = FitMemoryPass(self.topology, self.costs, self.memory, self.offload, self.regather)
        decision = fit_memory.decide(ctx, function, mesh)
        if decision is None or not decision.fitted.copies:
            self._run(ctx, function, mesh, fit_memory, decision)
            return
        say("schedule: with values on the host")
        without_offload = function.clone()
        self._run(ctx, function, mesh, fit_memory, decision)
        say("schedule: with nothing on the host")
        schedule_without_offload = Step(self.name, changed_options(replace(self, offload=False)))
        with suppress(ShardingError):  # without copies, it may not fit
            run_trial(ctx, ModuleOp([MeshOp.build(mesh), without_offload]), (schedule_without_offload,))
            if self._seconds(ctx, without_offload, mesh) <= self._seconds(ctx, function, mesh):
                function.detach_region(function.body)
                function.add_region(without_offload.detach_region(without_offload.body))

    def _run(
        self, ctx: IRContext, function: FuncOp, mesh: Mesh, fit_memory: FitMemoryPass, decision: MemoryDecision | None
    ) -> None:
        """Carry out the decision of fit-memory, then run the other passes."""
        if decision is not None:
            fit_memory.carry_out(function, decision)
        topology, costs = self.topology, self.costs
        memory, ranked = self._memory(ctx, function, mesh)
        BucketPass(topology, costs, memory).schedule(ctx, function, mesh, ranked)
        SplitAsyncPass().schedule(ctx, function, mesh)
        ReorderPass(topology, costs, self.mode, memory).schedule(ctx, function, mesh)

    def _memory(self, ctx: IRContext, function: FuncOp, mesh: Mesh) -> tuple[Memory, RankProgram | None]:
        """Return the memory limit for the passes after fit-memory: the option `memory`, except with `spare`.

        Without a memory limit, `spare` sets one: the peak plus `spare` percent, if transfers that free memory run
        early. If that exceeds the memory of the topology, the limit is the memory of the topology, or the peak if that
        is larger. The tasks of `function` are also returned, if they were computed.
        """
        machine = self.machine(ctx, function, self.memory)
        if not self.spare or machine.memory < math.inf:
            return self.memory, None
        ranked = rank_program(function, mesh, ctx.rules, machine.topology)
        program, _ = ranked
        # Transfers that free memory may run early.
        peak = min(peak_bytes(program), peak_bytes(program, advance_transfers(program)))
        return Bytes(max(peak, min(peak * (1 + self.spare / 100), machine.topology.memory))), ranked

    def _seconds(self, ctx: IRContext, function: FuncOp, mesh: Mesh) -> float:
        """Return the modelled seconds of a scheduled function."""
        machine = self.machine(ctx, function, self.memory)
        return simulate(rank_program(function, mesh, ctx.rules, machine.topology)[0]).seconds
