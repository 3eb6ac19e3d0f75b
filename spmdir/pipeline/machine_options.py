"""The options `topology` and `costs` of passes with a cost model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.func import FuncOp

from spmdir.dialects.context import IRContext
from spmdir.dialects.machine_attribute import Machine
from spmdir.pipeline.pipeline import as_pipeline
from spmdir.pipeline.recorded_options import Memory, machine_of, remark_other_machine


@dataclass(frozen=True)
class MachineOptions:
    """The machine of a pass's cost model: by default, the machine that propagate used."""

    name: ClassVar[str]
    """The name of the pass, for remarks."""

    topology: str = "auto"
    """The machine: a preset or a TOML file. `auto` is the machine that propagate used."""

    costs: str = ""
    """A file of measured times, which take precedence over modelled times. By default, the file that propagate used."""

    def machine(self, context: IRContext, function: FuncOp, memory: Memory = "auto") -> Machine:
        """Return the machine of the options, by default the machine of the decision of `function`, with limit `memory`.

        Raises:
            SpmdirError: the machine is unknown, or a file cannot be read.
        """
        return machine_of(function, as_pipeline(context.pipeline), self.topology, self.costs, memory)

    def machine_with_remark(self, context: IRContext, function: FuncOp, memory: Memory = "auto") -> Machine:
        """Return the machine, and print a remark to stderr if propagate used another one."""
        machine = self.machine(context, function, memory)
        remark_other_machine(function, machine, self.name, as_pipeline(context.pipeline))
        return machine
