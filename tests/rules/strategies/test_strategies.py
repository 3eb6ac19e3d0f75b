# ruff: noqa: E501
import textwrap

import pytest

from spmdir.core.dtype import DTYPES
from spmdir.core.placement.call import Local
from spmdir.core.placement.standard import Partial, R, Shard
from spmdir.core.placement.tensor import TensorMeta
from spmdir.rules import OpRule
from spmdir.rules.list_strategies import op_strategies
from spmdir.rules.local.expansion import Value
from spmdir.rules.rule_set import default
from spmdir.rules.strategies.strategy import UNSHARDED, ShardCounts, Strategy


def tensor(text: str) -> TensorMeta:
    *sizes, dtype = text.split("x")
    return TensorMeta(tuple(map(int, sizes)), dtype)


def rule_of(op: str, operands: str, **arguments: object) -> OpRule:
    rules = default()
    found = rules.instantiate(rules.infer_call(op, tuple(map(tensor, operands.split())), arguments))  # type: ignore[arg-type]
    assert found is not None
    return found


def rows(rule: OpRule, count: int, sharded: ShardCounts = UNSHARDED) -> list[str]:
    return [str(strategy) for strategy in rule.strategies(count, sharded)]


CASES = [
    ("aten.mm", "16x1024xf32 1024x4096xf32", {},
     """
        ([m, k], [k, n]) -> ([m, n]) {m = 16, k = 1024, n = 4096} sum {k} multilinear {self, mat2}
        (R, R) -> (R)
        (S(0), R) -> (S(0))
        (S(1), S(0)) -> (P(sum))
        (R, S(1)) -> (S(1))
        (P(sum), R) -> (P(sum))
        (P(avg), R) -> (P(avg))
        (R, P(sum)) -> (P(sum))
        (R, P(avg)) -> (P(avg))
        """),
    ("aten.linear", "5x2x4xf32 3x4xf32 3xf32", {},
     """
        ([b0, b1, k], [n, k], [n]) -> ([b0, b1, n]) {b0 = 5, b1 = 2, k = 4, n = 3} sum {k} linear {input} linear {weight} adds {bias}
        (R, R, R) -> (R)
        (S(0), R, R) -> (S(0))
        (S(1), R, R) -> (S(1))
        (S(2), S(1), P(sum)) -> (P(sum))
        (R, S(0), S(0)) -> (S(2))
        (P(sum), R, P(sum)) -> (P(sum))
        (P(avg), R, P(avg)) -> (P(avg))
        (R, P(sum), P(sum)) -> (P(sum))
        (R, P(avg), P(avg)) -> (P(avg))
        """),
    ("aten.add.Tensor", "4x3xf32 3xf32", {},
     """
        ([d0, d1], [d1]) -> ([d0, d1]) {d0 = 4, d1 = 3} linear {self, other}
        (R, R) -> (R)
        (S(0), R) -> (S(0))
        (S(1), S(0)) -> (S(1))
        (P(sum), P(sum)) -> (P(sum))
        (P(avg), P(avg)) -> (P(avg))
        """),
    ("aten.add.Tensor", "4xf32", {'other': 1.0},
     """
        ([d0]) -> ([d0]) {d0 = 4} linear {self, other} commutes max min {self}
        (R) -> (R)
        (S(0)) -> (S(0))
        (P(max)) -> (P(max))
        (P(min)) -> (P(min))
        """),
    ("aten.mul.Tensor", "4xf32 4xf32", {},
     """
        ([d0], [d0]) -> ([d0]) {d0 = 4} linear {self} linear {other} commutes product {self, other}
        (R, R) -> (R)
        (S(0), S(0)) -> (S(0))
        (P(sum), R) -> (P(sum))
        (P(avg), R) -> (P(avg))
        (R, P(sum)) -> (P(sum))
        (R, P(avg)) -> (P(avg))
        (P(product), P(product)) -> (P(product))
        """),
    ("aten.where.self", "4x1xi1 4x3xf32 3xf32", {},
     """
        ([d0, 1], [d0, d1], [d1]) -> ([d0, d1]) {d0 = 4, d1 = 3} carries {self, other} commutes max min any all {self} commutes max min any all {other}
        (R, R, R) -> (R)
        (S(0), S(0), R) -> (S(0))
        (R, S(1), S(0)) -> (S(1))
        (R, P(sum), P(sum)) -> (P(sum))
        (R, P(avg), P(avg)) -> (P(avg))
        (R, P(max), P(max)) -> (P(max))
        (R, P(min), P(min)) -> (P(min))
        (R, P(product), P(product)) -> (P(product))
        (R, P(max), R) -> (P(max))
        (R, P(min), R) -> (P(min))
        (R, R, P(max)) -> (P(max))
        (R, R, P(min)) -> (P(min))
        """),
    ("aten._softmax", "4x6xf32", {'dim': -1, 'half_to_float': False},
     """
        ([d0, d1]) -> ([d0, d1]) {d0 = 4, d1 = 6} expand {d1}
        (R) -> (R)
        (S(0)) -> (S(0))
        (S(1)) -> (S(1)) expand
        """),
    ("aten.mean.dim", "4x6xf32", {'dim': (-1,), 'keepdim': True},
     """
        ([d0, d1]) -> ([d0, 1]) {d0 = 4, d1 = 6} expand {d1} linear {self}
        (R) -> (R)
        (S(0)) -> (S(0))
        (S(1)) -> (P(sum)) expand
        (P(sum)) -> (P(sum))
        (P(avg)) -> (P(avg))
        """),
    ("aten.embedding", "16x8xf32 4x3xi64", {},
     """
        ([v, d], [b0, b1]) -> ([b0, b1, d]) {b0 = 4, b1 = 3, v = 16, d = 8} sum {v} local {v} carries {weight}
        (R, R) -> (R)
        (R, S(0)) -> (S(0))
        (R, S(1)) -> (S(1))
        (S(0), R) -> (P(sum)) local
        (S(1), R) -> (S(2))
        (P(sum), R) -> (P(sum))
        (P(avg), R) -> (P(avg))
        (P(max), R) -> (P(max))
        (P(min), R) -> (P(min))
        (P(product), R) -> (P(product))
        """),
    ("aten.expand", "4x1xf32", {'size': (2, 4, 6)},
     """
        ([d0, d1]) -> ([n0, d0, n2]) {d0 = 4, d1 = 1, n0 = 2, n2 = 6} moves {self}
        (R) -> (R)
        (S(0)) -> (S(1))
        (R) -> (S(0))
        (R) -> (S(2))
        (P(sum)) -> (P(sum))
        (P(avg)) -> (P(avg))
        (P(max)) -> (P(max))
        (P(min)) -> (P(min))
        (P(product)) -> (P(product))
        """),
    ("aten.neg", "4xf32", {},
     """
        ([d0]) -> ([d0]) {d0 = 4} linear {self} swaps {self}
        (R) -> (R)
        (S(0)) -> (S(0))
        (P(sum)) -> (P(sum))
        (P(avg)) -> (P(avg))
        (P(max)) -> (P(min))
        (P(min)) -> (P(max))
        """),
    ("aten.logical_not", "4xi1", {},
     """
        ([d0]) -> ([d0]) {d0 = 4} swaps {self}
        (R) -> (R)
        (S(0)) -> (S(0))
        (P(any)) -> (P(all))
        (P(all)) -> (P(any))
        """),
    ("aten.dropout", "4xf32", {'p': 0.1, 'train': True},
     """
        ([d0]) -> ([d0]) {d0 = 4} expand {d0} linear {input}
        (R) -> (R)
        (S(0)) -> (S(0)) expand
        (P(sum)) -> (P(sum))
        (P(avg)) -> (P(avg))
        """),
    ("aten.scaled_dot_product_attention", "4x8x6x16xf32 4x2x6x16xf32 4x2x6x16xf32", {'enable_gqa': True, 'is_causal': True},
     """
        ([b0, (h g), l, e], [b0, h, s, e], [b0, h, s, v]) -> ([b0, (h g), l, v]) {b0 = 4, h = 2, g = 4, l = 6, e = 16, s = 6, v = 16} unsharded {e, s} local {l} linear {value}
        (R, R, R) -> (R)
        (S(0), S(0), S(0)) -> (S(0))
        (S(1), S(1), S(1)) -> (S(1))
        (S(2), R, R) -> (S(2)) local
        (R, R, S(3)) -> (S(3))
        (R, R, P(sum)) -> (P(sum))
        (R, R, P(avg)) -> (P(avg))
        """),
    ("aten.native_layer_norm_backward", "4x6x8xf32 4x6x8xf32 4x6x1xf32 4x6x1xf32 8xf32 8xf32", {'normalized_shape': (8,), 'output_mask': (True, True, True)},
     """
        ([d0, d1, d2], [d0, d1, d2], [d0, d1, 1], [d0, d1, 1], [d2], [d2]) -> ([d0, d1, d2], [d2], [d2]) {d0 = 4, d1 = 6, d2 = 8} sum {d0, d1, d2} expand {d2} linear {grad_out}
        (R, R, R, R, R, R) -> (R, R, R)
        (S(0), S(0), S(0), S(0), R, R) -> (S(0), P(sum), P(sum))
        (S(1), S(1), S(1), S(1), R, R) -> (S(1), P(sum), P(sum))
        (S(2), S(2), R, R, S(0), S(0)) -> (S(2), S(0), S(0)) expand
        (P(sum), R, R, R, R, R) -> (P(sum), P(sum), P(sum))
        (P(avg), R, R, R, R, R) -> (P(avg), P(avg), P(avg))
        """),
]  # fmt: skip


@pytest.mark.parametrize(("op", "operands", "arguments", "expected"), CASES, ids=[case[0] for case in CASES])
def test_the_strategies_of_representative_ops(op: str, operands: str, arguments: dict, expected: str):
    rule = rule_of(op, operands, **arguments)
    assert [rule.text(), *rows(rule, 2)] == textwrap.dedent(expected).strip().splitlines()


def test_uneven_shards_are_fine_where_a_dimension_is_one_factor():
    assert "(S(0), R) -> (S(0))" in rows(rule_of("aten.mm", "5x4xf32 4x3xf32"), 3)


def test_a_sum_may_have_empty_shards_and_a_maximum_may_not():
    assert "(S(0)) -> (P(sum))" in rows(rule_of("aten.sum", "4xf32"), 3)
    assert "(S(0)) -> (P(max))" not in rows(rule_of("aten.amax", "4xf32", dim=(0,)), 3)
    assert "(S(0)) -> (P(max))" in rows(rule_of("aten.amax", "5xf32", dim=(0,)), 3)


def test_the_major_factor_of_a_compound_dimension_is_sharded_evenly_only():
    rule = rule_of("aten.view", "4x3xf32", size=(12,))
    assert rule.text().startswith("([r0, r1]) -> ([(r0 r1)])")
    assert "(S(0)) -> (S(0))" in rows(rule, 2)
    assert "(S(0)) -> (S(0))" not in rows(rule, 3)


def test_a_factor_that_other_axes_shard_must_be_even_among_all_ranks():
    rule = rule_of("aten.view", "8x3xf32", size=(24,))
    (factor,) = rule.strategies(2)[1].factors
    assert factor is not None
    assert "(S(0)) -> (S(0))" in rows(rule, 2, ShardCounts({factor: 4}))
    assert "(S(0)) -> (S(0))" not in rows(rule, 2, ShardCounts({factor: 8}))


def test_minor_factors_and_factors_without_a_common_divisor_are_not_sharded():
    rule = rule_of("aten.view", "6x4xf32", size=(4, 6))
    assert not any("S" in row for row in rows(rule_of("aten.view", "6x4xf32", size=(3, 8)), 2))
    assert [row for row in rows(rule, 2) if "S" in row] == ["(S(0)) -> (S(0))"]


def test_dimensions_of_size_0_and_1_are_not_sharded():
    assert not any("S" in row for row in rows(rule_of("aten.relu", "1x0xf32"), 2))


def test_a_number_other_than_zero_is_added_once_so_the_rest_may_not_be_partial():
    assert "(P(sum)) -> (P(sum))" not in rows(rule_of("aten.add.Tensor", "4xf32", other=1.0), 2)
    assert "(P(sum)) -> (P(sum))" in rows(rule_of("aten.add.Tensor", "4xf32", other=0), 2)


@pytest.mark.parametrize(
    ("source", "target", "sums", "orders"),
    [
        ("f32", "bf16", False, True),
        ("bf16", "f16", False, True),
        ("bf16", "f32", True, True),
        ("i64", "f32", False, True),
        ("f32", "i64", False, False),
        ("f32", "i1", False, False),
        ("i1", "f32", False, False),
        ("f32", "f32", True, True),
    ],
)
def test_a_cast_passes_sums_if_it_does_not_round_and_orders_if_it_is_monotone(
    source: str, target: str, sums: bool, orders: bool
):
    found = rows(rule_of("aten._to_copy", f"4x{source}", dtype=DTYPES[target]), 2)
    assert ("(P(sum)) -> (P(sum))" in found, "(P(max)) -> (P(max))" in found) == (sums, orders)


def test_two_rewrites_do_not_meet_unless_one_text_serves_both():
    attention = rule_of("aten.scaled_dot_product_attention", "4x2x4xf32 4x2x4xf32 4x2x4xf32", is_causal=True)
    keys = "(R, S(1), S(1)) -> (P(sum)) expand"
    query = next(f for f, factor in enumerate(attention.factors) if factor.rewrite == "local")
    assert keys in rows(attention, 2) and keys not in rows(attention, 2, ShardCounts({query: 2}))
    tril = rule_of("aten.tril", "4x4xf32")
    assert "(S(1)) -> (S(1)) local" in rows(tril, 2, ShardCounts({0: 2}))
    mean = rule_of("aten.mean", "4x4xf32")
    assert "(S(1)) -> (P(sum)) expand" in rows(mean, 2, ShardCounts({0: 2}))


def test_an_expansion_lists_what_is_reduced_inside():
    rule = rule_of("aten._softmax", "8x6xf32", dim=1, half_to_float=False)
    assert [op.call.name for op in rule.expansion(1).ops] == [
        "aten.amax", "aten.sub.Tensor", "aten.exp", "aten.sum.dim_IntList", "aten.div.Tensor",
    ]  # fmt: skip
    reduced = rule.internal_reductions(1)
    assert [(r.op, str(r.meta), r.dims) for r in reduced] == [
        ("max", "8x1xf32", ((0,), ())),
        ("sum", "8x1xf32", ((0,), ())),
    ]
    assert rule.expansion(1).results == (Value("op", 4),)


def test_half_width_softmax_is_computed_in_full_width():
    rule = rule_of("aten._softmax", "8x6xbf16", dim=1, half_to_float=False)
    ops = rule.expansion(1).ops
    assert {str(p.call.results[0])[-3:] for p in ops[:-1]} == {"f32"}
    assert str(ops[-1].call.results[0]) == "8x6xbf16"


def test_a_mean_stays_partial_behind_its_division():
    placed = rule_of("aten.mean", "5x4xf32").expansion_layout(0, 2)
    assert placed is not None and placed.results == (Partial("sum"),) and placed.reductions == ()


def test_a_local_form_has_the_integers_of_its_rank():
    rule = rule_of("aten.embedding", "16x8xf32 4xi64")
    factors = {rule.factors[f].name: f for f in range(len(rule.factors))}
    assert rule.local_form({factors["d"]: Local("shard", 8, ("dp", "tp"))}) is None
    form = rule.local_form({factors["v"]: Local("shard", 16, ("dp", "tp"))}, (tensor("4x8xf32"), tensor("4xi64")))
    assert form is not None
    assert form.ops[0].call.name == "spmd.local_index"
    assert dict(form.ops[0].call.arguments)["of"] == Local("shard", 16, ("dp", "tp"))
    assert str(form.ops[-1].call.results[0]) == "4x8xf32"


def test_flops_are_those_of_contractions():
    assert rule_of("aten.mm", "5x4xf32 4x3xf32").flops == 2 * 5 * 4 * 3
    assert rule_of("aten.add.Tensor", "5x4xf32 5x4xf32").flops == 0
    assert rule_of("aten.sum", "5x4xf32").flops == 0


def test_shape_arguments_are_those_that_hold_the_result_s_sizes():
    assert rule_of("aten.view", "5x4xf32", size=(20,)).shape_arguments == ("size",)
    assert rule_of("aten.full", "", size=(20,), fill_value=1).shape_arguments == ("size",)
    assert rule_of("aten.relu", "5x4xf32").shape_arguments == ()


def test_strategies_by_name():
    listed = op_strategies("aten.mm", (tensor("4x6xf32"), tensor("6x8xf32")), {}, 2)
    strategies = [strategy for strategy in listed if isinstance(strategy, Strategy)]
    assert [s.results for s in strategies if s.operands == (Shard(1), Shard(0))] == [(Partial("sum"),)]
    assert strategies[0].operands == (R, R)


def test_an_op_without_a_rule_has_none():
    rules = default()
    assert rules.lookup("aten.no_such_op") is None


def test_asking_for_one_rule_parses_no_other():
    from spmdir.rules import RuleSet

    rules = RuleSet(default().records)
    rules.lookup("aten.mm")
    assert list(rules._parsed) == ["aten.mm"]
