"""The rule of every op, written beside it."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.passes import ModulePass

from spmdir.dialects.aten import AtenOp
from spmdir.dialects.syntax.context import IRContext
from spmdir.passes.preconditions import global_function
from spmdir.passes.type_check.type_check import rule_of


@dataclass(frozen=True)
class PrintRulesPass(ModulePass):
    """Notes on every op, as `spmd.rule`, its rule with its own factors and their sizes."""

    name = "print-rules"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        assert isinstance(ctx, IRContext)
        for child in global_function(op, self.name).body.block.ops:
            if isinstance(child, AtenOp):
                child.attributes["spmd.rule"] = StringAttr(_rule_text(child, ctx))


def _rule_text(op: AtenOp, ctx: IRContext) -> str:
    rule = rule_of(op, ctx.rules)
    return rule.text() if rule else "none: replicated only"
