"""What a pass may ask of the module it is given."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from spmdir.dialects import ir
from spmdir.dialects.spmd import is_local
from spmdir.dialects.syntax import location_of
from spmdir.errors import UnsupportedError


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
