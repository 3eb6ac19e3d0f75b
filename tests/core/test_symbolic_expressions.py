"""Sizes as values: their one form, their text, and what they are where symbols have numbers."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spmdir.core.errors import SpmdirError
from spmdir.core.symbolic.conditions import condition, equality
from spmdir.core.symbolic.expressions import apply, evaluate, product, symbol, symbols
from spmdir.core.symbolic.parser import parse_condition, parse_number
from spmdir.core.symbolic.symbols import Sizes, Symbol, solve

A, B = symbol("s0"), symbol("s1")

leaves = st.sampled_from(["s0", "s1", "s2", "1", "2", "3", "4", "7"])
expressions = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(lambda a, op, b: f"({a} {op} {b})", inner, st.sampled_from(["+", "-", "*", "//", "%"]), inner),
        st.builds(lambda name, a, b: f"{name}({a}, {b})", st.sampled_from(["max", "min"]), inner, inner),
    ),
    max_leaves=6,
)
sizes = st.fixed_dictionaries({name: st.integers(1, 20) for name in ("s0", "s1", "s2")})


@given(expressions, sizes)
def test_an_expression_has_the_value_that_python_gives_it(text: str, known: dict[str, int]):
    try:
        expected = eval(text, {"max": max, "min": min}, known)
    except ZeroDivisionError:
        return
    try:
        found = parse_number(text)
    except SpmdirError:
        return  # divides by what is zero at all sizes
    assert evaluate(found, known) == expected


@given(expressions)
def test_the_text_of_an_expression_is_read_as_the_same_expression(text: str):
    try:
        found = parse_number(text)
    except SpmdirError:
        return
    assert parse_number(str(found)) == found


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("s0 + s1", "s1 + s0"),
        ("2*(s0 + 3) - 6", "s0*2"),
        ("(s0 + 1)**2", "s0*s0 + 2*s0 + 1"),
        ("(4*s0 + 2) // 4", "s0"),
        ("(4*s0 + 5) % 4", "1"),
        ("s0*s1 // s1", "s0"),
        ("s0*s0 // (2*s0)", "s0 // 2"),
        ("(s0*s1) % (3*s1)", "s1*(s0 % 3)"),
        ("max(s0, s0 + 2)", "s0 + 2"),
        ("min(s1, s0)", "min(s0, s1)"),
        ("s0 - s0", "0"),
    ],
)
def test_equal_sizes_have_one_form(one: str, other: str):
    assert parse_number(one) == parse_number(other)
    assert str(parse_number(one)) == str(parse_number(other))


def test_floats_are_computed_in_the_order_in_which_they_are_written():
    found = parse_number("0.1 + s0 / 3 * 0.7")
    assert evaluate(found, {"s0": 7}) == 0.1 + 7 / 3 * 0.7
    assert evaluate(parse_number("1 / sqrt(s0*s1)"), {"s0": 5, "s1": 3}) == 1 / math.sqrt(15)
    assert evaluate(parse_number("trunc(1.5 * float(s0))"), {"s0": 5}) == 7
    assert parse_number(str(found)) == found


def test_sizes_that_are_known_take_part_and_others_stay():
    assert evaluate(2 * A * B + 1, {"s0": 3}) == 6 * B + 1
    assert symbols(parse_number("max(s0, 2)*s3 + 1")) == ("s0", "s3")
    assert product([A, 2, B]) == 2 * A * B


@pytest.mark.parametrize("text", ["s0 +", "s0.x", "open('x')", "s0 if s0 else 1", "'s0'", "2 // 0", "2**4000", "[s0]"])
def test_what_is_not_a_size_is_rejected(text: str):
    with pytest.raises(SpmdirError):
        parse_number(text)


def test_conditions_have_one_form_and_hold_or_do_not():
    assert str(condition(A, "<=", B)) == "s1 >= s0" == str(parse_condition("s0 <= s1"))
    assert parse_condition("s0 % 4 == 0").holds({"s0": 8})
    assert not parse_condition("s0 % 4 == 0").holds({"s0": 6})
    assert parse_condition("s0 > s1").holds({"s0": 6}) is None
    assert parse_condition("s0 == s0").holds({})
    assert str(equality(A * A * B, 2 * A * B)) == "s0 == 2"
    with pytest.raises(SpmdirError, match="is not a condition"):
        parse_condition("s0 + 1")


def test_a_shape_tells_the_sizes_it_is_made_of():
    known: dict[str, int] = {}
    solve(known, (A, 2 * B + 1, 7), (4, 11, 7), "x")
    assert known == {"s0": 4, "s1": 5}
    solve(known, (A * B,), (20,), "y")
    for shape, found, message in [
        ((A,), (5,), "dimension 0 of z is 5; expected s0 = 4"),
        ((3,), (5,), "dimension 0 of z is 5; expected 3"),
        ((A * B,), (21,), r"expected s0\*s1 = 20"),
    ]:
        with pytest.raises(SpmdirError, match=message):
            solve(known, shape, found, "z")
    with pytest.raises(SpmdirError, match=r"is 8; expected a size of the form 2\*s2 \+ 1"):
        solve(known, (2 * symbol("s2") + 1,), (8,), "z")


def test_a_size_that_is_not_linear_in_a_symbol_is_not_solved():
    known: dict[str, int] = {}
    solve(known, (parse_number("s0 + s0 // 2"),), (9,), "x")
    assert known == {}


def test_ranges_and_conditions_say_for_what_sizes_a_program_is():
    declared = Sizes((Symbol("s0", 8, 2, 64), Symbol("s1", 5)), (parse_condition("s0 > s1"),))
    declared.check({"s0": 6, "s1": 0})
    for given_sizes, message in [
        ({"s0": 6}, "size 's1' has no value; expected one, as in s1=5"),
        ({"s0": 6, "s1": 2, "x": 1}, "there is no size 'x'; expected one of s0, s1"),
        ({"s0": 65, "s1": 2}, "size 's0' is 65; expected 2 to 64, for which the program was traced"),
        ({"s0": 3, "s1": -1}, "size 's1' is -1; expected at least 0, for which"),
        ({"s0": 3, "s1": 3}, "sizes s0 = 3, s1 = 3 violate 's0 > s1'"),
    ]:
        with pytest.raises(SpmdirError, match=message):
            declared.check(given_sizes)


def test_functions_of_sizes_are_those_of_the_table():
    with pytest.raises(SpmdirError, match="'sin' is not a function of sizes"):
        apply("sin", A)
