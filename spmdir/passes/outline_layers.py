"""outline-layers: replace equal layers by calls of one function."""

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
    """Replaces parts of the program that repeat, such as the layers of a model, by calls of one function.

    `inline` reverses this. A layer that differs becomes a separate function, with its number in the name.
    """

    name = "outline-layers"
    takes_layers: ClassVar[bool] = True

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        assert isinstance(ctx, IRContext)
        outline_layers(op, ctx.rules)
