"""inline: replace calls by the bodies of the called functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from spmdir.transforms.layers.inlining import inline


@dataclass(frozen=True)
class InlinePass(ModulePass):
    """Replaces each call by the body of the called function, and removes the private functions that were called.

    Sharding annotations on the arguments and results of the called function become constraints.
    A call of an outlined layer adds no constraints: `inline` reverses `outline-layers`.
    """

    name = "inline"
    takes_layers: ClassVar[bool] = True

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        inline(op)
