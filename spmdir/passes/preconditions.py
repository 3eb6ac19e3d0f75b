"""What a pass requires of the module that it is given."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from spmdir.core.errors import UnsupportedError
from spmdir.dialects import ir
from spmdir.dialects.sizes import sizes_op
from spmdir.dialects.syntax.context import location_of
from spmdir.dialects.verification import is_local


def global_function(module: ModuleOp, pass_name: str) -> FuncOp:
    """The one function of `module`, for a pass that reads global types.

    Raises:
        UnsupportedError: localize has made the types those of one rank, or there is not one function.
    """
    function = ir.main_function(module)
    if is_local(function):
        raise UnsupportedError(
            f"the types are those of one rank, and {pass_name} needs the global ones; run {pass_name} before localize",
            location_of(function),
        )
    return function


def sized_function(module: ModuleOp, pass_name: str) -> FuncOp:
    """The one function of `module`, for a pass that reads global types and works with numbers.

    Raises:
        UnsupportedError: as for `global_function`; sizes are symbolic.
    """
    refuse_open_sizes(module, pass_name)
    return global_function(module, pass_name)


def refuse_open_sizes(module: ModuleOp, pass_name: str) -> None:
    """Raise UnsupportedError if sizes of `module` are symbolic, for a pass that works with numbers."""
    declared = sizes_op(module)
    if declared is not None:
        example = " ".join(f"{name}={hint}" for name, hint in declared.sizes.data.hints.items())
        raise UnsupportedError(
            f'{pass_name} needs the sizes of the program as numbers; run bind-sizes first: --bind-sizes="{example}"',
            location_of(declared),
        )
