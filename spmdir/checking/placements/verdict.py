"""The results of checking the laws of placements."""

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
    """A part of a law that no example met.

    Attributes:
        law: the name of the law.
        subject: the part, such as an edge or a strategy; "" for the law as a whole.
        is_of_class: whether another placement of the class may meet it.
        reason: the reason in the class's `unchecked` why it cannot be checked; None if there is none.
        wanted: the remedy, see `Law`.
    """

    law: str
    subject: str = ""
    is_of_class: bool = False
    reason: str | None = None
    wanted: str = ""

    def __str__(self) -> str:
        return f"law '{self.law}'" + (f" of {self.subject}" if self.subject else "")


def unchecked_of(placement: Placement, law: Law, subjects: Iterable[str]) -> Iterator[Unchecked]:
    """Yield an entry for each unmet subject of a law, with the reason that the class declares."""
    reasons = type(placement).unchecked
    for subject in subjects:
        named = (law.name, *(name for name in reasons if subject == name or subject.startswith(f"{name}:")))
        reason = next((reasons[name] for name in named if name in reasons), None)
        yield Unchecked(law.name, subject, law.is_of_class, reason, law.wanted)


@attrs.frozen
class Verdict:
    """The result of checking one placement.

    Attributes:
        placement: the placement as text.
        laws, examples: the numbers of laws and examples that were tried.
        left_out: the number of examples that a quick check omitted.
        broken: the error of the first violation, at the line that failed or at the class; None if all laws hold. Later
            laws depend on earlier ones, so they are not tried.
        unmet: the parts of laws that no example met.
        unchecked: the error for those of them without a reason; None if there are none.
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
        """The errors of the broken law and of unchecked parts."""
        return tuple(error for error in (self.broken, self.unchecked) if error is not None)

    @property
    def cut_off(self) -> bool:
        """Whether an example exceeded the time limit. Torch may have been interrupted, so the check ends."""
        return self.broken is not None and isinstance(self.broken.__cause__, TooLong)

    @property
    def summary(self) -> str:
        """The number of laws that hold, and the unchecked parts with their reasons, as text."""
        of = f" of {self.examples + self.left_out}" if self.left_out else ""
        lines = [f"{self.placement}: {self.laws} laws hold ({self.examples}{of} examples)"]
        lines += [f"{self.placement}: {entry} is not checked: {entry.reason}" for entry in self.unmet if entry.reason]
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
        """The errors of broken laws, and of unchecked parts without a reason."""
        return tuple(error for verdict in self.verdicts for error in verdict.errors)

    @property
    def sound(self) -> bool:
        """Whether all laws hold and were checked, except those with a reason in the class."""
        return not self.errors

    def __str__(self) -> str:
        return "\n".join(map(str, self.verdicts))
