"""fit-memory: recompute values, gather them again or copy them to the host, until the program fits the memory."""

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
from spmdir.pipeline.recorded_options import Memory
from spmdir.schedule.block_decisions import task_seconds
from spmdir.schedule.memory import find_peak
from spmdir.schedule.memory_fitting import Fitted, fit, gather_again
from spmdir.schedule.program import Program
from spmdir.schedule.repeated_tasks import insert_repeats
from spmdir.transforms.insert_repeats import may_repeat, repeat

HOLDERS = 5
"""The number of the largest buffers that an error lists."""


@attrs.frozen(eq=False)
class MemoryDecision:
    """The recomputations and host copies that were chosen for a function.

    Attributes:
        fitted: the recomputations and copies, and the peak with them.
        program, units: the function before any change, and the ops of each of its tasks.
        values: buffer → its value, for values that may be copied to the host.
    """

    fitted: Fitted
    program: Program
    units: Sequence[Unit]
    values: Mapping[int, SSAValue]


@dataclass(frozen=True)
class FitMemoryPass(LocalPass, MachineOptions):
    """Gathers weights again, recomputes values or copies them to the host, until a rank fits into its memory."""

    name = "fit-memory"
    produces: ClassVar[str | None] = None

    budget: Memory = "auto"
    """The memory limit of a rank: a size, `auto` for the limit of propagate, or `least` for the smallest peak."""

    offload: bool = True
    """Whether values may be copied to the host and back. This requires a host bandwidth in the topology."""

    regather: bool = False
    """Whether to gather all weights again for the backward, except the innermost, even if the memory limit allows to
    hold them."""

    remarks: bool = False
    """Whether to print a remark with the repeated and copied values, the memory that this frees, and its time."""

    def schedule(self, ctx: IRContext, function: FuncOp, mesh: Mesh) -> None:
        """Repeat units of `function` and copy values to the host, as few as the memory limit requires.

        Raises:
            ShardingError: no choice fits the limit; located.
        """
        decision = self.decide(ctx, function, mesh)
        if decision is not None:
            self.carry_out(function, decision)

    def decide(self, ctx: IRContext, function: FuncOp, mesh: Mesh) -> MemoryDecision | None:
        """Choose the units of `function` to repeat and the values to copy, without a change of `function`.

        Returns: the decision; None if there is no memory limit, except with `regather`.

        Raises:
            ShardingError: no choice fits the limit; located.
        """
        machine = self.machine(ctx, function, self.budget)
        if machine.memory == math.inf and not self.regather:
            return None
        memory = live_memory(function, mesh, ctx.rules, memory_classes(function, ctx.rules), machine.topology.imbalance)
        program, units = rank_program(function, mesh, ctx.rules, machine.topology, memory)
        values, copies = copyable_values(memory, machine.topology) if self.offload else ({}, {})
        repeatable = list(map(may_repeat, units))
        if self.regather:
            gathered = {i for i, buffer in enumerate(program.buffers) if buffer.kind == "gathered weights"}
            fitted = gather_again(program, gathered, repeatable)
            if fitted.peak <= machine.memory:
                return MemoryDecision(fitted, program, units, values)
        fitted = fit(program, machine.memory, repeatable, copies)
        if 0 < machine.memory < fitted.peak:  # a budget of 0 means `least`
            raise _over_budget(fitted, machine.memory, function)
        return MemoryDecision(fitted, program, units, values)

    def carry_out(self, function: FuncOp, decision: MemoryDecision) -> None:
        """Insert the recomputations and copies of `decision` into `function`, and print the remark, if requested."""
        program, units = decision.program, decision.units
        for repeats in decision.fitted.rounds:  # the repeats of a round may repeat those of earlier rounds
            units = repeat(function, program, units, repeats, decision.values)
            program = insert_repeats(program, repeats)
        if self.remarks:
            print_remark(_remark_text(decision.fitted), location_of(function))


def _remark_text(fitted: Fitted) -> str:
    """Return the text of the remark: the peak, then the bytes and times of repeated and copied values, if any.

    For example: "a rank holds 40 GiB at once; recomputes 3 GiB in 12 ms".
    """
    clauses = [f"a rank holds {size_text(fitted.peak)} at once"]
    gathers = [task for task in fitted.recomputed if task.transfer]
    recomputations = [task for task in fitted.recomputed if not task.transfer and task.allocates]
    for action, tasks in (("gathers again", gathers), ("recomputes", recomputations)):
        if tasks:
            size = sum(fitted.program.buffers[buffer].bytes for task in tasks for buffer in task.allocates)
            milliseconds = 1e3 * sum(map(task_seconds, tasks))
            clauses.append(f"{action} {size_text(size)} in {milliseconds:.4g} ms")
    if fitted.copies:
        size = sum(fitted.program.buffers[buffer].bytes for task in fitted.copies for buffer in task.allocates)
        milliseconds = 1e3 * sum(map(task_seconds, fitted.copies))
        clauses.append(f"keeps {size_text(size)} on the host, with copies of {milliseconds:.4g} ms")
    return "; ".join(clauses)


def _over_budget(fitted: Fitted, budget: float, function: FuncOp) -> ShardingError:
    """Return the error for a program whose smallest peak exceeds `budget`."""
    program = fitted.program
    peak, task, live = find_peak(program)
    where = "before the first op" if task is None else f"at {program.tasks[task].name}"
    buffers = sorted((program.buffers[buffer] for buffer in live), key=lambda buffer: -buffer.bytes)
    largest = ", ".join(f"{buffer.name} {size_text(buffer.bytes)}" for buffer in buffers[:HOLDERS])
    return ShardingError(
        f"a rank needs at least {size_text(peak)} of memory, {where}, even with recomputation; the largest buffers are "
        f"{largest}; expected at most {size_text(budget)}, the option `budget` of fit-memory or the memory limit of "
        f"propagate: use more ranks, shard the inputs of the program, or raise the limit to budget={math.ceil(peak)}",
        location_of(function),
    )
