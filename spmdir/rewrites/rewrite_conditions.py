"""The conditions on `f` in rewrites, such as `when f is cheap`: a table of named functions.

A Python plug-in declares further conditions in the same way:

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
"""(op of `f`, its rule) → whether the condition holds."""


@attrs.frozen
class RewriteCondition:
    """A condition on `f`.

    Attributes:
        name: the words after `f`, two or more letters each.
        test: (op, its rule) → whether the condition holds. Its docstring describes the condition.
    """

    name: str
    test: Test

    def __call__(self, op: AtenOp, rule: OpRule) -> bool:
        return self.test(op, rule)


def condition(name: str) -> Callable[[Test], RewriteCondition]:
    """Return a decorator that turns a test into the condition `name`."""
    return lambda test: RewriteCondition(name, test)


@condition("is cheap")
def is_cheap(op: AtenOp, rule: OpRule) -> bool:
    """Return whether `f` has no contraction. On a replicated value, every rank would repeat the contraction."""
    return not rule.contracts


@condition("keeps dtype")
def keeps_dtype(op: AtenOp, rule: OpRule) -> bool:
    """Return whether all operands and results have one element type. Then no sum moves to a narrower type."""
    return len({meta.dtype for meta in (*op.call().operands, *op.metas) if meta}) == 1


CONDITIONS: Mapping[str, Test] = {condition.name: condition for condition in (is_cheap, keeps_dtype)}
"""The words after `f` → the test of the condition."""


def check_conditions(rewrites: Iterable[Rewrite], tests: Mapping[str, Test]) -> None:
    """Raise ParseError, located, if a rewrite has a condition that is not in `tests`."""
    for condition in (condition for rewrite in rewrites for condition in rewrite.conditions):
        if condition.name not in tests:
            raise ParseError(
                f"unknown condition 'f {condition.name}'; expected f and one of {', '.join(tests)}, or a "
                f"condition that a plug-in adds with @condition{did_you_mean(condition.name, tests)}",
                condition.location,
            )
