"""Why an op does not offer a strategy.

The functions that drop strategies return reasons, which become text only when they are printed.
"""

from __future__ import annotations

import attrs

from spmdir.core.errors import Location
from spmdir.core.placement.base import ShardPlacement
from spmdir.core.placement.standard import Placement
from spmdir.rules.shapes.instance import RuleInstance


@attrs.frozen(eq=False)
class Place:
    """Where a rule has the clause of one of `kinds` about `factor` that counts; looked for when printed."""

    rule: RuleInstance
    kinds: tuple[str, ...]
    factor: int

    def __str__(self) -> str:
        clauses = self.rule.active(*self.kinds)
        said = [c for c in clauses if any(self.factor in self.rule.layout.refer(name) for name in c.names)]
        return str(said[-1].location if said else self.rule.rule.location)


@attrs.frozen(eq=False)
class Obstacle:
    """Why a strategy is left out.

    Attributes:
        message: may hold `{}` for each of `values`.
        location: of what says so, where something does.
    """

    message: str
    values: tuple[object, ...] = ()
    location: Location | Place | None = None

    def __str__(self) -> str:
        text = self.message.format(*self.values)
        return f"{text} ({self.location})" if self.location else text


@attrs.frozen(eq=False)
class Dropped:
    """A strategy that an op does not offer.

    Attributes:
        rule: of the op.
        what: the placement, of dimension 0 if it shards `factor`; or a strategy, as it was declared.
        factor: the factor that it would shard.
        reason: why not.
    """

    rule: RuleInstance
    what: object
    factor: int | None
    reason: Obstacle

    @property
    def placement(self) -> Placement | None:
        """Return the placement that is left out; None where it is a strategy of several."""
        return self.what if isinstance(self.what, Placement) else None

    def __str__(self) -> str:
        return f"no {self._subject()}: {self.reason}"

    def __repr__(self) -> str:
        return f"<Dropped: {self}>"

    def _subject(self) -> str:
        if self.factor is None or not isinstance(self.what, ShardPlacement):
            return str(self.what)
        return str(self.what).replace("(0", f"({self.rule.factors[self.factor].name}", 1)
