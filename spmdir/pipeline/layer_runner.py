"""Run passes on a program with outlined layers, and inline the layers for passes that need the whole program."""

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
    """Return whether `module` has outlined layers."""
    return any(layer_named(function) is not None for function in ir.functions(module))


class LayerRunner:
    """Runs the passes of one pipeline on a module. Inlines and outlines its layers in between.

    A pass with `takes_layers = True` runs once on each outlined layer. For other passes, the layers are inlined,
    because their results may depend on several layers. The layers are outlined again before the next pass that takes
    layers, or after the last pass. A `FunctionPass` that takes layers does not need this: it changes each op
    separately, so it runs on the inlined program if a pass that needs the inlined program follows.
    """

    def __init__(self, context: Context, module: ModuleOp):
        self._context, self._module, self._is_inlined = context, module, False

    def apply(self, pass_: ModulePass, following: Sequence[ModulePass]) -> None:
        """Run a pass on the module in place. After the last pass, its layers are outlined.

        Args:
            following: the passes that run after this one.
        """
        if not _takes_layers(pass_) and is_outlined(self._module):
            inline(self._module, layers_only=True)
            self._is_inlined = True
        pass_.apply(self._context, self._module)
        if self._is_inlined and not _stays_inlined(following):
            self._outline(self._module)
            self._is_inlined = False

    def module(self) -> ModuleOp:
        """Return the module with outlined layers: a copy, if the layers are currently inlined."""
        if not self._is_inlined:
            return self._module
        copy = self._module.clone()
        self._outline(copy)
        return copy

    def _outline(self, module: ModuleOp) -> None:
        assert isinstance(self._context, IRContext)
        outline_layers(module, self._context.rules)


def _takes_layers(pass_: ModulePass) -> bool:
    return getattr(pass_, "takes_layers", False)


def _stays_inlined(following: Sequence[ModulePass]) -> bool:
    """Return whether layers stay inlined for the `following` passes: a later pass needs that before any needs layers.

    A `FunctionPass` with `takes_layers` needs neither form, and is skipped.
    """
    other_passes = (step for step in following if not (_takes_layers(step) and isinstance(step, FunctionPass)))
    next_pass = next(other_passes, None)
    return next_pass is not None and not _takes_layers(next_pass)
