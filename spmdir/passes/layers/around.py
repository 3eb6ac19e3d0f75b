"""The one place where passes meet outlined layers: a pass that has to see the whole program sees the layers inlined."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from spmdir.dialects import ir
from spmdir.dialects.layer_calls import is_inlined, layer_named, note_inlined
from spmdir.dialects.syntax.context import IRContext
from spmdir.passes.inline import inline
from spmdir.passes.layers.outline import outline_layers
from spmdir.passes.preconditions import FunctionPass


def is_outlined(module: ModuleOp) -> bool:
    """Return whether layers of `module` are functions."""
    return any(layer_named(function) is not None for function in ir.functions(module))


def apply(made: ModulePass, following: Sequence[ModulePass], ctx: Context, module: ModuleOp) -> None:
    """Run a pass on `module` in place; layers that are outlined are so after the last one.

    A pass whose class says `takes_layers = True` runs once on each layer. Of others the whole program may depend, as
    on a reshard that several layers share: they see it inlined. It is outlined again behind the last of those that
    follow each other; passes between them that treat each function by itself see it inlined too.

    Args:
        following: the passes that run on it after this one.
    """
    if not _takes_layers(made) and is_outlined(module):
        inline(module, layers_only=True)
        note_inlined(module, True)
    made.apply(ctx, module)
    if is_inlined(module) and not _stays_inlined(following):
        assert isinstance(ctx, IRContext)
        outline_layers(module, ctx.rules)
        note_inlined(module, False)


def _takes_layers(step: ModulePass) -> bool:
    return getattr(step, "takes_layers", False)


def _stays_inlined(following: Sequence[ModulePass]) -> bool:
    """Return whether the next pass that does not treat each function by itself sees the whole program."""
    seeing = (step for step in following if not (_takes_layers(step) and isinstance(step, FunctionPass)))
    found = next(seeing, None)
    return found is not None and not _takes_layers(found)
