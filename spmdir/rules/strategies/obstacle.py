"""Reasons why an op does not offer a strategy.

Functions that omit strategies return a reason as a value. The text is only built if it is printed.
"""

from __future__ import annotations

import attrs

from spmdir.core.errors import Location
from spmdir.core.placement.shards import ShardPlacement
from spmdir.core.placement.standard import Placement
from spmdir.rules.shapes.instance import RuleInstance


@attrs.frozen(eq=False)
class ClauseLocation:
    """The location of the last active clause of `kinds` that names `factor`; found when it is printed."""

    rule: RuleInstance
    kinds: tuple[str, ...]
    factor: int

    def __str__(self) -> str:
        clauses = self.rule.active(*self.kinds)
        refer = self.rule.layout.refer
        matching = [clause for clause in clauses if any(self.factor in refer(name) for name in clause.names)]
        return str(matching[-1].location if matching else self.rule.rule.location)


@attrs.frozen(eq=False)
class Obstacle:
    """The reason why a strategy is omitted.

    Attributes:
        message: a text with one `{}` for each of `values`.
        location: the clause or statement that excludes the strategy, if there is one.
    """

    message: str
    values: tuple[object, ...] = ()
    location: Location | ClauseLocation | None = None

    def __str__(self) -> str:
        text = self.message.format(*self.values)
        return f"{text} ({self.location})" if self.location else text


@attrs.frozen(eq=False)
class Dropped:
    """A strategy that an op does not offer.

    Attributes:
        rule: the rule of the op.
        subject: the omitted placement, with `dim` 0 if it shards `factor`; or the omitted strategy as it was declared.
        factor: the factor that the strategy would shard.
        reason: why it is omitted.
    """

    rule: RuleInstance
    subject: object
    factor: int | None
    reason: Obstacle

    @property
    def placement(self) -> Placement | None:
        """The omitted placement; None if a whole strategy was omitted."""
        return self.subject if isinstance(self.subject, Placement) else None

    def __str__(self) -> str:
        return f"no {self._subject_text()}: {self.reason}"

    def __repr__(self) -> str:
        return f"<Dropped: {self}>"

    def _subject_text(self) -> str:
        """Return the subject as text: for a shard, with the name of the factor, as `S(k)`."""
        if self.factor is None or not isinstance(self.subject, ShardPlacement):
            return str(self.subject)
        # The `dim` 0 of the placement stands for the dimension of the factor, so the name of the factor replaces it.
        return str(self.subject).replace("(0", f"({self.rule.factors[self.factor].name}", 1)
