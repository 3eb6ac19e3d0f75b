"""The strategies of one axis: what each clause lets pass, and what it makes of a sharded factor."""

import pytest

from tests.rules.lines import instance

ONE = "4xf32"


@pytest.mark.parametrize(
    ("line", "operands", "expected"),
    [
        ("(x: m) -> m", ONE, ["(S(0)) -> (S(0))"]),
        ("(x: m) -> m    unsharded m", ONE, []),
        ("(x: m) -> scalar    sum m", ONE, ["(S(0)) -> (P(sum))"]),
        ("(x: m) -> scalar    max m", ONE, ["(S(0)) -> (P(max))"]),
        ("(x: m) -> scalar    same m", ONE, ["(S(0)) -> (R)"]),
        ("(x: m n) -> n m", "4x4xf32", ["(S(0)) -> (S(1))", "(S(1)) -> (S(0))"]),
        ("(x: m) -> m    linear x", ONE, ["(S(0)) -> (S(0))", "(P(sum)) -> (P(sum))", "(P(avg)) -> (P(avg))"]),
        ("(x: m) -> m    commutes max", ONE, ["(S(0)) -> (S(0))", "(P(max)) -> (P(max))"]),
        ("(x: m) -> m    swaps", ONE, ["(S(0)) -> (S(0))", "(P(max)) -> (P(min))", "(P(min)) -> (P(max))"]),
        ("(x: m, y: m) -> m    unsharded m; linear x y", "4xf32 4xf32",
         ["(P(sum), P(sum)) -> (P(sum))", "(P(avg), P(avg)) -> (P(avg))"]),
        ("(x: m, y: m) -> m    unsharded m; linear x; adds y", "4xf32 4xf32",
         ["(P(sum), P(sum)) -> (P(sum))", "(P(avg), P(avg)) -> (P(avg))"]),
        ("(x: m, w: n) -> n    ignores x", "4xi1 4xi1", ["(R, S(0)) -> (S(0))", "(S(0), R) -> (R)",
         "(P(any), R) -> (R)", "(P(all), R) -> (R)"]),
        ("(x: m) -> m    linear x", "4xi1", ["(S(0)) -> (S(0))"]),
    ],
)  # fmt: skip
def test_clauses_give_strategies(line: str, operands: str, expected: list[str]):
    first, *others = map(str, instance(line, operands).strategies(2))
    assert set(first) <= set("(R, ) ->")  # everything replicated
    assert sorted(others) == sorted(expected)
