"""The one place where passes meet outlined layers: a pass that has to see the whole program sees the layers inlined."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from spmdir.dialects import ir
from spmdir.dialects.context import IRContext
from spmdir.dialects.layer_calls import layer_named
from spmdir.pipeline.base_passes import FunctionPass
from spmdir.transforms.layers.inlining import inline
from spmdir.transforms.layers.outline import outline_layers


def is_outlined(module: ModuleOp) -> bool:
    """Return whether layers of `module` are functions."""
    return any(layer_named(function) is not None for function in ir.functions(module))


class LayerRunner:
    """Runs the passes of one pipeline on a module, and inlines and outlines its layers between them.

    A pass whose class has `takes_layers = True` runs once on each layer. Passes without `takes_layers` see the layers
    inlined, because their result may depend on several layers. After the last of such passes the layers are outlined
    again; passes in between that treat each function by itself see them inlined too.
    """

    def __init__(self, context: Context, module: ModuleOp):
        self._context, self._module, self._is_inlined = context, module, False

    def apply(self, made: ModulePass, following: Sequence[ModulePass]) -> None:
        """Run a pass on the module in place; its layers are outlined after the last pass.

        Args:
            following: the passes that run on it after this one.
        """
        if not _takes_layers(made) and is_outlined(self._module):
            inline(self._module, layers_only=True)
            self._is_inlined = True
        made.apply(self._context, self._module)
        if self._is_inlined and not _stays_inlined(following):
            self._outline(self._module)
            self._is_inlined = False

    def module(self) -> ModuleOp:
        """Return the module with its layers outlined: a copy if they are inlined just now."""
        if not self._is_inlined:
            return self._module
        copy = self._module.clone()
        self._outline(copy)
        return copy

    def _outline(self, module: ModuleOp) -> None:
        assert isinstance(self._context, IRContext)
        outline_layers(module, self._context.rules)


def _takes_layers(step: ModulePass) -> bool:
    return getattr(step, "takes_layers", False)


def _stays_inlined(following: Sequence[ModulePass]) -> bool:
    """Return whether the next pass that does not treat each function by itself sees the whole program."""
    seeing = (step for step in following if not (_takes_layers(step) and isinstance(step, FunctionPass)))
    found = next(seeing, None)
    return found is not None and not _takes_layers(found)
