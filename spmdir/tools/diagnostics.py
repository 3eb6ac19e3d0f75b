"""Check errors and warnings against the comments `expected-error` and `expected-warning`, as in MLIR."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import attrs

from spmdir.core.errors import Location, ParseError, SpmdirError, SpmdirWarning

_EXPECTATION = re.compile(r"expected-(\w+)(?:@([+-][0-9]{1,9}|\w+))?\s*(?:\{\{(.*?)\}\})?")
_SEVERITIES = ("error", "warning")


@attrs.frozen
class Expectation:
    """An error or warning that a comment requires.

    Attributes:
        severity: "error" or "warning".
        line: the line of the diagnostic, counted from 1; None for a diagnostic without a location.
        text: a part of the message.
        comment: the location of the comment.
    """

    severity: str
    line: int | None
    text: str
    comment: Location


def expectations(text: str, file: str, first_line: int = 1) -> Iterator[Expectation]:
    """Yield the expectations in the comments of `text`, which starts on line `first_line` of `file`.

    `expected-error {{part of the message}}` expects the error on the same line. `@+1` and `@-1` count lines from there.
    `@below` and `@above` refer to the nearest line without an expectation, and `@unknown` to no location.

    Raises:
        ParseError: an expectation is malformed.
    """
    lines = list(enumerate(text.splitlines(), first_line))
    plain_lines = [number for number, line in lines if not _EXPECTATION.search(line)]
    for number, line in lines:
        for match in _EXPECTATION.finditer(line):
            severity, where, message = match.groups()
            comment = Location(file, number, match.start() + 1)
            if severity not in _SEVERITIES:
                raise ParseError(
                    f"unknown 'expected-{severity}'; expected `expected-error` or `expected-warning`", comment
                )
            if message is None:
                form = f"expected-{severity} {{{{part of the message}}}}"
                raise ParseError(f"'expected-{severity}' has no text; write `{form}`", comment)
            yield Expectation(severity, _expected_line(where, number, plain_lines, comment), message, comment)


def mismatches(expected: Sequence[Expectation], issued: Sequence[SpmdirError | SpmdirWarning]) -> list[SpmdirError]:
    """Return an error for each expectation without a diagnostic, and for each diagnostic without an expectation."""
    unmatched, errors = list(expected), []
    for diagnostic in issued:
        severity = "error" if isinstance(diagnostic, SpmdirError) else "warning"
        line = diagnostic.location.line if diagnostic.location else None
        at_line = [entry for entry in unmatched if (entry.severity, entry.line) == (severity, line)]
        matches = [entry for entry in at_line if entry.text in diagnostic.message]
        if matches:
            unmatched.remove(matches[0])
        else:
            errors.append(SpmdirError(f"unexpected {severity}: {diagnostic.message}", diagnostic.location))
    for expectation in unmatched:
        place = f"on line {expectation.line}" if expectation.line else "without a location"
        message = f"expected {expectation.severity} '{expectation.text}' {place} was not issued"
        errors.append(SpmdirError(message, expectation.comment))
    return errors


def _expected_line(where: str | None, number: int, plain_lines: Sequence[int], comment: Location) -> int | None:
    """Return the line that the text after `@` names in a comment on line `number`; None for `@unknown`.

    Args:
        plain_lines: the lines without an expectation, in order.
        comment: the location of errors.
    """
    if where is None:
        return number
    if where[0] in "+-":
        return number + int(where)
    if where == "unknown":
        return None
    lines_above = [plain_line for plain_line in plain_lines if plain_line < number]
    lines_below = [plain_line for plain_line in plain_lines if plain_line > number]
    if where == "above" and lines_above:
        return lines_above[-1]
    if where == "below" and lines_below:
        return lines_below[0]
    raise ParseError(f"'@{where}' names no line; expected @+N, @-N, @above, @below or @unknown", comment)
