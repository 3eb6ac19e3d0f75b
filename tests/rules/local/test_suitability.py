"""Local forms by positions: layouts that permute, that leave ranks empty, and that nest, with the numbers they give."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import spmdir
from spmdir.checking.rules.samples.sample import Sample, f, i, sample
from spmdir.checking.rules.soundness import Case, are_compatible, judge, prepare, run_strategies
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import parse_placement
from spmdir.core.placement.call import shard_of
from spmdir.rules import OpRule, Strategy
from spmdir.rules.rule_set import default
from spmdir.rules.strategies.strategy import UNSHARDED, ShardCounts, shard_counts


def case_of(one: Sample) -> Case:
    return prepare(one, default())


def strategy(rule: OpRule, text: str, count: int, *placements: str, sharded: ShardCounts = UNSHARDED) -> Strategy:
    found = rule.strategies(count, sharded, tuple(map(parse_placement, placements)))
    return next(one for one in found if str(one) == text)


def local_results(one: Sample, text: str, count: int, placement: str) -> list[Any]:
    """Return what each of `count` ranks has of the first result by the strategy `text`."""
    case = case_of(one)
    mesh, used = Mesh({"x": count}), strategy(case.rule, text, count, placement)
    assert judge(case, [("x", used)], mesh).fault is None
    local = [distribute(tensor, used.operands[index], count) for index, tensor in enumerate(case.operands)]
    return [result.tolist() for result in run_strategies(case.rule, [("x", used)], mesh, local)[0]]


def distribute(tensor: torch.Tensor, placement: Any, count: int) -> list[torch.Tensor]:
    return placement.distribute(tensor, count, torch.zeros_like)


def test_counting_gives_each_rank_the_positions_of_its_chunks():
    counted = sample("arange.start", start=10, end=18)
    assert local_results(counted, "() -> (ZigZag(0)) local", 2, "ZigZag(0)") == [[10, 11, 16, 17], [12, 13, 14, 15]]


def test_a_triangle_keeps_what_is_left_of_the_positions_of_dealt_rows():
    ones = sample("tril", torch.ones(4, 4, dtype=torch.float64))
    assert local_results(ones, "(Cyclic(0, 1)) -> (Cyclic(0, 1)) local", 2, "Cyclic(0, 1)") == [
        [[1, 0, 0, 0], [1, 1, 1, 0]],
        [[1, 1, 0, 0], [1, 1, 1, 1]],
    ]


def test_a_lookup_adds_up_what_ranks_have_of_a_permuted_table():
    table = torch.tensor([[0.0], [1.0], [2.0], [3.0]], dtype=torch.float64)
    lookup = sample("embedding", table, torch.tensor([3, 0, 2]))
    found = local_results(lookup, "(ZigZag(0), R) -> (P(sum)) local", 2, "ZigZag(0)")
    assert found == [[[3.0], [0.0], [0.0]], [[0.0], [0.0], [2.0]]]


def test_a_slice_adds_up_what_ranks_have_of_it():
    sliced = sample("slice.Tensor", torch.arange(8.0).double(), dim=0, start=1, end=7, step=2)
    assert local_results(sliced, "(Strided(0, 2)) -> (P(sum)) local", 2, "Strided(0, 2)") == [[1, 0, 5], [0, 3, 0]]


def attention(queries: int = 6) -> Sample:
    return sample("scaled_dot_product_attention", f(2, queries, 4), f(2, 6, 4), f(2, 6, 4), is_causal=True)


@pytest.mark.parametrize("placement", ["ZigZag", "Cyclic({}, 1)", "Ragged({}, [4, 2])", "Strided({}, 3)"])
def test_causal_attention_takes_query_positions_in_any_layout(placement: str):
    text = placement.format(1) if "{}" in placement else f"{placement}(1)"
    case = case_of(attention())
    used = strategy(case.rule, f"({text}, R, R) -> ({text}) local", 2, text)
    assert judge(case, [("x", used)], Mesh({"x": 2})).fault is None


def test_queries_that_see_no_key_are_zero_on_every_rank():
    """Keys come after all queries where a mask leaves none: position 0 sees key 0 alone."""
    case = case_of(attention(queries=2))
    used = strategy(case.rule, "(Cyclic(1, 1), R, R) -> (Cyclic(1, 1)) local", 2, "Cyclic(1, 1)")
    assert judge(case, [("x", used)], Mesh({"x": 2})).fault is None


def test_ranks_without_elements_have_no_local_form():
    rule = case_of(sample("embedding", f(4, 3), i(4, 5))).rule
    texts = [str(one) for one in rule.strategies(3, placements=(parse_placement("Ragged(0, [3, 0, 1])"),))]
    assert "(S(0), R) -> (P(sum)) local" not in texts  # four rows of three ranks: the last one has none
    assert not any("Ragged(0, [3, 0, 1]), R" in text for text in texts)
    assert "(R, Ragged(0, [3, 0, 1])) -> (Ragged(0, [3, 0, 1]))" not in texts  # five indices


NESTED = [
    (sample("arange", end=16), "() -> ({}) local", "ZigZag(0)", "S(0)"),
    (sample("embedding", f(16, 3), i(16, 5)), "({}, R) -> (P(sum)) local", "Cyclic(0, 2)", "S(0)"),
    (sample("embedding", f(16, 3), i(16, 5)), "({}, R) -> (P(sum)) local", "S(0)", "ZigZag(0)"),
    (sample("tril", f(16, 5)), "({}) -> ({}) local", "ZigZag(0)", "Cyclic(0, 1)"),
    (sample("tril", f(16, 5)), "({}) -> ({}) local", "Ragged(0, [10, 6])", "S(0)"),
]


@pytest.mark.parametrize(("one", "text", "outer", "inner"), NESTED)
def test_two_axes_nest_on_one_factor(one: Sample, text: str, outer: str, inner: str):
    case = case_of(one)
    extras = tuple(map(parse_placement, (outer, inner)))
    first = strategy(case.rule, text.format(outer, outer), 2, outer, inner)
    beside = shard_counts([(first, 2)])
    second = strategy(case.rule, text.format(inner, inner), 2, outer, inner, sharded=beside)
    assert are_compatible(case.rule, (first, second), (2, 2), extras)
    assert judge(case, [("x", first), ("y", second)], Mesh({"x": 2, "y": 2})).fault is None


def test_nested_axes_leave_no_rank_without_elements():
    rule = case_of(sample("tril", f(4, 5))).rule
    first = strategy(rule, "(Ragged(0, [3, 1])) -> (Ragged(0, [3, 1])) local", 2, "Ragged(0, [3, 1])")
    beside = rule.strategies(2, shard_counts([(first, 2)]), (parse_placement("Ragged(0, [3, 1])"),))
    assert not any(0 in one.factors for one in beside)


def test_one_range_a_rank_takes_the_form_by_offsets():
    rule = case_of(sample("tril", f(8, 5))).rule
    mesh = Mesh({"x": 2})
    for placement, name in (("S(0)", "aten.tril"), ("Ragged(0, [5, 3])", "aten.tril"), ("ZigZag(0)", "spmd.positions")):
        used = strategy(rule, f"({placement}) -> ({placement}) local", 2, placement)
        form = form_of(rule, used, mesh)
        assert name in [op.call.name for op in form.ops]


def form_of(rule: OpRule, used: Strategy, mesh: Mesh) -> Any:
    shards = {f: shard_of(rule.factors[f].size, [("x", used.placement_of(f))]) for f in used.factors}
    scattered = frozenset(f for f, shard in shards.items() if not shard.is_contiguous(mesh))
    return rule.local_form(shards, scattered=scattered)


def test_a_rule_of_ones_own_is_lifted_by_its_last_clause_that_suits(tmp_path):
    path = tmp_path / "own.rules"
    path.write_text(
        "aten.triu(self: *b i j, diagonal=0) -> *b i j\n"
        "    unsharded j\n"
        "    expand i\n"
        "    row = aten.unsqueeze(aten.add.Scalar(aten.arange(count(i)), diagonal), 1)\n"
        "    return aten.masked_fill.Scalar(self, aten.lt.Tensor(aten.arange(count(j)), row), 0)\n"
        "    local i\n"
        "    return aten.triu(self, diagonal + offset(i))\n"
    )
    with spmdir.rules.using_rules(str(path)):
        metas = (spmdir.placement.TensorMeta((4, 4), "f32"),)
        found = [
            str(s)
            for s in spmdir.rules.op_strategies(
                "aten.triu", metas, {}, 2, placements=("ZigZag(0)", "Ragged(0, [1, 3])")
            )
        ]
    assert "(S(0)) -> (S(0)) local" in found and "(Ragged(0, [1, 3])) -> (Ragged(0, [1, 3])) local" in found
    assert "(ZigZag(0)) -> (ZigZag(0)) expand" in found
