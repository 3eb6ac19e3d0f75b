"""fold-experts: replace the ops of a mixture of experts by ops whose rows can be dispatched to the ranks of experts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from spmdir.dialects.context import IRContext
from spmdir.pipeline.base_passes import FunctionPass
from spmdir.rewrites.op_rewrite_text import EXPERTS, OpRewrite, load_op_rewrites
from spmdir.rewrites.op_rewrites import apply_op_rewrites


@cache
def _rewrites() -> tuple[OpRewrite, ...]:
    return load_op_rewrites(EXPERTS)


@dataclass(frozen=True)
class FoldExpertsPass(FunctionPass):
    """Replaces the ops of a mixture of experts by `experts` ops: routes, sorted rows and grouped products."""

    name = "fold-experts"

    needs_numbers: ClassVar = False

    def run_on_function(self, ctx: IRContext, module: ModuleOp, function: FuncOp) -> None:
        apply_op_rewrites(function.body.block, _rewrites(), ctx.rules)
