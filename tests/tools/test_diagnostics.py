"""`expected-error` comments mean what they mean in MLIR."""

from __future__ import annotations

import pytest

from spmdir.core.errors import Location, ParseError, SpmdirError, SpmdirWarning
from spmdir.tools.diagnostics import expectations, mismatches


def lines_expected(text: str) -> list[int | None]:
    return [expectation.line for expectation in expectations(text, "in.mlir")]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a // expected-error {{m}}", 1),
        ("// expected-error@+1 {{m}}\na", 2),
        ("a\n\n// expected-error@-2 {{m}}", 1),
        ("// expected-error@below {{m}}\n// expected-warning {{other}}\na", 3),
        ("a\n// expected-error {{other}}\n// expected-error@above {{m}}", 1),
        ("// expected-error@unknown {{m}}", None),
    ],
)
def test_an_expectation_names_the_line_that_its_designator_counts_to(text: str, line: int | None) -> None:
    assert line in lines_expected(text)


def test_lines_count_from_the_first_line_of_the_part() -> None:
    [expectation] = expectations("a\n// expected-error@-1 {{m}}", "in.mlir", first_line=10)
    assert (expectation.line, expectation.comment.line) == (10, 11)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("// expected-error@below {{m}}", "'@below' names no line; expected @+N, @-N, @above, @below or @unknown"),
        ("// expected-eror {{m}}", "unknown 'expected-eror'; expected `expected-error` or `expected-warning`"),
        ("// expected-note", "unknown 'expected-note'; expected `expected-error` or `expected-warning`"),
        ("// expected-error@+1 m", "'expected-error' has no text; write `expected-error {{part of the message}}`"),
        ("// expected-warning", "'expected-warning' has no text; write `expected-warning {{part of the message}}`"),
    ],
)
def test_a_malformed_expectation_is_an_error_at_its_place(text: str, message: str) -> None:
    with pytest.raises(ParseError) as error:
        list(expectations(text, "in.mlir"))
    assert (error.value.message, str(error.value.location)) == (message, "in.mlir:1:4")


def test_a_diagnostic_meets_an_expectation_of_its_line_severity_and_text() -> None:
    expected = list(expectations("// expected-error@+1 {{wrong axis}}\na", "in.mlir"))
    assert mismatches(expected, [SpmdirError("a wrong axis 'x'", Location("in.mlir", 2, 7))]) == []


@pytest.mark.parametrize(
    "issued",
    [
        SpmdirError("wrong axis", Location("in.mlir", 3, 1)),
        SpmdirError("another message", Location("in.mlir", 2, 1)),
        SpmdirError("wrong axis"),
        SpmdirWarning("wrong axis", Location("in.mlir", 2, 1)),
    ],
)
def test_another_line_text_or_severity_is_both_unexpected_and_missing(issued: SpmdirError | SpmdirWarning) -> None:
    expected = list(expectations("// expected-error@+1 {{wrong axis}}\na", "in.mlir"))
    unexpected, missing = mismatches(expected, [issued])
    assert unexpected.message.startswith("unexpected ")
    assert missing.message == "expected error 'wrong axis' on line 2 was not issued"


def test_each_expectation_is_met_once() -> None:
    expected = list(expectations("a // expected-error {{m}}", "in.mlir"))
    twice = [SpmdirError("m", Location("in.mlir", 1, 1))] * 2
    assert len(mismatches(expected, twice)) == 1
