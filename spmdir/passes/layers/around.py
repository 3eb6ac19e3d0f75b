"""The one place where passes meet outlined layers: a pass that has to see the whole program sees the layers inlined."""

from __future__ import annotations

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from spmdir.dialects import ir
from spmdir.dialects.layer_calls import layer_named
from spmdir.dialects.syntax.context import IRContext
from spmdir.passes.inline import inline
from spmdir.passes.layers.outline import outline_layers


def is_outlined(module: ModuleOp) -> bool:
    """Return whether layers of `module` are functions."""
    return any(layer_named(function) is not None for function in ir.functions(module))


def apply(made: ModulePass, ctx: Context, module: ModuleOp) -> None:
    """Run a pass on `module` in place; layers that are outlined are so afterwards.

    A pass whose class says `takes_layers = True` runs once on each layer. Of others the whole program may depend, as
    on a reshard that several layers share: they see it inlined, and it is outlined again.
    """
    if getattr(made, "takes_layers", False) or not is_outlined(module):
        made.apply(ctx, module)
        return
    assert isinstance(ctx, IRContext)
    inline(module, layers_only=True)
    made.apply(ctx, module)
    outline_layers(module, ctx.rules)
