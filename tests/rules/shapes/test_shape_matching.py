"""Patterns against shapes: which factors make up which dimension, of what sizes, and what does not fit."""

import pytest

from spmdir.core.errors import RuleError
from tests.rules.lines import dims


@pytest.mark.parametrize(
    ("line", "operands", "arguments", "expected"),
    [
        ("(x: m k, y: k n) -> m n    sum k", "4x6 6x8", {}, "([m, k], [k, n]) -> ([m, n]) {m = 4, k = 6, n = 8}"),
        ("(x: m m) -> m    unsharded m", "3x3", {}, "([m, m]) -> ([m]) {m = 3}"),
        ("(x: 1 m) -> m", "1x5", {}, "([1, m]) -> ([m]) {m = 5}"),
        ("(x: (h g) l, y: h l) -> h g l", "8x3 2x3", {}, "([(h g), l], [h, l]) -> ([h, g, l]) {h = 2, g = 4, l = 3}"),
        ("(x: m, y?: m) -> m", "5", {}, "([m]) -> ([m]) {m = 5}"),
        ("(x: m, end) -> m n    extent n = end    local n\n    return x", "5", {"end": 3},
         "([m]) -> ([m, n]) {m = 5, n = 3}"),
        ("(x: *, size) -> reshape(x, size)", "4x6", {"size": (2, 12)},
         "([(r0 r1), r2]) -> ([r0, (r1 r2)]) {r0 = 2, r1 = 2, r2 = 6}"),
        ("(x: *, size) -> reshape(x, size)", "2x3", {"size": (3, 2)}, "([r0, r1]) -> ([r2, r3])"),
        ("(x: *, d0, d1) -> transpose(x, d0, d1)", "4x6x8", {"d0": 0, "d1": -1},
         "([d0, d1, d2]) -> ([d2, d1, d0]) {d0 = 4, d1 = 6, d2 = 8}"),
    ],
)  # fmt: skip
def test_patterns_give_the_factors_of_a_call(line: str, operands: str, arguments: dict, expected: str):
    assert dims(line, operands, **arguments).startswith(expected)


@pytest.mark.parametrize(
    ("line", "operands", "arguments", "message"),
    [
        (
            "(x: m k, y: k n) -> m n    sum k",
            "4x6 5x8",
            {},
            "has k = 5; expected 6, because all dimensions k have one size",
        ),
        ("(x: m k) -> m k", "4x6x8", {}, "has rank 3; expected the dimensions `m k`"),
        ("(x: 1 m) -> m", "2x5", {}, "has a dimension of size 2 where the rule has 1; expected size 1"),
        (
            "(x: (h g), y: h) -> h g",
            "8 3",
            {},
            r"a dimension of size 8; expected a product of the sizes of the factors \(h g\)",
        ),
        (
            "(x: (h g)) -> h g",
            "8",
            {},
            r"a dimension of size 8; expected a product of the sizes of the factors \(h g\)",
        ),
        ("(x: *, size) -> reshape(x, size)", "4x6", {"size": (5, 5)}, "24 elements cannot be viewed as shape"),
        ("(x: *, size) -> reshape(x, size)", "4x6", {}, "argument 'size' is missing; expected integers"),
        ("(x: m) -> m *b    local *b\n    return x", "4", {}, "the sizes of `\\*b` in the result do not follow"),
    ],
)
def test_what_does_not_fit_is_an_error(line: str, operands: str, arguments: dict, message: str):
    with pytest.raises(RuleError, match=message):
        dims(line, operands, **arguments)
