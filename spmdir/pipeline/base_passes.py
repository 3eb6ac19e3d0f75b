"""Base classes of passes, and checks that a module is at the stage that a pass requires."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.passes import ModulePass

from spmdir.analysis.local_programs.type_check_cache import is_trusted, trust
from spmdir.core.errors import UnsupportedError
from spmdir.core.mesh import Mesh
from spmdir.dialects import ir
from spmdir.dialects.context import IRContext
from spmdir.dialects.layer_calls import layer_named
from spmdir.dialects.locations import location_of
from spmdir.dialects.size_ops import sizes_op
from spmdir.dialects.stage import is_at_least, is_local, recorded_stage, write_stage
from spmdir.dialects.stage_inference import last_stage, stage_of


class FunctionPass(ModulePass):
    """A pass that changes each function separately: it defines `run_on_function` in place of `apply`.

    Attributes:
        needs_numbers: whether symbolic sizes must be bound to numbers before.
        takes_layers: whether it runs once on each outlined layer. This requires that it processes each op separately.
        requires: the stage that the pass requires.
        produces: the stage of its output; None if it keeps the stage.
    """

    needs_numbers: ClassVar[bool] = True
    takes_layers: ClassVar[bool] = False
    requires: ClassVar[str] = "imported"
    produces: ClassVar[str | None] = None

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Run the pass on each function of `op`.

        Raises:
            SpmdirError: a function is at a wrong stage; located.
        """
        assert isinstance(ctx, IRContext)
        if self.needs_numbers:
            reject_open_sizes(op, self.name)
        for function in global_functions(op, self.name, self.takes_layers):
            with advancing(function, self.requires, self.produces):
                self.run_on_function(ctx, op, function)

    def run_on_function(self, ctx: IRContext, module: ModuleOp, function: FuncOp) -> None:
        """Change `function` in place. It has global types and no calls."""
        raise NotImplementedError(f"{type(self).__name__}.run_on_function")


@dataclass(frozen=True)
class LocalPass(ModulePass):
    """A pass that changes the program of one rank in place, and preserves well-typedness.

    Attributes:
        requires: the stage that the pass requires.
        produces: the stage of its output; None if it keeps the stage.
    """

    requires: ClassVar[str] = "local"
    produces: ClassVar[str | None] = "scheduled"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Run the pass on each function of `op`.

        Raises:
            SpmdirError: a function does not have the types of one rank; located.
        """
        assert isinstance(ctx, IRContext)
        reject_open_sizes(op, self.name)
        for function in local_functions(op, self.name):
            was_trusted = is_trusted(function)  # type-checked: a pass that preserves this need not be checked again
            with advancing(function, self.requires, self.produces):
                self.schedule(ctx, function, ir.mesh(op))
            if was_trusted:
                trust(function)

    def schedule(self, ctx: IRContext, function: FuncOp, mesh: Mesh) -> None:
        """Change `function` in place. It has local types."""
        raise NotImplementedError(f"{type(self).__name__}.schedule")


@contextmanager
def advancing(function: FuncOp, requires: str, produces: str | None) -> Iterator[None]:
    """Write the stage `produces` to `function` at the end of the context.

    If `produces` is None, or the function is before the stage `requires`, no stage is written. A function at a later
    stage than `produces` keeps that stage, unless the pass adds ops that the later stage does not allow. Then it gets
    the latest stage that allows its ops. For example, insert-reshard on a `lowered` function produces `resharded`: the
    function stays `lowered` if no reshard was inserted, and otherwise becomes `resharded`.
    """
    stage_before = stage_of(function) if produces else requires
    yield
    if produces and is_at_least(stage_before, requires):
        stage_after, latest_allowed = recorded_stage(function) or stage_before, last_stage(function)
        stage = stage_after if is_at_least(stage_after, produces) else produces
        write_stage(function, stage if is_at_least(latest_allowed, stage) else latest_allowed)


def global_functions(module: ModuleOp, pass_name: str, with_layers: bool = False) -> list[FuncOp]:
    """Return the functions of `module`, for a pass that reads global types.

    Args:
        with_layers: whether calls of outlined layers are allowed.

    Raises:
        UnsupportedError: there is no function, or one has calls or the types of one rank; located.
    """
    functions = flat_functions(module, with_layers)
    for function in functions:
        if is_local(function):
            raise UnsupportedError(
                f"the program has the types of one rank, but {pass_name} requires global types; expected a "
                f"program before localize: run {pass_name} before localize",
                location_of(function),
            )
    return functions


def local_functions(module: ModuleOp, pass_name: str) -> list[FuncOp]:
    """Return the functions of `module`, for a pass that works on the program of one rank.

    Raises:
        UnsupportedError: there is no function, or one has calls or global types; located.
    """
    functions = flat_functions(module)
    for function in functions:
        if not is_local(function):
            raise UnsupportedError(
                f"the program has global types, but {pass_name} requires local types; expected a program "
                f"after localize: run {pass_name} after localize",
                location_of(function),
            )
    return functions


def flat_functions(module: ModuleOp, with_layers: bool = False) -> list[FuncOp]:
    """Return the functions of `module`.

    Args:
        with_layers: whether calls of outlined layers are allowed.

    Raises:
        UnsupportedError: there is no function, or one has calls; located.
    """
    functions = ir.functions(module)
    if not functions:
        raise UnsupportedError("the module has no function; expected one or more", location_of(module))
    for function in functions:
        for op in function.body.block.ops:
            # isinstance is slow for other ops
            if type(op) is CallOp and not (with_layers and layer_named(op)):
                raise UnsupportedError(
                    f"the function calls {op.callee}; expected a function without calls: run inline first",
                    location_of(op),
                )
    return functions


def reject_open_sizes(module: ModuleOp, pass_name: str) -> None:
    """Raise a located UnsupportedError if `module` has symbolic sizes. The error contains example values."""
    sizes = sizes_op(module)
    if sizes is not None:
        example = " ".join(f"{name}={hint}" for name, hint in sizes.sizes.data.hints.items())
        raise UnsupportedError(
            f'{pass_name} found symbolic sizes; expected numbers: run bind-sizes first: --bind-sizes="{example}"',
            location_of(sizes),
        )
