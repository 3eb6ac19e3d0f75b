"""inline: calls → the bodies of the functions that they call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from spmdir.transforms.layers.inlining import inline


@dataclass(frozen=True)
class InlinePass(ModulePass):
    """Replace each call by the body of the function it calls, and drop private functions that nothing calls any more.

    Shardings that the called function annotates on its arguments and results become constraints. The call of an
    outlined layer is replaced as if it had not been outlined.
    """

    name = "inline"
    takes_layers: ClassVar[bool] = True

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        inline(op)
