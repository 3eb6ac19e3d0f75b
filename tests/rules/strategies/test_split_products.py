"""Strategies that split a matrix product are listed apart from all others."""

from __future__ import annotations

import pytest

from spmdir.core.dtype import F32
from spmdir.core.placement.tensor import TensorMeta
from spmdir.rules import OpRule
from spmdir.rules.rule_set import default
from spmdir.rules.strategies.strategy import shard_counts

Shapes = tuple[tuple[int, ...], ...]


def rule_of(op: str, shapes: Shapes) -> OpRule:
    call = default().infer_call(op, tuple(TensorMeta(shape, F32) for shape in shapes), {})
    found = default().instantiate(call)
    assert found is not None
    return found


def listed(op: str, shapes: Shapes) -> set[str]:
    return {str(strategy).removesuffix(" split") for strategy in rule_of(op, shapes).split_strategies(2)}


@pytest.mark.parametrize(
    ("op", "shapes", "expected"),
    [
        ("aten.mm", ((4, 6), (6, 8)), {
            "(S(0), S(1)) -> (S(1))", "(S(0), S(1)) -> (S(0))",  # rows of the first, or columns of the second, go round
            "(S(1), S(0)) -> (S(0))", "(S(1), S(0)) -> (S(1))",  # sums of rows, or of columns, go round
        }),
        # What is added is as wide as the result, so each rank has all of its columns, and takes those of the block.
        ("aten.addmm", ((4, 8), (4, 6), (6, 8)), {
            "(S(1), S(0), S(1)) -> (S(1))", "(S(0), S(0), S(1)) -> (S(0))",
            "(P(sum), S(1), S(0)) -> (S(0))", "(P(sum), S(1), S(0)) -> (S(1))",
        }),
        ("aten.mm", ((5, 6), (6, 7)), set()),
        ("aten.mul.Tensor", ((4, 6), (4, 6)), set()),
        ("aten._addmm_activation", ((8,), (4, 6), (6, 8)), set()),
    ],
    ids=["rows and columns", "what is added", "blocks of different sizes", "no product", "sums that may not be split"],
)  # fmt: skip
def test_blocks_of_one_factor_go_round_beside_the_sharding_of_another(op: str, shapes: Shapes, expected: set[str]):
    assert listed(op, shapes) == expected


def test_none_is_among_the_strategies_that_are_listed():
    rule = rule_of("aten.mm", ((4, 6), (6, 8)))
    assert not set(rule.split_strategies(2)) & set(rule.strategies(2))


@pytest.mark.parametrize(("rows", "expected"), [(8, 2), (6, 0)], ids=["even", "uneven"])
def test_a_factor_that_another_axis_shards_has_blocks_if_they_are_of_one_size(rows: int, expected: int):
    rule = rule_of("aten.mm", ((rows, 6), (6, 8)))
    outer = next(one for one in rule.strategies(2) if str(one) == "(S(0), R) -> (S(0))")
    found = list(map(str, rule.split_strategies(2, shard_counts([(outer, 2)]))))
    of_rows = {"(S(0), S(1)) -> (S(1)) split", "(S(1), S(0)) -> (S(0)) split"}
    assert len(of_rows & set(found)) == expected
