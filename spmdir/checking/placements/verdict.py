"""Report the results of a check of placements: verdicts, and laws without an example."""

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
    """A part of a law without an example.

    Attributes:
        law: the name of the law.
        subject: the part, such as an edge or a strategy; "" for the entire law.
        is_of_class: whether an example of another placement of the class suffices.
        reason: the reason in the class's `unchecked` why it cannot be checked; None if there is none.
        remedy: the remedy, as in `Law`.
    """

    law: str
    subject: str = ""
    is_of_class: bool = False
    reason: str | None = None
    remedy: str = ""

    def __str__(self) -> str:
        return f"law '{self.law}'" + (f" of {self.subject}" if self.subject else "")


def unchecked_entries(placement: Placement, law: Law, subjects: Iterable[str]) -> Iterator[Unchecked]:
    """Yield an entry for each of `subjects` of a law, with the reason that the class declares."""
    reasons = type(placement).unchecked
    for subject in subjects:
        keys = (law.name, *(key for key in reasons if subject == key or subject.startswith(f"{key}:")))
        reason = next((reasons[key] for key in keys if key in reasons), None)
        yield Unchecked(law.name, subject, law.is_of_class, reason, law.remedy)


@attrs.frozen
class Verdict:
    """The result of checking one placement.

    Attributes:
        placement: the placement as text.
        laws, examples: the numbers of laws and examples that were checked.
        omitted: the number of examples that a quick check omitted.
        broken: the error of the first violation, at the line that failed or at the class; None if all laws hold. Later
            laws depend on earlier ones, so they are not checked.
        uncovered: the parts of laws without an example.
        unchecked: the error for entries of `uncovered` without a reason; None if there are none.
    """

    placement: str
    laws: int
    examples: int
    omitted: int = 0
    broken: SpmdirError | None = None
    uncovered: tuple[Unchecked, ...] = ()
    unchecked: SpmdirError | None = None

    @property
    def errors(self) -> tuple[SpmdirError, ...]:
        """The errors of the broken law and of laws without an example."""
        return tuple(error for error in (self.broken, self.unchecked) if error is not None)

    @property
    def is_cut_off(self) -> bool:
        """Whether an example exceeded the time limit. It may have interrupted torch, so the check must end."""
        return self.broken is not None and isinstance(self.broken.__cause__, TooLong)

    @property
    def summary(self) -> str:
        """The number of laws that hold, and the unchecked parts with their reasons, as text."""
        total = f" of {self.examples + self.omitted}" if self.omitted else ""
        lines = [f"{self.placement}: {self.laws} laws hold ({self.examples}{total} examples)"]
        lines += [
            f"{self.placement}: {entry} is not checked: {entry.reason}" for entry in self.uncovered if entry.reason
        ]
        return "\n".join(lines)

    def __str__(self) -> str:
        lines = [] if self.broken else [self.summary]
        return "\n".join([*lines, *map(str, self.errors)])


@attrs.frozen
class PlacementReport(ShownAsText):
    """The results of checking several placements. Its text has a line for each.

    Attributes:
        verdicts: one verdict for each placement.
    """

    verdicts: tuple[Verdict, ...]

    @property
    def broken(self) -> tuple[SpmdirError, ...]:
        return tuple(verdict.broken for verdict in self.verdicts if verdict.broken)

    @property
    def errors(self) -> tuple[SpmdirError, ...]:
        """The errors of broken laws, and of laws without an example or a reason."""
        return tuple(error for verdict in self.verdicts for error in verdict.errors)

    @property
    def sound(self) -> bool:
        """Whether all laws hold, and each was checked or has a reason in the class."""
        return not self.errors

    def __str__(self) -> str:
        return "\n".join(map(str, self.verdicts))
