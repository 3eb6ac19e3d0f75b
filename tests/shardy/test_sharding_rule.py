"""Rules of ops in Shardy's form."""

from __future__ import annotations

import pytest

from spmdir.analysis.type_check import rule_of
from spmdir.dialects import ir
from spmdir.dialects.aten import AtenOp
from spmdir.rules.rule_set import default
from spmdir.shardy.sharding_rule import sharding_rule


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (
            "aten.mm(%x, %w) : tensor<16x32xf32>",
            "([i, j], [j, k])->([i, k]) {i=16, j=8, k=32} reduction={j}, custom",
        ),
        (
            "aten.view(%x) {size = [4, 4, 8]} : tensor<4x4x8xf32>",
            "([ij, k])->([i, j, k]) {i=4, j=4, k=8}, custom",
        ),
        (
            "aten.cat([%x, %x]) {dim = 1} : tensor<16x16xf32>",
            "([i, j], [i, k])->([i, l]) {i=16, j=8, k=8, l=16} need_replication={j, k, l}, custom",
        ),
        (
            "aten._softmax(%x) {dim = 1, half_to_float = false} : tensor<16x8xf32>",
            "([i, j])->([i, j]) {i=16, j=8}, custom",
        ),
        ("aten.amax(%x) {dim = [0]} : tensor<8xf32>", "([i, j])->([j]) {i=16, j=8} reduction={i}, custom"),
        ("aten.nonzero(%x) : tensor<5x2xi64>", None),
        (
            "aten.diagonal(%s) : tensor<8xf32>",
            "([i, j])->([k]) {i=8, j=8, k=8} need_replication={i, j, k}, custom",
        ),
    ],
)
def test_factors_are_numbered_and_have_kinds(op: str, expected: str | None) -> None:
    module = ir.parse(
        f"func.func @f(%x: tensor<16x8xf32>, %w: tensor<8x32xf32>, %s: tensor<8x8xf32>) {{\n  %0 = {op}\n  return\n}}"
    )
    (op_,) = (child for child in module.walk() if isinstance(child, AtenOp))
    rule = rule_of(op_, default())
    assert rule is not None
    text = sharding_rule(rule)
    assert text == (expected and f"<{expected}>")
