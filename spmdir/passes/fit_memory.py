"""fit-memory: a rank does work again instead of holding what it gave, until its program fits into its memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import attrs
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from spmdir.analysis.live_memory import live_memory
from spmdir.analysis.local_programs.globalize import Unit
from spmdir.analysis.memory_classes import memory_classes
from spmdir.analysis.scheduling.copied_values import copyable_values
from spmdir.analysis.scheduling.rank_program import rank_program
from spmdir.core.byte_size import size_text
from spmdir.core.errors import ShardingError, print_remark
from spmdir.core.mesh import Mesh
from spmdir.dialects.context import IRContext
from spmdir.dialects.locations import location_of
from spmdir.pipeline.base_passes import LocalPass
from spmdir.pipeline.machine_options import MachineOptions
from spmdir.pipeline.noted_options import Memory
from spmdir.schedule.block_answers import task_seconds
from spmdir.schedule.fit import Fitted, fit
from spmdir.schedule.memory import find_peak
from spmdir.schedule.program import Program
from spmdir.schedule.repeated_tasks import insert_repeats
from spmdir.transforms.repeat import may_repeat, repeat

HOLDERS = 5
"""How many of the largest buffers an error names."""


@attrs.frozen(eq=False)
class MemoryDecision:
    """What is done about the memory of a function.

    Attributes:
        program, units: the function before, and the ops of each of its tasks.
        values: buffer → the value of it that may be copied to the host.
    """

    fitted: Fitted
    program: Program
    units: Sequence[Unit]
    values: Mapping[int, SSAValue]


@dataclass(frozen=True)
class FitMemoryPass(LocalPass, MachineOptions):
    """Gathers weights again, recomputes values or keeps them on the host, if a rank holds more than its memory."""

    name = "fit-memory"
    produces: ClassVar[str | None] = None

    budget: Memory = "auto"
    """What a rank may hold: `auto` is what propagate decided for, `least` as little as can be reached."""

    offload: bool = True
    """Whether values may be copied to the memory of the host and back, where the topology has a bandwidth to there."""

    remarks: bool = False
    """Whether to print a remark that lists what is recomputed or copied, the memory that this frees and its time."""

    def schedule(self, ctx: IRContext, function: FuncOp, mesh: Mesh) -> None:
        """Let units of `function` run again, and copy values to the host, as few as its memory asks for.

        Raises:
            ShardingError: it holds more however much runs again; located.
        """
        decision = self.decide(ctx, function, mesh)
        if decision is not None:
            self.carry_out(function, decision)

    def decide(self, ctx: IRContext, function: FuncOp, mesh: Mesh) -> MemoryDecision | None:
        """Return what runs again and what is copied in `function`; None if its memory has no limit.

        Raises:
            ShardingError: it holds more however much runs again; located.
        """
        machine = self.machine(ctx, function, self.budget)
        if machine.memory == math.inf:
            return None
        memory = live_memory(function, mesh, ctx.rules, memory_classes(function, ctx.rules))
        program, units = rank_program(function, mesh, ctx.rules, machine.topology, memory)
        values, copies = copyable_values(memory, machine.topology) if self.offload else ({}, {})
        fitted = fit(program, machine.memory, list(map(may_repeat, units)), copies)
        if 0 < machine.memory < fitted.peak:  # 0 asks for the least
            raise _over_budget(fitted, machine.memory, function)
        return MemoryDecision(fitted, program, units, values)

    def carry_out(self, function: FuncOp, decision: MemoryDecision) -> None:
        """Change `function` as was decided for it."""
        program, units = decision.program, decision.units
        for added in decision.fitted.rounds:
            units = repeat(function, program, units, added, decision.values)
            program = insert_repeats(program, added)
        if self.remarks:
            print_remark(_explanation(decision.fitted), location_of(function))


def _explanation(fitted: Fitted) -> str:
    told = [f"a rank holds {size_text(fitted.peak)} at once"]
    gathered = [task for task in fitted.recomputed if task.transfer]
    computed = [task for task in fitted.recomputed if not task.transfer and task.allocates]
    for does, tasks in (("gathers again", gathered), ("recomputes", computed)):
        if tasks:
            size = sum(fitted.program.buffers[buffer].bytes for task in tasks for buffer in task.allocates)
            spent = 1e3 * sum(map(task_seconds, tasks))
            told.append(f"{does} {size_text(size)} in {spent:.4g} ms")
    if fitted.copies:
        size = sum(fitted.program.buffers[buffer].bytes for task in fitted.copies for buffer in task.allocates)
        spent = 1e3 * sum(map(task_seconds, fitted.copies))
        told.append(f"keeps {size_text(size)} on the host, with copies of {spent:.4g} ms")
    return "; ".join(told)


def _over_budget(fitted: Fitted, budget: float, function: FuncOp) -> ShardingError:
    """Return the error of a program that holds more than `budget`, however much of it runs again."""
    program = fitted.program
    peak, at, live = find_peak(program)
    where = "before the first op" if at is None else f"at {program.tasks[at].name}"
    held = sorted((program.buffers[buffer] for buffer in live), key=lambda buffer: -buffer.bytes)
    largest = ", ".join(f"{buffer.name} {size_text(buffer.bytes)}" for buffer in held[:HOLDERS])
    return ShardingError(
        f"a rank holds {size_text(peak)} at once, {where}, the least that is found however much is recomputed, of "
        f"these {largest}; expected at most {size_text(budget)}, the option `budget` of fit-memory or the memory that "
        f"propagate decided for: give the program more ranks, shard its inputs, or raise the limit to "
        f"budget={math.ceil(peak)}",
        location_of(function),
    )
