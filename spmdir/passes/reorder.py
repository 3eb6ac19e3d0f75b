"""reorder: overlap transfers with computation by a new order of ops."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from xdsl.dialects.func import FuncOp

from spmdir.analysis.local_programs.globalize import Unit
from spmdir.analysis.scheduling.rank_program import rank_program
from spmdir.core.mesh import Mesh
from spmdir.dialects.collectives import Collective
from spmdir.dialects.context import IRContext
from spmdir.dialects.host_ops import HostCopyOp
from spmdir.dialects.recomputation import RECOMPUTES
from spmdir.dialects.row_exchanges import ExpertExchangeOp
from spmdir.pipeline.base_passes import LocalPass
from spmdir.pipeline.machine_options import MachineOptions
from spmdir.pipeline.recorded_options import Memory
from spmdir.schedule.delay_recomputations import delay_recomputations
from spmdir.schedule.early_starts import lengthen_flights
from spmdir.schedule.list_scheduling import order_tasks
from spmdir.transforms.set_order import set_order


@dataclass(frozen=True)
class ReorderPass(LocalPass, MachineOptions):
    """Moves starts of collectives and copies up and their waits down. Other ops then run in between."""

    name = "reorder"

    mode: Literal["full", "simple"] = "full"
    """`full` may move any op, and uses modelled times. `simple` only moves starts up and waits down, without times."""

    memory: Memory = None
    """The memory limit of a rank: a size, or `auto` for the limit of propagate. By default, the peak does not rise."""

    def schedule(self, ctx: IRContext, function: FuncOp, mesh: Mesh) -> None:
        """Put the ops of `function` into the new order. Without starts of collectives or copies, nothing changes."""
        if not any(
            isinstance(op, (Collective, HostCopyOp, ExpertExchangeOp)) and op.IS_START for op in function.body.block.ops
        ):
            return
        machine = self.machine(ctx, function, self.memory)
        program, units = rank_program(function, mesh, ctx.rules, machine.topology)
        limit = machine.memory if machine.memory < math.inf else None
        program = delay_recomputations(program, list(map(_recomputes, units)))
        order = order_tasks(program, limit) if self.mode == "full" else lengthen_flights(program, limit)
        set_order(function.body.block, [units[task] for task in order])


def _recomputes(unit: Unit) -> bool:
    """Return whether a unit recomputes a value without a collective."""
    return RECOMPUTES in unit[0].attributes and not any(isinstance(op, Collective) for op in unit)
