"""The rule of every op, written beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp

from spmdir.dialects.aten import AtenOp
from spmdir.dialects.syntax.context import IRContext
from spmdir.passes.preconditions import FunctionPass
from spmdir.passes.type_check.type_check import rule_of


@dataclass(frozen=True)
class PrintRulesPass(FunctionPass):
    """Notes on every op, as `spmd.rule`, its rule with its own factors and their sizes."""

    name = "print-rules"

    needs_numbers: ClassVar = False

    def run_on_function(self, ctx: IRContext, module: ModuleOp, function: FuncOp) -> None:
        for child in function.body.block.ops:
            if isinstance(child, AtenOp):
                child.attributes["spmd.rule"] = StringAttr(_rule_text(child, ctx))


def _rule_text(op: AtenOp, ctx: IRContext) -> str:
    rule = rule_of(op, ctx.rules)
    return rule.text() if rule else "none: replicated only"
