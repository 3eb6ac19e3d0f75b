"""What became of placements that laws were tried on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attrs

from spmdir.checking.placements.law import Law
from spmdir.checking.placements.time_limit import TooLong
from spmdir.core.errors import SpmdirError
from spmdir.core.html_text import ShownAsText
from spmdir.core.placement.base import Placement


@attrs.frozen
class Unchecked:
    """Something that no example met.

    Attributes:
        law: the name of the law.
        subject: the part of it, such as an edge or a strategy; "" for the law as a whole.
        is_of_class: whether another placement of the class may meet it.
        reason: why it cannot be checked, as the class declares in `unchecked`; None if it does not.
        wanted: as of the law.
    """

    law: str
    subject: str = ""
    is_of_class: bool = False
    reason: str | None = None
    wanted: str = ""

    def __str__(self) -> str:
        return f"law '{self.law}'" + (f" of {self.subject}" if self.subject else "")


def unchecked_of(placement: Placement, law: Law, subjects: Iterable[str]) -> Iterator[Unchecked]:
    """Yield the `subjects` of a law that no example met, each with the reason that the class declares."""
    reasons = type(placement).unchecked
    for subject in subjects:
        named = (law.name, *(name for name in reasons if subject == name or subject.startswith(f"{name}:")))
        reason = next((reasons[name] for name in named if name in reasons), None)
        yield Unchecked(law.name, subject, law.is_of_class, reason, law.wanted)


@attrs.frozen
class Verdict:
    """What became of one placement.

    Attributes:
        placement: its text.
        laws, examples: how many were tried.
        left_out: how many examples were not, since the check was a quick one.
        broken: the first law that is broken, as an error on its first example, at the class or at the line that raised;
            the laws after it build on it and are not tried. None if all hold.
        unmet: what no example met.
        unchecked: what of it the class gives no reason for, as an error; None if there is nothing.
    """

    placement: str
    laws: int
    examples: int
    left_out: int = 0
    broken: SpmdirError | None = None
    unmet: tuple[Unchecked, ...] = ()
    unchecked: SpmdirError | None = None

    @property
    def errors(self) -> tuple[SpmdirError, ...]:
        """Return what is wrong: the broken law, and what was not checked."""
        return tuple(error for error in (self.broken, self.unchecked) if error is not None)

    @property
    def cut_off(self) -> bool:
        """Return whether code did not end, so that torch may have been interrupted and nothing after it is tried."""
        return self.broken is not None and isinstance(self.broken.__cause__, TooLong)

    @property
    def summary(self) -> str:
        """Return how many laws hold, and what the class says cannot be checked."""
        of = f" of {self.examples + self.left_out}" if self.left_out else ""
        lines = [f"{self.placement}: {self.laws} laws hold ({self.examples}{of} examples)"]
        lines += [f"{self.placement}: {one} is not checked: {one.reason}" for one in self.unmet if one.reason]
        return "\n".join(lines)

    def __str__(self) -> str:
        said = [] if self.broken else [self.summary]
        return "\n".join([*said, *map(str, self.errors)])


@attrs.frozen
class PlacementReport(ShownAsText):
    """What became of several placements; its text has a line for each.

    Attributes:
        verdicts: one for each placement.
    """

    verdicts: tuple[Verdict, ...]

    @property
    def broken(self) -> tuple[SpmdirError, ...]:
        return tuple(verdict.broken for verdict in self.verdicts if verdict.broken)

    @property
    def errors(self) -> tuple[SpmdirError, ...]:
        """Return the broken laws, and what was not checked without a reason."""
        return tuple(error for verdict in self.verdicts for error in verdict.errors)

    @property
    def sound(self) -> bool:
        """Return whether all laws were checked, but for those that the class gives a reason for, and hold."""
        return not self.errors

    def __str__(self) -> str:
        return "\n".join(map(str, self.verdicts))
