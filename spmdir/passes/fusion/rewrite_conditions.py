"""The conditions that a rewrite may ask of `f`, as in `when f is cheap`: a table of named functions.

A plug-in adds conditions to those of a context:

    def is_pointwise(op, rule):
        \"\"\"Return whether all operands and results have one shape.\"\"\"
        return len({meta.shape for meta in (*op.call().operands, *op.metas) if meta}) == 1

    def register(context):
        context.conditions["is pointwise"] = is_pointwise
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from spmdir.core.errors import ParseError, did_you_mean
from spmdir.dialects.aten import AtenOp
from spmdir.passes.fusion.terms import Rewrite
from spmdir.rules import OpRule

Test = Callable[[AtenOp, OpRule], bool]
"""(The op that `f` stands for, its rule) → whether the condition holds."""


def is_cheap(op: AtenOp, rule: OpRule) -> bool:
    """Return whether `f` has no contraction, which every rank would repeat if `f` moved to a replicated value."""
    return not rule.flops


def keeps_dtype(op: AtenOp, rule: OpRule) -> bool:
    """Return whether all operands and results have one element type, so that no sum moves to a narrower one."""
    return len({meta.dtype for meta in (*op.call().operands, *op.metas) if meta}) == 1


CONDITIONS: Mapping[str, Test] = {"is cheap": is_cheap, "keeps dtype": keeps_dtype}
"""Condition, the words after `f` → its test."""


def check_conditions(rewrites: Iterable[Rewrite], known: Mapping[str, Test]) -> None:
    """Raise ParseError, located, if a rewrite has a condition that is not in `known`."""
    for condition in (condition for rewrite in rewrites for condition in rewrite.conditions):
        if condition.name not in known:
            raise ParseError(
                f"unknown condition 'f {condition.name}'; expected f and one of {', '.join(known)}, or one "
                f"that a plug-in adds by context.conditions[name] = function{did_you_mean(condition.name, known)}",
                condition.location,
            )
