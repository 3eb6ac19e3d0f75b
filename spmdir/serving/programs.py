"""The programs of a served model, one module for each function of the module that `capture` returns."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.rewriter import Rewriter

from spmdir.core.arguments import TEXT, accepts
from spmdir.core.errors import UnsupportedError, did_you_mean
from spmdir.dialects import ir
from spmdir.dialects.arguments import MODULE


@accepts(module=MODULE, name=TEXT)
def program_of(module: ModuleOp, name: str) -> ModuleOp:
    """Return a copy of a module with one of its functions, such as `decode`, for `simulate`, `lower_to_fx` and reports.

    Args:
        module: a module with several functions, as `capture` returns it.
        name: the name of the function to keep.

    Raises:
        UnsupportedError: the module has no such function.

    Example:
        >>> spmdir.simulate(spmdir.serving.program_of(module, "decode"), [ids, positions], state_dict)
    """
    names = [function.sym_name.data for function in ir.functions(module)]
    if name not in names:
        raise UnsupportedError(f"the module has no function '{name}'{did_you_mean(name, names)}")
    copy = module.clone()
    for function in ir.functions(copy):
        if function.sym_name.data != name:
            Rewriter.erase_op(function)
    return copy
