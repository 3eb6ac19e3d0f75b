"""The outcome of a match of a rewrite: applied, or the reasons why not. It is printed as a remark at the op."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from xdsl.ir import SSAValue

from spmdir.core.errors import Location, remark_text
from spmdir.dialects.locations import location_of
from spmdir.dialects.names import full_name, is_number
from spmdir.dialects.value_op import ValueOp
from spmdir.rewrites.benefit import RewriteCost

REASONS_SHOWN = 3
"""The largest number of reasons in a remark."""

_LABELS = ("wire bytes", "collectives", "bytes touched", "ops", "microseconds")


@attrs.frozen
class Attempt:
    """A rewrite at one op that matches its left side.

    Attributes:
        rewrite: the name of the rewrite.
        root: the op, such as `%y = spmd.slice`.
        location: the location of the op; None if it has none.
        applied: whether the op was replaced.
        before: the cost of the removed ops; None if no replacement type-checks, or a condition fails.
        after: the cost of the new ops, or None as for `before`.
        reasons: if `before` is None, the conditions that fail and the ops that do not type-check.
    """

    rewrite: str
    root: str
    location: Location | None
    applied: bool
    before: RewriteCost | None
    after: RewriteCost | None
    reasons: tuple[str, ...] = ()

    def __str__(self) -> str:
        outcome = "applied" if self.applied else "does not pay"
        text = f"{outcome}: {_costs(self.before, self.after)}" if self.before and self.after else self._reasons()
        return remark_text(f"{self.rewrite} at {self.root}: {text}", self.location)

    def _reasons(self) -> str:
        """Return the first `REASONS_SHOWN` reasons, and the number of further ones."""
        hidden_count = len(self.reasons) - REASONS_SHOWN
        return "; or ".join(self.reasons[:REASONS_SHOWN]) + (f"; and {hidden_count} more" if hidden_count > 0 else "")


def attempt_of(
    rewrite: str,
    root: ValueOp,
    applied: bool,
    costs: tuple[RewriteCost, RewriteCost] | None,
    reasons: Sequence[str],
) -> Attempt:
    """Return the attempt of `rewrite` at `root`.

    Args:
        costs: the costs before and after; None if no replacement was built.
        reasons: the reasons why replacements were not built. They are left out if there are costs.
        applied: whether `root` was replaced.
    """
    before, after = costs or (None, None)
    shown = () if costs else tuple(dict.fromkeys(reasons))
    results = ", ".join(map(_name, root.results))
    return Attempt(rewrite, f"{results} = {root.name}", location_of(root), applied, before, after, shown)


def _name(value: SSAValue) -> str:
    """Return the name of a value as programs print it: %0 for the value with the number name `_0`."""
    name = full_name(value) or "?"
    return f"%{name[1:] if is_number(name) else name}"


def _costs(before: RewriteCost, after: RewriteCost) -> str:
    """Return the text of both costs. Their fields are compared in this order."""
    sides = ((*cost[:-1], cost.seconds * 1e6) for cost in (before, after))
    return ", ".join(f"{label} {old:g} → {new:g}" for label, old, new in zip(_LABELS, *sides, strict=True))
