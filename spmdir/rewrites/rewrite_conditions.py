"""The conditions that a rewrite may ask of `f`, as in `when f is cheap`: named functions, in one table.

A plug-in in Python declares further ones as it does here:

    @condition("is pointwise")
    def is_pointwise(op, rule):
        return len({meta.shape for meta in (*op.call().operands, *op.metas) if meta}) == 1
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import attrs

from spmdir.core.errors import ParseError, did_you_mean
from spmdir.dialects.aten import AtenOp
from spmdir.rewrites.terms import Rewrite
from spmdir.rules import OpRule

Test = Callable[[AtenOp, OpRule], bool]
"""(The op that `f` stands for, its rule) → whether the condition holds."""


@attrs.frozen
class RewriteCondition:
    """A condition on `f`.

    Attributes:
        name: the words after `f`, two or more letters each.
        test: (the op, its rule) → whether it holds; its docstring says what the condition means.
    """

    name: str
    test: Test

    def __call__(self, op: AtenOp, rule: OpRule) -> bool:
        return self.test(op, rule)


def condition(name: str) -> Callable[[Test], RewriteCondition]:
    """Return a decorator that makes the condition `name` of a test."""
    return lambda test: RewriteCondition(name, test)


@condition("is cheap")
def is_cheap(op: AtenOp, rule: OpRule) -> bool:
    """Return whether `f` has no contraction, which every rank would repeat if `f` moved to a replicated value."""
    return not rule.contracts


@condition("keeps dtype")
def keeps_dtype(op: AtenOp, rule: OpRule) -> bool:
    """Return whether all operands and results have one element type, so that no sum moves to a narrower one."""
    return len({meta.dtype for meta in (*op.call().operands, *op.metas) if meta}) == 1


CONDITIONS: Mapping[str, Test] = {one.name: one for one in (is_cheap, keeps_dtype)}
"""Condition, the words after `f` → its test."""


def check_conditions(rewrites: Iterable[Rewrite], known: Mapping[str, Test]) -> None:
    """Raise ParseError, located, if a rewrite has a condition that is not in `known`."""
    for asked in (asked for rewrite in rewrites for asked in rewrite.conditions):
        if asked.name not in known:
            raise ParseError(
                f"unknown condition 'f {asked.name}'; expected f and one of {', '.join(known)}, or one "
                f"that a plug-in adds with @condition{did_you_mean(asked.name, known)}",
                asked.location,
            )
