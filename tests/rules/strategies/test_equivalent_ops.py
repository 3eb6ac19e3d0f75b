"""A strategy written for one name of an op is offered for its other names, or a warning says that it is not."""

# pyright: reportArgumentType=false
from __future__ import annotations

from pathlib import Path

import pytest

import spmdir
from spmdir.checking.rules.samples.sample import f, sample
from spmdir.checking.rules.soundness import prepare, unsound
from spmdir.core.errors import SpmdirWarning
from spmdir.rules import RuleSet
from spmdir.rules.rule_set import default
from spmdir.rules.strategies.equivalent_ops import EQUIVALENT

KERNEL = "aten._scaled_dot_product_flash_attention_for_cpu"
COMPOSITE = "aten.scaled_dot_product_attention"
OF_KERNEL = f"""
{KERNEL}: (S(1), S(1), S(1)) -> (S(1), S(1))    when given(attn_mask) == false
    local
    out, lse = {KERNEL}(query, key, value, 0, is_causal, attn_mask, scale)
    return out, lse
"""
OF_COMPOSITE = f"""
{COMPOSITE}: (S(1), S(1), S(1)) -> (S(1))    when rank(query) == 4 and dropout_p == 0
    local
    return {COMPOSITE}(query, key, value, attn_mask, 0, is_causal, scale)
"""


def rules_of(tmp_path: Path, text: str) -> RuleSet:
    path = tmp_path / "own.rules"
    path.write_text(text)
    return default().with_file(path)


def texts(rules: RuleSet, op: str) -> list[str]:
    return [str(text) for text in rules.text_strategies(op)]


def test_a_strategy_of_the_kernel_is_offered_for_the_composite_op(tmp_path: Path):
    rules = rules_of(tmp_path, OF_KERNEL)
    assert texts(rules, KERNEL) == ["(S(1), S(1), S(1)) -> (S(1), S(1))"]
    assert texts(rules, COMPOSITE) == ["(S(1), S(1), S(1)) -> (S(1))"]
    heads = [f(2, 4, 5, 6), f(2, 4, 3, 6), f(2, 4, 3, 6)]
    for keywords in ({}, {"is_causal": True}, {"scale": 0.3}):
        one = sample("scaled_dot_product_attention", *heads, **keywords)
        assert any(s.text for s in prepare(one, rules).rule.strategies(2))
        assert not unsound(one, rules, (2, 4))


def test_a_strategy_is_not_offered_where_the_other_op_does_more(tmp_path: Path):
    """The kernel takes values as wide as queries, of four dimensions."""
    rules = rules_of(tmp_path, OF_KERNEL)
    for one in (
        sample("scaled_dot_product_attention", f(2, 4, 5, 6), f(2, 4, 3, 6), f(2, 4, 3, 7)),
        sample("scaled_dot_product_attention", f(2, 4, 5, 6), f(2, 4, 3, 6), f(2, 4, 3, 6), f(5, 3)),
        sample("scaled_dot_product_attention", f(4, 5, 6), f(4, 3, 6), f(4, 3, 6)),
    ):
        assert not any(s.text for s in prepare(one, rules).rule.strategies(2))


def test_a_file_with_strategies_of_both_names_keeps_them(tmp_path: Path):
    rules = rules_of(tmp_path, OF_KERNEL + OF_COMPOSITE)
    (text,) = rules.text_strategies(COMPOSITE)
    assert "dropout_p == 0" in text.text


def test_names_with_one_signature_share_strategies(tmp_path: Path):
    rules = rules_of(tmp_path, "aten.concat: (S(dim)…) -> (Strided(dim, length(tensors)))    when equal(tensors)\n")
    assert [texts(rules, op) for op in ("aten.cat", "aten.concat", "aten.concatenate")] == [
        ["(S(dim)…) -> (Strided(dim, length(tensors)))"]
    ] * 3


def test_every_name_of_the_table_has_a_rule():
    for op, others in EQUIVALENT.items():
        assert {op, *(other.op for other in others)} <= set(default().names)


PROGRAM = """
spmd.mesh @mesh <tp = 2>

func.func @f(%x: tensor<1x4x8x16xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> (tensor<1x4x8x16xf32>) {
  %0, %1 = aten._scaled_dot_product_flash_attention_for_cpu(%x, %x, %x) : tensor<1x4x8x16xf32>, tensor<1x4x8xf32>
  return %0 : tensor<1x4x8x16xf32>
}
"""


def test_a_strategy_that_no_name_of_the_program_has_is_a_warning(tmp_path: Path):
    path = tmp_path / "own.rules"
    path.write_text(OF_COMPOSITE)
    pipeline = spmdir.Pipeline("propagate", plugins=[str(path)])
    with pytest.warns(SpmdirWarning, match=f"the strategies for '{COMPOSITE}' do not apply to '{KERNEL}'"):
        spmdir.run_passes(spmdir.parse(PROGRAM), pipeline)
