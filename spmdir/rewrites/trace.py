"""What became of a match of a rewrite: applied, or why not. Printed as a remark at the op."""

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
"""How many reasons a remark lists."""

_LABELS = ("wire bytes", "collectives", "bytes touched", "ops", "microseconds")


@attrs.frozen
class Attempt:
    """One rewrite tried at one op whose form is that of its left side.

    Attributes:
        rewrite: the name of the rewrite.
        root: the op, as `%y = spmd.slice`.
        location: where the op stands; None if nowhere in a text.
        applied: whether the op was replaced.
        before: what the ops that go cost; None if nothing type-checks or a condition fails.
        after: what the ops that come cost; likewise.
        reasons: the conditions that fail and the ops that do not type-check, where `before` is None.
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
        more = len(self.reasons) - REASONS_SHOWN
        return "; or ".join(self.reasons[:REASONS_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def attempt_of(
    rewrite: str,
    root: ValueOp,
    applied: bool,
    costs: tuple[RewriteCost, RewriteCost] | None,
    reasons: Sequence[str],
) -> Attempt:
    """Return the attempt of `rewrite` at `root`; `costs` are those before and after."""
    before, after = costs or (None, None)
    shown = () if costs else tuple(dict.fromkeys(reasons))
    results = ", ".join(map(_name, root.results))
    return Attempt(rewrite, f"{results} = {root.name}", location_of(root), applied, before, after, shown)


def _name(value: SSAValue) -> str:
    name = full_name(value) or "?"
    return f"%{name[1:] if is_number(name) else name}"


def _costs(before: RewriteCost, after: RewriteCost) -> str:
    """Return the costs before and after, the one that decides first told by its place: they compare in order."""
    sides = ((*cost[:-1], cost.seconds * 1e6) for cost in (before, after))
    return ", ".join(f"{label} {a:g} → {b:g}" for label, a, b in zip(_LABELS, *sides, strict=True))
