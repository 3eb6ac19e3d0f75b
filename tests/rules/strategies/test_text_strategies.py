"""Strategies written as text: what they are on a call, what they go beside, and that ranks which run them are right."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import attrs
import pytest
import torch

import spmdir
from spmdir.checking.rules.samples.sample import Sample, f, sample
from spmdir.checking.rules.soundness import prepare, unsound
from spmdir.core.errors import SpmdirError
from spmdir.core.intervals import Ranges
from spmdir.core.placement.base import parse_placement
from spmdir.core.placement.shards import ShardPlacement
from spmdir.core.placement.standard import Placement
from spmdir.core.placement.tensor import TensorMeta
from spmdir.plugins import extended_rules
from spmdir.rules import OpRule, RuleSet
from spmdir.rules.rule_set import default
from spmdir.rules.strategies.obstacle import Dropped
from spmdir.rules.strategies.strategy import shard_counts
from spmdir.torch_interop.schemas import torch_op


@attrs.frozen
class Rows(ShardPlacement):
    """Elements are dealt to the ranks in turn."""

    text: ClassVar[str] = "Rows({dim})"
    rules: ClassVar[str] = """
        aten.logcumsumexp: (Rows(1)) -> (Rows(1))
            when rank(self) == 2 and dim == 0
        aten.sort: (shard(1)) -> (shard(1), shard(1))    when dim == 0
    """
    dim: int

    def ranges(self, size: int, count: int, index: int) -> Ranges:
        return tuple((at, at + 1) for at in range(index, size, count))


def rules_of(tmp_path: Path, text: str) -> RuleSet:
    path = tmp_path / "own.rules"
    path.write_text(text)
    return default().with_file(path)


def rule_of(one: Sample, rules: RuleSet | None = None) -> OpRule:
    return prepare(one, rules or default()).rule


def declared(rule: OpRule, *placements: str | Placement, count: int = 2, beside: str = "") -> list[str]:
    """Return the strategies that are written as text, beside an axis of 2 ranks with the strategy `beside`."""
    extras = tuple(parse_placement(p) if isinstance(p, str) else p for p in placements)
    others = [s for s in rule.strategies(2, placements=extras) if str(s) == beside]
    assert bool(others) == bool(beside), beside
    found = rule.strategies(count, shard_counts([(other, 2) for other in others[:1]]), extras)
    return [str(strategy) for strategy in found if strategy.text]


STRIDED = "Strided(0, 2)"


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (sample("chunk", f(4, 12), chunks=3, dim=1), ["(Strided(1, 3)) -> (S(1), S(1), S(1))"]),
        (sample("chunk", f(4, 12), chunks=3, dim=-1), ["(Strided(1, 3)) -> (S(1), S(1), S(1))"]),
        (sample("chunk", f(4, 11), chunks=3, dim=1), []),
        (sample("split.Tensor", f(4, 12), split_size=4, dim=1), ["(Strided(1, 3)) -> (S(1), S(1), S(1)) local"]),
        (sample("split.Tensor", f(4, 10), split_size=4, dim=1), []),
        (sample("split_with_sizes", f(4, 12), split_sizes=[6, 6], dim=1), ["(Strided(1, 2)) -> (S(1), S(1)) local"]),
        (sample("split_with_sizes", f(4, 12), split_sizes=[8, 4], dim=1), []),
        (sample("cat", [f(4, 6), f(4, 6)], dim=-1), ["(S(1), S(1)) -> (Strided(1, 2))"]),
        (sample("cat", [f(4, 6), f(4, 2)], dim=-1), []),
    ],
    ids=lambda given: given.op if isinstance(given, Sample) else None,
)  # fmt: skip
def test_equal_parts_of_a_dimension_come_apart_and_together(one: Sample, expected: list[str]):
    rule = rule_of(one)
    assert declared(rule) == []
    assert declared(rule, STRIDED) == expected


@pytest.mark.parametrize("size", [12, 15, 21, 24])
def test_uneven_parts_are_right_too(size: int):
    extras = (parse_placement(STRIDED),)
    for one in (
        sample("chunk", f(4, size), chunks=3, dim=1),
        sample("split.Tensor", f(4, size), split_size=size // 3, dim=1),
        sample("split_with_sizes", f(size), split_sizes=[size // 3] * 3),
        sample("cat", [f(size), f(size)]),
    ):
        assert declared(rule_of(one), STRIDED)
        assert not unsound(one, default(), (2, 3, 4), plugins=extras)


def test_a_class_brings_strategies_where_the_program_names_it():
    rule = rule_of(sample("logcumsumexp", f(4, 6), dim=0))
    assert declared(rule, "Cyclic(0, 1)") == []
    assert declared(rule, "Rows(0)") == ["(Rows(1)) -> (Rows(1))"]
    assert declared(rule_of(sample("logcumsumexp", f(4, 6), dim=1)), "Rows(0)") == []


def test_shard_is_every_placement_of_the_program_that_shards():
    found = declared(rule_of(sample("sort", f(4, 6), dim=0)), "Rows(0)", "Cyclic(0, 2)")
    assert found == [f"({p}) -> ({p}, {p})" for p in ("S(1)", "Rows(1)", "Cyclic(1, 2)")]


MATMUL = "aten.mm: (S(-1), S(k)) -> (P(sum))\n    local\n    return aten.mm(self, mat2)"


def test_a_strategy_of_a_file_holds_in_all_programs(tmp_path: Path):
    rules = rules_of(tmp_path, "aten.mm: (S(k), S(k)) -> (P(sum))    when count(k) % 2 == 0")
    assert declared(rule_of(sample("mm", f(4, 6), f(6, 3)), rules)) == ["(S(1), S(0)) -> (P(sum))"]
    assert declared(rule_of(sample("mm", f(4, 5), f(5, 3)), rules)) == []


def test_a_file_keeps_the_rules_of_ops_that_it_has_strategies_of(tmp_path: Path):
    rules = rules_of(tmp_path, MATMUL)
    assert rules.records == default().records
    assert declared(rule_of(sample("mm", f(4, 6), f(6, 3)), rules)) == ["(S(1), S(0)) -> (P(sum)) local"]


@pytest.mark.parametrize(
    ("text", "one", "fault"),
    [
        ("aten.cumsum: (S(dim)) -> (S(dim))", sample("cumsum", f(6, 4), dim=0), "result 0"),
        (
            "aten.cumsum: (S(dim)) -> (S(dim))\n    local\n    x = aten.add.Scalar(self, offset(dim))\n"
            "    return aten.cumsum(x, dim)",
            sample("cumsum", f(6, 4), dim=0),
            "result 0",
        ),
        ("aten.chunk: (Strided(dim, chunks)) -> (S(dim)…)", sample("chunk", f(11), chunks=4), "zip() argument 3"),
        ("aten.relu: (S(0)) -> (P(sum))", sample("relu", f(6, 4)), "shape"),
    ],
)  # fmt: skip
def test_a_wrong_strategy_is_found_by_running_it(tmp_path: Path, text: str, one: Sample, fault: str):
    found = unsound(one, rules_of(tmp_path, text))
    assert found and fault in found[0]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("aten.relu: (S(2)) -> (S(2))", "a tensor of rank 2 has no dimension 2 (own.rules:1:13)"),
        ("aten.relu: (Strided(2, 2)) -> (R)", "a tensor of rank 2 has no dimension 2 (own.rules:1:13)"),
        (
            "aten.relu: (S(0)) -> (S(0))    when none + 1 == 4",
            "cannot compute None + 1; expected operands to which Python can apply this operator: correct their types "
            "(own.rules:1:42)",
        ),
        ("aten.relu: (Strided(0, 0)) -> (R)", "'split' must be >= 1: 0"),
    ],
)
def test_a_strategy_that_does_not_fit_a_call_leaves_the_op_its_others(tmp_path: Path, text: str, reason: str):
    one = sample("relu", f(6, 4))
    rule = rule_of(one, rules_of(tmp_path, text))
    assert rule.strategies(2) == rule_of(one).strategies(2)
    (dropped,) = (one for one in rule.considered(2) if isinstance(one, Dropped) and one.placement is None)
    assert str(dropped.reason).replace(f"{tmp_path}/", "") == reason


BESIDE = "aten.cat: (S(dim)…) -> (Strided(dim, length(tensors)))"


def test_other_axes_shard_other_dimensions_beside_it():
    rule = rule_of(sample("chunk", f(4, 12), chunks=3, dim=1))
    own = "(Strided(1, 3)) -> (S(1), S(1), S(1))"
    assert declared(rule, STRIDED, beside="(S(0)) -> (S(0), S(0), S(0))") == [own]
    assert declared(rule, STRIDED, beside=own) == []
    (outer,) = (s for s in rule.strategies(2, placements=(parse_placement(STRIDED),)) if str(s) == own)
    beside = [str(s) for s in rule.strategies(2, shard_counts([(outer, 2)])) if s.factors]
    assert beside == ["(S(0)) -> (S(0), S(0), S(0))"]


def test_a_local_form_is_alone_or_beside_what_it_does_not_read(tmp_path: Path):
    text = "aten.logcumsumexp: (S(1)) -> (S(1))\n    when dim == 0\n    local\n    x = aten.cumsum(self, dim)\n"
    text += "    return aten.mul.Scalar(x, {})"
    one = sample("logcumsumexp", f(4, 6, 5), dim=0)
    other, extras = "(Rows(2)) -> (Rows(2))", ("Rows(0)",)
    for factor, expected in (("1", ["(S(1)) -> (S(1)) local"]), ("count(dim)", ["(S(1)) -> (S(1)) local"])):
        rule = rule_of(one, rules_of(tmp_path, text.format(factor)))
        assert declared(rule, *extras, beside=other) == expected


def test_text_that_is_no_strategy_is_an_error_at_its_line_in_the_class(tmp_path: Path):
    path = tmp_path / "wrong.py"
    path.write_text(
        "from typing import ClassVar\n\nimport attrs\nfrom spmdir.placements.cyclic import Cyclic\n\n\n@attrs.frozen\n"
        'class Wrongly(Cyclic):\n    text: ClassVar[str] = "Wrongly({dim}, {block})"\n    rules: ClassVar[str] = """\n'
        '    aten.chunk: (Wrongly(dim, chunk)) -> (S(dim)…)\n    aten.reluu: (R) -> (R)\n    """\n'
    )
    with pytest.raises(SpmdirError) as caught:
        spmdir.plugins.load_plugin(path)
    assert str(caught.value).replace(str(path), path.name).splitlines() == [
        "wrong.py:11:31: error: unknown name 'chunk'; expected one of *, chunks, dim, self, ~dim; "
        "did you mean 'chunks'?",
        "wrong.py:12:5: error: 'aten.reluu' has no rule; expected a strategy of an op with a rule; "
        "did you mean 'aten.relu'?",
    ]


def test_text_that_a_class_composes_is_an_error_at_the_line_that_gives_it_or_is_quoted(tmp_path: Path):
    path = tmp_path / "composed.py"
    path.write_text(
        "from typing import ClassVar\n\nimport attrs\nfrom spmdir.placements.cyclic import Cyclic\n\n"
        "NAME = 'chunk'\n\n\n"
        '@attrs.frozen\nclass Composed(Cyclic):\n    text: ClassVar[str] = "Composed({dim}, {block})"\n'
        '    rules: ClassVar[str] = f"""\n'
        "    aten.{NAME}: (Composed(dim, chunk)) -> (S(dim)…)\n    aten.reluu: (R) -> (R)\n"
        '""" + "\\n".join(f"    aten.{op}: (S(0)) -> (S(q))" for op in ("neg", "abs"))\n'
    )
    with pytest.raises(SpmdirError) as caught:
        spmdir.plugins.load_plugin(path)
    unknown = "error: unknown name 'q'; expected one of *, self"
    assert [one.partition("; did you")[0] for one in str(caught.value).replace(str(path), path.name).splitlines()] == [
        "composed.py:13:32: error: unknown name 'chunk'; expected one of *, chunks, dim, self, ~dim",
        "composed.py:14:5: error: 'aten.reluu' has no rule; expected a strategy of an op with a rule",
        f"composed.py:9:1: error: 'aten.neg: (S(0)) -> (S(q))': {unknown.removeprefix('error: ')}",
        f"composed.py:9:1: error: 'aten.abs: (S(0)) -> (S(q))': {unknown.removeprefix('error: ')}",
    ]


def test_a_rules_file_beside_a_placement_belongs_to_it(tmp_path: Path):
    path = tmp_path / "besides.py"
    path.write_text(
        "from typing import ClassVar\n\nimport attrs\nfrom spmdir.placements.strided import Strided\n\n\n"
        '@attrs.frozen\nclass Besides(Strided):\n    text: ClassVar[str] = "Besides({dim}, {split})"\n'
    )
    (tmp_path / "besides.rules").write_text("aten.chunk: (Besides(dim, chunks)) -> (S(dim)…)\n")
    plugin = spmdir.plugins.load_plugin(path)
    assert plugin.strategies == {}
    (tmp_path / "own.rules").write_text("aten.chunk: (R) -> (S(dim)…)\n")
    assert list(spmdir.plugins.load_plugin(tmp_path / "own.rules").strategies) == ["aten.chunk"]
    rule = rule_of(sample("chunk", f(12), chunks=3), extended_rules([plugin]))
    assert declared(rule) == []
    assert declared(rule, "Besides(0, 3)") == ["(Besides(0, 3)) -> (S(0), S(0), S(0))"]
    (tmp_path / "besides.rules").write_text("aten.chunk: (Besides(dim, chunks)) -> (R…)\n")
    assert spmdir.plugins.load_plugin(path).digest != plugin.digest
    assert declared(rule, "Besides(0, 3)") == ["(Besides(0, 3)) -> (R, R, R)"]


def test_a_placement_may_have_strategies_in_its_class_and_in_a_file_beside_it(tmp_path: Path):
    path = tmp_path / "both.py"
    path.write_text(
        "from typing import ClassVar\n\nimport attrs\nfrom spmdir.placements.strided import Strided\n\n\n"
        '@attrs.frozen\nclass Both(Strided):\n    text: ClassVar[str] = "Both({dim}, {split})"\n'
        '    rules: ClassVar[str] = "aten.chunk: (Both(dim, chunks)) -> (S(dim)…)"\n'
    )
    (tmp_path / "both.rules").write_text("aten.chunk: (Both(dim, chunks)) -> (R…)\n")
    assert spmdir.plugins.load_plugin(path).strategies == {}
    rule = rule_of(sample("chunk", f(12), chunks=3))
    assert declared(rule) == []
    assert declared(rule, "Both(0, 3)") == ["(Both(0, 3)) -> (S(0), S(0), S(0))", "(Both(0, 3)) -> (R, R, R)"]


@pytest.mark.parametrize("size", [0, 1, 6, 7])
@pytest.mark.parametrize(
    ("op", "arguments"),
    [
        ("chunk", {"chunks": 3}),
        ("split.Tensor", {"split_size": 4}),
        ("split_with_sizes", {"split_sizes": ()}),
        ("tensor_split.sections", {"sections": 4}),
        ("tensor_split.indices", {"indices": (-2, 3, 9)}),
        ("unbind.int", {}),
    ],
)
def test_the_results_of_what_takes_a_dimension_apart_are_inferred(op: str, arguments: dict, size: int):
    if op == "split_with_sizes":
        arguments = {"split_sizes": (size // 2, size - size // 2)}
    right = torch_op(f"aten.{op}")(torch.empty(2, size), *arguments.values(), dim=-1)
    call = default().infer_call(f"aten.{op}", (TensorMeta((2, size), "f32"),), {**arguments, "dim": -1})
    assert [meta and meta.shape for meta in call.results] == [tuple(part.shape) for part in right]


@attrs.frozen
class Shares(Placement):
    """Ranks have one of a few heads, dimension 1 of four, between some of them."""

    text: ClassVar[str] = "Shares({heads})"
    rules: ClassVar[str] = """
        aten.scaled_dot_product_attention: (S(1), Shares(count(h)), Shares(count(h))) -> (S(1))
            when rank(query) == 4
            local
            return aten.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, scale)
    """
    heads: int

    def check(self, shape: tuple[int, ...], count: int) -> None:
        if count % self.heads:
            raise SpmdirError(f"{self} is for a multiple of {self.heads} ranks; found {count}")


GROUPED = sample("scaled_dot_product_attention", f(1, 8, 6, 4), f(1, 2, 6, 4), f(1, 2, 6, 4), enable_gqa=True)


def test_a_dimension_of_several_factors_is_sharded_as_one():
    """8 heads of 2 groups go to 4 ranks, though a group is not sharded in 4."""
    expected = ["(S(1), Shares(2), Shares(2)) -> (S(1)) local"]
    assert [declared(rule_of(GROUPED), "Shares(2)", count=count) for count in (2, 4, 8)] == [expected] * 3
    assert declared(rule_of(GROUPED), "Shares(2)", count=10) == []


def test_errors_list_strategies_written_as_text_first():
    placed = [parse_placement(text) for text in ("S(1)", "R", "R", "S(1)")]
    first, *_ = rule_of(GROUPED).why_not(3, placed, (parse_placement("Shares(2)"),))
    assert str(first).startswith("no (S(1), Shares(count(h)), Shares(count(h))) -> (S(1)): Shares(2) is for a multiple")
