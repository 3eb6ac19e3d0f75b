"""Literal arguments: what a text reads as, its canonical text, and where malformed text is wrong."""

from __future__ import annotations

import math

import pytest

from spmdir.core.dtype import DTYPES
from spmdir.core.placement.base import parse_placement
from spmdir.core.placement.call import Literal, Local, SizeOperand
from spmdir.core.placement.literals import LiteralError, parse_arguments, print_arguments, print_literal


def read(text: str) -> Literal:
    return dict(parse_arguments("{x = " + text + "}"))["x"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("-3", -3),
        ("1.0", 1.0),
        ("1.0e-05", 1e-05),
        ("-inf", -math.inf),
        ("complex(1.0, -2.0)", 1 - 2j),
        ("true", True),
        ("none", None),
        ("f32", DTYPES["f32"]),
        ('"a \\"b\\" %0"', 'a "b" %0'),
        ("[]", ()),
        ("[1, [2.0, none]]", (1, (2.0, None))),
        ("%2", SizeOperand(2)),
        ("size(10, dp)", Local("size", 10, ("dp",))),
        ("size(10, dp) * 4 - 1", Local("size", 10, ("dp",), 4, -1)),
        ("offset(8, dp: S(0), tp: S(0))", Local("offset", 8, ("dp", "tp"), 1, 0, (parse_placement("S(0)"),) * 2)),
    ],
)
def test_a_literal_reads_as_its_value_and_prints_as_its_text(text: str, value: Literal) -> None:
    assert read(text) == value
    assert type(read(text)) is type(value)
    assert print_literal(value) == text


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("1e3", "1000.0"),
        ("2.", "2.0"),
        ("1e+30", "1.0e+30"),
        ("[1,2 , 3]", "[1, 2, 3]"),
        ("size( 10 ,dp )*1+0", "size(10, dp)"),
    ],
)
def test_other_spellings_print_canonically(text: str, canonical: str) -> None:
    assert print_literal(read(text)) == canonical


def test_arguments_are_sorted_by_name() -> None:
    arguments = parse_arguments('{size = [1], dim = 0, approximate = "none"}')
    assert print_arguments(arguments) == '{approximate = "none", dim = 0, size = [1]}'
    assert print_arguments(parse_arguments("{}")) == "{}"


@pytest.mark.parametrize(
    ("text", "at", "message"),
    [
        ("{x = }", "}", "expected a literal"),
        ("{x = bare}", "bare", 'write "bare" if a string is meant'),
        ("{x 1}", "1}", "found '1', expected '='"),
        ("{1 = 1}", "1 =", "expected an argument name"),
        ("{x = [1 2]}", "2]", "found '2', expected ','"),
        ("{x = 1, x = 2}", "x = 2", "argument 'x' is given twice"),
        ("{x = 1", "", "found the end, expected ','"),
        ("{x = complex(1)}", "complex", "complex(real, imaginary)"),
        ("{x = size(dp)}", "size", "expected size(extent, axis"),
        ("{x = size(8, tp: P(sum))}", "size", "that shard a dimension, as in size(8, tp: S(0))"),
        ("{x = @}", "@", "found '@'"),
    ],
)
def test_malformed_text_is_an_error_at_its_place(text: str, at: str, message: str) -> None:
    with pytest.raises(LiteralError) as caught:
        parse_arguments(text)
    assert message in str(caught.value)
    assert caught.value.offset == (text.index(at) if at else len(text))
