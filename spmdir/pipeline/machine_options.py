"""The options `topology` and `costs` of passes that price by a machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.func import FuncOp

from spmdir.dialects.context import IRContext
from spmdir.dialects.machine_attribute import Machine
from spmdir.pipeline.noted_options import Memory, machine_of, remark_other_machine
from spmdir.pipeline.pipeline import as_pipeline


@dataclass(frozen=True)
class MachineOptions:
    """The machine that a pass prices by; by default the one that propagate decided for."""

    name: ClassVar[str]

    topology: str = "auto"
    """What the mesh runs on, a preset or a TOML file. `auto` is what propagate decided for."""

    costs: str = ""
    """A file of measured times, which come before those of the topology; those of propagate if none is given."""

    def machine(self, context: IRContext, function: FuncOp, memory: Memory = "auto") -> Machine:
        """Return the machine that the options name, with the limit `memory`, else the one `function` is decided for.

        Raises:
            SpmdirError: there is no such machine, or a file cannot be read.
        """
        return machine_of(function, as_pipeline(context.pipeline), self.topology, self.costs, memory)

    def machine_with_remark(self, context: IRContext, function: FuncOp, memory: Memory = "auto") -> Machine:
        """Return the machine, and print a remark to stderr if it is another than the one propagate decided for."""
        machine = self.machine(context, function, memory)
        remark_other_machine(function, machine, self.name, as_pipeline(context.pipeline))
        return machine
