"""Which nodes of the search's problem give views, whose results hold no memory of their own."""

from __future__ import annotations

from collections.abc import Sequence

from spmdir.rules import OpRule
from spmdir.rules.shapes.views import VIEWS, Strides, contiguous, view_strides
from spmdir.search.problem import Problem


def views_of(problem: Problem, rules: Sequence[OpRule | None]) -> list[bool]:
    """Return, by node, whether its results share the memory of its first operand: it is a view by its strides.

    Args:
        rules: by node, the rule of its op; None where it is no op or has none.
    """
    strides: dict[int, Strides] = {}
    found = []
    for node, rule in zip(problem.nodes, rules, strict=True):
        made = None
        if rule is not None and rule.name in VIEWS:
            first = node.operands[0]
            made = view_strides(rule, strides.get(first) or contiguous(problem.values[first].shape))
            strides.update(zip(node.results, made or (), strict=bool(made)))
        found.append(made is not None)
    return found
