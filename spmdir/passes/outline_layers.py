"""outline-layers: equal layers → functions, and calls of these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from spmdir.dialects.context import IRContext
from spmdir.transforms.layers.outline import outline_layers


@dataclass(frozen=True)
class OutlineLayersPass(ModulePass):
    """Makes a function of each layer that is there more than once, forward and backward, with calls in their places.

    `inline` undoes it. A layer that differs from the others is a function of its own, whose name says which it is.
    """

    name = "outline-layers"
    takes_layers: ClassVar[bool] = True

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        assert isinstance(ctx, IRContext)
        outline_layers(op, ctx.rules)
