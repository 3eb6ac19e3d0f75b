"""`expected-error` and `expected-warning` comments, with MLIR's meaning, and their check against what was issued."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import attrs

from spmdir.core.errors import Location, ParseError, SpmdirError, SpmdirWarning

_EXPECTATION = re.compile(r"expected-(\w+)(?:@([+-][0-9]{1,9}|\w+))?\s*(?:\{\{(.*?)\}\})?")
_SEVERITIES = ("error", "warning")


@attrs.frozen
class Expectation:
    """A diagnostic that a comment asks for.

    Attributes:
        severity: "error" or "warning".
        line: the 1-based line it must stand on; None for a diagnostic without a location.
        text: must be part of the message.
        comment: where the comment stands.
    """

    severity: str
    line: int | None
    text: str
    comment: Location


def expectations(text: str, file: str, first_line: int = 1) -> Iterator[Expectation]:
    """Yield the expectations in the comments of `text`, which begins on `first_line` of `file`.

    `expected-error {{part of the message}}` means its own line; `@+1` and `@-1` count lines from it,
    `@below` and `@above` mean the nearest line without an expectation, `@unknown` no line at all.

    Raises:
        ParseError: an expectation is malformed.
    """
    lines = list(enumerate(text.splitlines(), first_line))
    plain = [number for number, line in lines if not _EXPECTATION.search(line)]
    for number, line in lines:
        for match in _EXPECTATION.finditer(line):
            severity, where, message = match.groups()
            comment = Location(file, number, match.start() + 1)
            if severity not in _SEVERITIES or message is None:
                raise ParseError(f"'{match[0]}' expects nothing; write `expected-error {{{{part of it}}}}`", comment)
            yield Expectation(severity, _line(where, number, plain, comment), message, comment)


def mismatches(expected: Sequence[Expectation], issued: Sequence[SpmdirError | SpmdirWarning]) -> list[SpmdirError]:
    """Return an error for each expectation that nothing meets and each issued diagnostic that nothing expects."""
    open_expectations, errors = list(expected), []
    for diagnostic in issued:
        severity = "error" if isinstance(diagnostic, SpmdirError) else "warning"
        line = diagnostic.location.line if diagnostic.location else None
        met = [
            e for e in open_expectations if e.severity == severity and e.line == line and e.text in diagnostic.message
        ]
        if met:
            open_expectations.remove(met[0])
        else:
            errors.append(SpmdirError(f"unexpected {severity}: {diagnostic.message}", diagnostic.location))
    for left in open_expectations:
        place = f"on line {left.line}" if left.line else "without a location"
        errors.append(SpmdirError(f"expected {left.severity} '{left.text}' {place} was not issued", left.comment))
    return errors


def _line(where: str | None, number: int, plain: Sequence[int], comment: Location) -> int | None:
    if where is None:
        return number
    if where[0] in "+-":
        return number + int(where)
    if where == "unknown":
        return None
    candidates = {"above": [n for n in reversed(plain) if n < number], "below": [n for n in plain if n > number]}
    if not candidates.get(where):
        raise ParseError(f"'@{where}' names no line; expected @+N, @-N, @above, @below or @unknown", comment)
    return candidates[where][0]
