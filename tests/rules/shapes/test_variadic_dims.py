"""Variadic dimensions: alignment on the right, broadcasting, dimensions that are dropped or separate."""

import pytest

from spmdir.core.errors import RuleError
from tests.rules.lines import dims


@pytest.mark.parametrize(
    ("line", "operands", "arguments", "expected"),
    [
        ("(x: *) -> *", "f32", {}, "([]) -> ([]) {}"),
        ("(x: *, y: *) -> *", "4x6 6", {}, "([d0, d1], [d1]) -> ([d0, d1]) {d0 = 4, d1 = 6}"),
        ("(x: *, y: *) -> *", "4x1 4x6", {}, "([d0, 1], [d0, d1]) -> ([d0, d1]) {d0 = 4, d1 = 6}"),
        ("(x: *b m, y: *b m) -> *b    sum m", "2x1x5 3x5", {},
         "([b0, 1, m], [b1, m]) -> ([b0, b1]) {b0 = 2, b1 = 3, m = 5}"),
        ("(x: *, dim) -> *-dim    sum dim", "4x6x8", {"dim": (1,)}, "([d0, d1, d2]) -> ([d0, d2])"),
        ("(x: *, dim, keepdim) -> *-dim    sum dim", "4x6x8", {"dim": (-1,), "keepdim": True},
         "([d0, d1, d2]) -> ([d0, d1, 1])"),
        ("(x: *, dim) -> *-dim    sum dim", "4x6", {"dim": ()}, "([d0, d1]) -> ([])"),
        ("(x: *, i: *~dim, dim) -> *    unsharded dim", "4x6 4x3", {"dim": 1},
         "([d0, d1], [d0, ~dim]) -> ([d0, d1]) {d0 = 4, d1 = 6, ~dim = 3}"),
    ],
)  # fmt: skip
def test_variadic_dimensions_give_factors(line: str, operands: str, arguments: dict, expected: str):
    assert dims(line, operands, **arguments).startswith(expected)


@pytest.mark.parametrize(
    ("line", "operands", "arguments", "message"),
    [
        ("(x: *, y: *) -> *", "4x6 5", {}, r"operands disagree in dimension -1 of \*: 6 and 5"),
        ("(x: *b m n) -> *b m n", "4", {}, "has rank 1; expected the dimensions"),
        ("(x: *, dim) -> *-dim    sum dim", "4x6", {"dim": (2,)}, "selects dimension 2 of a tensor of rank 2"),
        ("(x: *, dim) -> *-dim    sum dim", "4x6", {"dim": (0, -2)}, "selects a dimension twice"),
    ],
)
def test_shapes_that_do_not_align_are_an_error(line: str, operands: str, arguments: dict, message: str):
    with pytest.raises(RuleError, match=message):
        dims(line, operands, **arguments)
