"""Base classes of passes, and the checks that a module is at the stage that a pass requires."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.passes import ModulePass

from spmdir.analysis.local_programs.trusted import is_trusted, trust
from spmdir.core.errors import UnsupportedError
from spmdir.core.mesh import Mesh
from spmdir.dialects import ir
from spmdir.dialects.context import IRContext
from spmdir.dialects.layer_calls import layer_named
from spmdir.dialects.locations import location_of
from spmdir.dialects.observed_stage import last_stage, stage_of
from spmdir.dialects.sizes import sizes_op
from spmdir.dialects.stage import is_at_least, is_local, write_stage, written_stage


class FunctionPass(ModulePass):
    """A pass that changes each function of a module by itself: it has `run_on_function` in the place of `apply`.

    Attributes:
        needs_numbers: whether symbolic sizes must have been bound to numbers before.
        takes_layers: whether it runs once on each outlined layer, as one that treats each op by itself may.
        requires: the stage of a program that is complete for this pass.
        produces: the stage that it takes such a program to; None if it keeps the stage.
    """

    needs_numbers: ClassVar[bool] = True
    takes_layers: ClassVar[bool] = False
    requires: ClassVar[str] = "imported"
    produces: ClassVar[str | None] = None

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Run the pass on each function of `op`.

        Raises:
            SpmdirError: a function is not at the stage that the pass is for; located.
        """
        assert isinstance(ctx, IRContext)
        if self.needs_numbers:
            reject_open_sizes(op, self.name)
        for function in global_functions(op, self.name, self.takes_layers):
            with advancing(function, self.requires, self.produces):
                self.run_on_function(ctx, op, function)

    def run_on_function(self, ctx: IRContext, module: ModuleOp, function: FuncOp) -> None:
        """Change `function`, which has global types and calls no other, in place."""
        raise NotImplementedError(f"{type(self).__name__}.run_on_function")


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


@contextmanager
def advancing(function: FuncOp, requires: str, produces: str | None) -> Iterator[None]:
    """Write the stage `produces` on `function` at the end, if it is at the stage `requires` now.

    A later stage stays, unless the pass leaves ops that it does not admit, such as further reshards.
    """
    before = stage_of(function) if produces else requires
    yield
    if produces and is_at_least(before, requires):
        now, last = written_stage(function) or before, last_stage(function)
        stage = now if is_at_least(now, produces) else produces
        write_stage(function, stage if is_at_least(last, stage) else last)


def global_functions(module: ModuleOp, pass_name: str, with_layers: bool = False) -> list[FuncOp]:
    """Return the functions of `module`, for a pass that reads global types.

    Args:
        with_layers: whether calls may stand for outlined layers.

    Raises:
        UnsupportedError: there is none, one calls another, or localize has made its types those of one rank; located.
    """
    functions = flat_functions(module, with_layers)
    for function in functions:
        if is_local(function):
            raise UnsupportedError(
                f"the types are those of one rank, and {pass_name} needs the global ones; "
                f"run {pass_name} before localize",
                location_of(function),
            )
    return functions


def local_functions(module: ModuleOp, pass_name: str) -> list[FuncOp]:
    """Return the functions of `module`, for a pass that works on the program of one rank.

    Raises:
        UnsupportedError: there is none, one calls another, or has global types; located.
    """
    functions = flat_functions(module)
    for function in functions:
        if not is_local(function):
            raise UnsupportedError(
                f"the types are global ones, and {pass_name} needs those of one rank; run {pass_name} after localize",
                location_of(function),
            )
    return functions


def flat_functions(module: ModuleOp, with_layers: bool = False) -> list[FuncOp]:
    """Return the functions of `module`.

    Args:
        with_layers: whether calls may stand for outlined layers.

    Raises:
        UnsupportedError: there is none, or one calls another; located.
    """
    functions = ir.functions(module)
    if not functions:
        raise UnsupportedError("the module has no function; expected one or more", location_of(module))
    for function in functions:
        for op in function.body.block.ops:
            # isinstance is slow on ops that are others
            if type(op) is CallOp and not (with_layers and layer_named(op)):
                raise UnsupportedError(f"calls {op.callee}; run inline first", location_of(op))
    return functions


def reject_open_sizes(module: ModuleOp, pass_name: str) -> None:
    """Raise UnsupportedError if sizes of `module` are symbolic, for a pass that works with numbers."""
    declared = sizes_op(module)
    if declared is not None:
        example = " ".join(f"{name}={hint}" for name, hint in declared.sizes.data.hints.items())
        raise UnsupportedError(
            f'{pass_name} needs the sizes of the program as numbers; run bind-sizes first: --bind-sizes="{example}"',
            location_of(declared),
        )
