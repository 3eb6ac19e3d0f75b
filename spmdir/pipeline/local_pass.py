"""What the passes that schedule have in common: they work on the program of one rank, and go by a machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.passes import ModulePass

from spmdir.analysis.local_programs.trusted import is_trusted, trust
from spmdir.core.mesh import Mesh
from spmdir.dialects import ir
from spmdir.dialects.context import IRContext
from spmdir.pipeline.preconditions import advancing, local_functions, reject_open_sizes


@dataclass(frozen=True)
class LocalPass(ModulePass):
    """A pass that changes each function of one rank in place, and keeps it as well typed as it was.

    Attributes:
        requires: the stage of a program that is complete for this pass.
        produces: the stage that it takes such a program to; None if it keeps the stage.
    """

    requires: ClassVar[str] = "local"
    produces: ClassVar[str | None] = "scheduled"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Run the pass on each function of `op`.

        Raises:
            SpmdirError: a function is not the program of one rank; located.
        """
        assert isinstance(ctx, IRContext)
        reject_open_sizes(op, self.name)
        for function in local_functions(op, self.name):
            was_trusted = is_trusted(function)
            with advancing(function, self.requires, self.produces):
                self.schedule(ctx, function, ir.mesh(op))
            if was_trusted:
                trust(function)

    def schedule(self, ctx: IRContext, function: FuncOp, mesh: Mesh) -> None:
        """Change `function`, which has local types."""
        raise NotImplementedError(f"{type(self).__name__}.schedule")
