"""Rules lift to placements that they have never heard of: the strategies, and that ranks which run them are right."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import attrs
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import spmdir
from spmdir.checking.rules.samples.sample import f, i, sample
from spmdir.checking.rules.soundness import Case, are_compatible, judge, prepare, strategies_of
from spmdir.core.dtype import F32, F64, DType
from spmdir.core.errors import ParseError, RuleError, ShardingError, SpmdirError, UnsupportedError
from spmdir.core.intervals import Ranges, chunk
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import PartialPlacement, parse_placement
from spmdir.core.placement.shards import ShardPlacement
from spmdir.core.placement.standard import Partial, Placement
from spmdir.core.placement.tensor import TensorMeta
from spmdir.rules import OpRule, Strategy
from spmdir.rules.rule_set import default
from spmdir.rules.strategies.strategy import shard_counts


@attrs.frozen
class Taken(ShardPlacement):
    """Blocks dealt to the ranks in turn."""

    text: ClassVar[str] = "Taken({dim}, {block})"
    dim: int
    block: int

    def ranges(self, size: int, count: int, index: int) -> Ranges:
        starts = range(index * self.block, size, count * self.block)
        return tuple((start, min(start + self.block, size)) for start in starts)

    def scaled(self, inner: int) -> Taken:
        return Taken(self.dim, self.block * inner)

    def unscaled(self, inner: int) -> Taken | None:
        return None if self.block % inner else Taken(self.dim, self.block // inner)

    def inside(self, outer: int) -> Taken:
        return self


@attrs.frozen
class Mirroring(ShardPlacement):
    """As S, but the first rank has the end, its elements from last to first: ranges of one element each."""

    text: ClassVar[str] = "Mirroring({dim})"
    dim: int

    def ranges(self, size: int, count: int, index: int) -> Ranges:
        offset, extent = chunk(size, count, count - 1 - index)
        return tuple((at, at + 1) for at in reversed(range(offset, offset + extent)))


@attrs.frozen
class Stretches(ShardPlacement):
    """A chunk of each of `split` equal stretches."""

    text: ClassVar[str] = "Stretches({dim}, {split})"
    dim: int
    split: int

    def ranges(self, size: int, count: int, index: int) -> Ranges:
        extent = size // self.split
        offset, length = chunk(extent, count, index)
        return tuple((at * extent + offset, at * extent + offset + length) for at in range(self.split))

    def check(self, shape: tuple[int, ...], count: int) -> None:
        if shape[self.dim] % self.split:
            raise ShardingError(f"{shape[self.dim]} elements are no {self.split} stretches; expected a multiple")

    def scaled(self, inner: int) -> Stretches:
        return self

    def unscaled(self, inner: int) -> Stretches:
        return self

    def inside(self, outer: int) -> Placement | None:
        if self.split % outer:
            return None
        return spmdir.Sharding([("x", parse_placement(f"S({self.dim})"))])["x"] if self.split == outer else None


@attrs.frozen
class FirstHasAll(ShardPlacement):
    """The first rank holds everything, so that the others' shards are empty."""

    text: ClassVar[str] = "FirstHasAll({dim})"
    dim: int

    def ranges(self, size: int, count: int, index: int) -> Ranges:
        return () if index else ((0, size),)

    def scaled(self, inner: int) -> FirstHasAll:
        return self

    def unscaled(self, inner: int) -> FirstHasAll:
        return self


@attrs.frozen
class Shared(PartialPlacement):
    """The value is half the sum of what the ranks hold."""

    text: ClassVar[str] = "Shared"

    def after(self, reduced: Any, count: int) -> Any:
        return reduced / 2

    def passes(self, clause: str, reductions: tuple[str, ...]) -> bool:
        return clause in ("moves", "linear", "multilinear")

    def distribute(self, tensor: Any, count: int, noise: Any) -> list[Any]:
        return Partial("sum").distribute(tensor * 2, count, noise)

    def supports(self, dtype: DType) -> bool:
        return dtype in (F32, F64)


@attrs.frozen
class Squares(PartialPlacement):
    """A partial Euclidean norm, which norms leave and take."""

    text: ClassVar[str] = "Squares"

    def before(self, partial: Any) -> Any:
        return partial**2

    def after(self, reduced: Any, count: int) -> Any:
        return reduced**0.5

    def distribute(self, tensor: Any, count: int, noise: Any) -> list[Any]:
        if (tensor < 0).any():
            raise UnsupportedError("a negative norm")
        weights = [abs(noise(tensor)) + 0.1 for _ in range(count)]
        return [tensor * weight / self.collect(weights, tensor.shape) for weight in weights]

    def supports(self, dtype: DType) -> bool:
        return dtype in (F32, F64)

    def lift(self, rule: OpRule, strategies: Sequence[Strategy]) -> Iterable[Strategy]:
        if rule.name == "aten.linalg_vector_norm" and rule.argument("ord") == 2:
            yield from rule.combining(self)
            yield rule.pointwise(self)


@attrs.frozen
class Liar(PartialPlacement):
    """Adds what is not a strategy, as `kind_of_lie` says."""

    text: ClassVar[str] = "Liar({kind_of_lie})"
    kind_of_lie: str

    def lift(self, rule: OpRule, strategies: Sequence[Strategy]) -> Iterable[Any]:
        first = strategies[0]
        yield {
            "short": attrs.evolve(first, operands=first.operands[1:]),
            "text": "(R) -> (R)",
            "deep": rule.pointwise(Taken(7, 1)),
            "none": attrs.evolve(first, results=(None,)),
        }[self.kind_of_lie]


def tensor(text: str) -> TensorMeta:
    sizes, dtype = re.findall(r"^((?:\d+x)*)(.*)$", text)[0]
    return TensorMeta(tuple(map(int, sizes.split("x")[:-1])), dtype)


def rule_of(op: str, operands: str, **arguments: Any) -> OpRule:
    rules = default()
    structure = ((1,) * len(operands.split()),) if op in ("aten.cat", "aten.stack") else None
    metas = tuple(map(tensor, operands.split()))
    found = rules.instantiate(rules.infer_call(op, metas, arguments, structure))
    assert found is not None
    return found


def plugins(*texts: str) -> tuple[Placement, ...]:
    return tuple(map(parse_placement, texts))


def added(rule: OpRule, *texts: str, count: int = 2) -> list[str]:
    return [str(row) for row in strategies_of(rule, count, plugins(*texts))]


CONVOLUTION = {
    "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "transposed": False, "output_padding": (0, 0), "groups": 1,
}  # fmt: skip

CASES = [
    ("aten.mm", "8x6xf32 6x4xf32", {}, ["Taken(0, 2)"], """
        (Taken(0, 2), R) -> (Taken(0, 2))
        (Taken(1, 2), Taken(0, 2)) -> (P(sum))
        (R, Taken(1, 2)) -> (Taken(1, 2))
        """),
    ("aten.mm", "8x6xf32 6x4xf32", {}, ["Shared"], """
        (Shared, R) -> (Shared)
        (R, Shared) -> (Shared)
        """),
    ("aten.mm", "8x6xi64 6x4xi64", {}, ["Shared"], ""),
    ("aten.add.Tensor", "8x6xf32 6xf32", {}, ["Mirroring(0)", "Shared"], """
        (Mirroring(0), R) -> (Mirroring(0))
        (Mirroring(1), Mirroring(0)) -> (Mirroring(1))
        (Shared, Shared) -> (Shared)
        """),
    ("aten.relu", "8x6xf32", {}, ["Taken(3, 2)", "Shared"], """
        (Taken(0, 2)) -> (Taken(0, 2))
        (Taken(1, 2)) -> (Taken(1, 2))
        """),
    ("aten.add.Tensor", "6xf32", {"other": 1.0}, ["Shared", "Mirroring(0)"], """
        (Mirroring(0)) -> (Mirroring(0))
        """),
    ("aten.sum.dim_IntList", "8x6xf32", {"dim": (1,), "keepdim": False}, ["Ragged(0, [1, 7])", "Ragged(0, [0, 6])"], """
        (Ragged(0, [1, 7])) -> (Ragged(0, [1, 7]))
        (Ragged(1, [0, 6])) -> (P(sum))
        """),
    ("aten.amax", "8x6xf32", {"dim": (1,), "keepdim": False},
     ["Ragged(0, [1, 7])", "Ragged(0, [0, 6])", "Taken(0, 4)"], """
        (Ragged(0, [1, 7])) -> (Ragged(0, [1, 7]))
        (Taken(0, 4)) -> (Taken(0, 4))
        (Taken(1, 4)) -> (P(max))
        """),
    ("aten.amax", "8x6xf32", {"dim": (1,), "keepdim": False}, ["FirstHasAll(0)"], """
        (FirstHasAll(0)) -> (FirstHasAll(0))
        """),
    ("aten._softmax", "8x6xf32", {"dim": 1, "half_to_float": False}, ["Taken(0, 1)"], """
        (Taken(0, 1)) -> (Taken(0, 1))
        (Taken(1, 1)) -> (Taken(1, 1)) expand
        """),
    ("aten._softmax", "8x6xf32", {"dim": 1, "half_to_float": False}, ["FirstHasAll(0)"], """
        (FirstHasAll(0)) -> (FirstHasAll(0))
        """),
    # T, H·D and T, H, D: what is dealt by heads is dealt by as many columns.
    ("aten.view", "5x32xf32", {"size": (5, 8, 4)}, ["Taken(0, 8)"], """
        (Taken(0, 8)) -> (Taken(0, 8))
        (Taken(1, 32)) -> (Taken(1, 8))
        (Taken(1, 8)) -> (Taken(1, 2))
        """),
    ("aten.view", "5x8x4xf32", {"size": (5, 32)}, ["Taken(0, 2)"], """
        (Taken(0, 2)) -> (Taken(0, 2))
        (Taken(1, 2)) -> (Taken(1, 8))
        (Taken(2, 2)) -> (Taken(1, 2))
        """),
    ("aten.view", "5x8x3xf32", {"size": (5, 24)}, ["Taken(0, 2)", "Mirroring(0)"], """
        (Taken(0, 2)) -> (Taken(0, 2))
        (Mirroring(0)) -> (Mirroring(0))
        (Taken(1, 2)) -> (Taken(1, 6))
        """),
    # B, S → B·S: the outer part is scaled, the inner part is a chunk of every stretch.
    ("aten.view", "6x8xf32", {"size": (48,)}, ["Taken(0, 1)", "Stretches(0, 6)", "Stretches(0, 4)"], """
        (Taken(0, 1)) -> (Taken(0, 8))
        (Taken(1, 1)) -> (Taken(0, 1))
        (S(1)) -> (Stretches(0, 6))
        """),
    ("aten.view", "48xf32", {"size": (6, 8)}, ["Stretches(0, 6)", "Ragged(0, [1, 5])", "Ragged(0, [8, 40])"], """
        (Ragged(0, [8, 40])) -> (Ragged(0, [1, 5]))
        (Stretches(0, 6)) -> (S(1))
        """),
    ("aten.t", "8x6xf32", {}, ["Taken(0, 2)", "Shared"], """
        (Taken(0, 2)) -> (Taken(1, 2))
        (Taken(1, 2)) -> (Taken(0, 2))
        (Shared) -> (Shared)
        """),
    ("aten.embedding", "16x8xf32 4x3xi64", {}, ["Taken(0, 1)"], """
        (R, Taken(0, 1)) -> (Taken(0, 1))
        (R, Taken(1, 1)) -> (Taken(1, 1))
        (Taken(0, 1), R) -> (P(sum)) local
        (Taken(1, 1), R) -> (Taken(2, 1))
        """),
    ("aten.cat", "4x6xf32 3x6xf32", {"dim": 0}, ["Taken(0, 2)"], """
        (Taken(1, 2), Taken(1, 2)) -> (Taken(1, 2))
        """),
    ("aten.slice.Tensor", "8x6xf32", {"dim": 0, "start": 2, "end": 5}, ["Taken(0, 1)"], """
        (Taken(0, 1)) -> (P(sum)) local
        (Taken(1, 1)) -> (Taken(1, 1))
        """),
    ("aten.expand", "1x6xf32", {"size": (4, 6)}, ["Taken(0, 1)"], """
        (Taken(1, 1)) -> (Taken(1, 1))
        (R) -> (Taken(0, 1))
        """),
    ("aten.linalg_vector_norm", "8x6xf32", {"dim": (1,)}, ["Squares"], """
        (S(1)) -> (Squares)
        (Squares) -> (Squares)
        """),
    ("aten.linalg_vector_norm", "8x6xf32", {"dim": (1,), "ord": 1}, ["Squares"], ""),
    ("aten.linalg_vector_norm", "8x6xcomplex<f64>", {"dim": (1,)}, ["Squares"], """
        (S(1)) -> (Squares)
        """),
    ("aten.convolution", "4x3x8x8xf32 5x3x3x3xf32", CONVOLUTION, ["Taken(0, 1)"], """
        (Taken(0, 1), R) -> (Taken(0, 1))
        (Taken(1, 1), Taken(1, 1)) -> (P(sum))
        (R, Taken(0, 1)) -> (Taken(1, 1))
        """),
    ("aten.cumsum", "8x6xf32", {"dim": 1}, ["Mirroring(0)"], """
        (Mirroring(0)) -> (Mirroring(0))
        (Mirroring(1)) -> (P(sum)) local
        """),
]  # fmt: skip


@pytest.mark.parametrize(
    ("op", "operands", "arguments", "texts", "expected"), CASES, ids=lambda v: v if str(v)[:5] == "aten." else ""
)
def test_the_strategies_that_plug_ins_get(op: str, operands: str, arguments: dict, texts: list[str], expected: str):
    assert added(rule_of(op, operands, **arguments), *texts) == textwrap.dedent(expected).strip().splitlines()


def test_lifted_strategies_come_after_those_of_the_rule_which_stay_as_they_are():
    rule = rule_of("aten.mm", "8x6xf32 6x4xf32")
    rows = rule.strategies(2, placements=plugins("Taken(0, 2)", "Shared"))
    own = rule.strategies(2)
    assert rows[: len(own)] == own
    assert rule.strategies(2, placements=plugins("S(0)", "P(sum)", "R")) is own


def test_strategies_are_asked_for_by_text_too():
    metas = (tensor("8x6xf32"),)
    found = spmdir.rules.op_strategies("aten.relu", metas, {}, 2, placements=("Taken(0, 2)",))
    assert [str(row) for row in found[-2:]] == ["(Taken(0, 2)) -> (Taken(0, 2))", "(Taken(1, 2)) -> (Taken(1, 2))"]
    with pytest.raises(ParseError, match="unknown placement"):
        spmdir.rules.op_strategies("aten.relu", metas, {}, 2, placements=("Nonesuch(0)",))
    with pytest.raises(SpmdirError, match="placements"):
        spmdir.rules.op_strategies("aten.relu", metas, {}, 2, placements="Taken(0, 2)")


@pytest.mark.parametrize(
    ("lie", "said"), [("short", "1 operands"), ("text", "a Strategy"), ("deep", "dimensions below 2"), ("none", "None")]
)
def test_a_plug_in_that_adds_what_is_no_row_is_named(lie: str, said: str):
    with pytest.raises(RuleError, match=rf"placement Liar\({lie}\) adds .* to aten.relu.*{said}"):
        rule_of("aten.relu", "8x6xf32").strategies(2, placements=plugins(f"Liar({lie})"))


def test_a_row_can_be_had_with_another_result():
    row = rule_of("aten.mm", "8x6xf32 6x4xf32").strategies(2)[2]
    assert str(row.replaced(Partial("sum"), Shared())) == "(S(1), S(0)) -> (Shared)"


def factor(rule: OpRule, size: int) -> int:
    used = {f for dims in (*rule.operand_dims, *rule.result_dims) for d in dims or () for f in d}
    return next(f for f in sorted(used) if rule.factors[f].size == size)


def test_flattening_takes_the_stretches_that_other_axes_leave():
    rule = rule_of("aten.view", "6x8xf32", size=(48,))
    batch = factor(rule, 6)
    (outer,) = (row for row in rule.strategies(2) if row.factors == (batch,))
    extras = plugins("Stretches(0, 6)", "Stretches(0, 3)", "Taken(0, 1)")
    rows = rule.strategies(2, shard_counts([(outer, 2)]), extras)
    assert "(S(1)) -> (Stretches(0, 3))" in map(str, rows)
    assert "(S(1)) -> (Stretches(0, 6))" not in map(str, rows)
    (inner,) = (row for row in rows if str(row) == "(S(1)) -> (Stretches(0, 3))")
    assert are_compatible(rule, (outer, inner), (2, 2), extras)
    case = prepare(sample("view", f(6, 8), size=(48,)), default())
    assert judge(case, [("x", outer), ("y", inner)], Mesh({"x": 2, "y": 2})).fault is None
    # Taken sequences leave no equal stretches to a further axis.
    (dealt,) = (row for row in rule.strategies(2, placements=extras) if str(row) == "(Taken(0, 1)) -> (Taken(0, 8))")
    assert dealt.factors == (batch,) and dealt.factor_placements == (Taken(0, 1),)
    further = rule.strategies(2, shard_counts([(dealt, 2)]), extras)
    assert [str(row) for row in further if row.factors] == []


def test_what_asks_for_its_place_goes_with_lifted_strategies_only_of_what_it_does_not_ask_about():
    lookup = rule_of("aten.embedding", "16x8xf32 4x3xi64")
    (tokens,) = (
        row
        for row in lookup.strategies(2, placements=plugins("Mirroring(0)"))
        if str(row).startswith("(R, Mirroring(0)")
    )
    assert "(S(0), R) -> (P(sum)) local" in map(str, lookup.strategies(2, shard_counts([(tokens, 2)])))
    pixels = rule_of("aten.convolution", "4x3x8x8xf32 5x3x3x3xf32", **CONVOLUTION)
    (images,) = (
        row
        for row in pixels.strategies(2, placements=plugins("Taken(0, 1)"))
        if str(row).startswith("(Taken(0, 1), R)")
    )
    assert not any(row.rewrite == "local" for row in pixels.strategies(2, shard_counts([(images, 2)])))


def test_an_op_that_stays_unsharded_on_one_axis_is_not_expanded_for_another():
    rule = rule_of("aten.linalg_vector_norm", "8x6x4xf32", dim=(1, 2))
    rows = rule.strategies(2, placements=plugins("Squares"))
    kept = next(row for row in rows if str(row) == "(S(1)) -> (Squares)")
    beside = rule.strategies(2, shard_counts([(kept, 2)]), plugins("Squares"))
    assert {str(row) for row in beside if row.factors} == {
        "(S(0)) -> (S(0))", "(S(1)) -> (Squares)", "(S(2)) -> (Squares)",
    }  # fmt: skip


def test_factors_whose_sizes_arguments_say_stay_unsharded():
    for op, operands, arguments in [
        ("aten.pixel_unshuffle", "1x1x4x4xf32", {"downscale_factor": 2}),
        ("aten.pixel_shuffle", "1x4x2x2xf32", {"upscale_factor": 2}),
        ("aten.channel_shuffle", "1x4x3xf32", {"groups": 2}),
        ("aten.unfold", "4xf32", {"dimension": 0, "size": 2, "step": 2}),
    ]:
        rule = rule_of(op, operands, **arguments)
        for outer in rule.strategies(2):
            rows = rule.strategies(2, shard_counts([(outer, 2)]), plugins("Taken(0, 1)"))
            told = {at for at, one in enumerate(rule.factors) if one.name in ("i", "j", "g", "e")}
            assert told and not told & {factor for row in rows for factor in row.factors}, op


SAMPLES = [
    sample("mm", f(8, 6), f(6, 4)),
    sample("add.Tensor", f(7, 6), f(6)),
    sample("mul.Tensor", f(7, 6), f(7, 6)),
    sample("relu", f(8, 6)),
    sample("sum.dim_IntList", f(8, 6), dim=(1,), keepdim=False),
    sample("amax", f(8, 6), dim=(0,), keepdim=True),
    sample("_softmax", f(5, 8), dim=1, half_to_float=False),
    sample("native_layer_norm", f(6, 8), f(8), f(8), normalized_shape=(8,), eps=1e-5),
    sample("linalg_vector_norm", f(6, 8), dim=(1,)),
    sample("view", f(5, 8, 4), size=(5, 32)),
    sample("view", f(5, 32), size=(5, 8, 4)),
    sample("view", f(6, 8), size=(48,)),
    sample("view", f(4, 2, 6), size=(2, 4, 6)),
    sample("transpose.int", f(8, 6), dim0=0, dim1=1),
    sample("embedding", f(12, 6), i(12, 5, 4)),
    sample("cat", [f(4, 6), f(3, 6)], dim=0),
    sample("slice.Tensor", f(8, 6), dim=0, start=2, end=7),
    sample("expand", f(1, 6), size=(4, 6)),
    sample("cumsum", f(6, 8), dim=1),
    sample("bmm", f(4, 3, 6), f(4, 6, 5)),
]

TEXTS = (
    "Taken(0, 1)", "Taken(0, 2)", "Taken(0, 3)", "Taken(0, 8)", "Mirroring(0)", "Stretches(0, 2)", "Stretches(0, 3)",
    "Stretches(0, 6)", "FirstHasAll(0)", "Ragged(0, [2, 6])", "Ragged(0, [5, 1])", "Ragged(0, [8, 40])",
    "Ragged(0, [1, 0, 5])", "Shared", "Squares",
)  # fmt: skip

PREPARED: dict[int, Case] = {}


def prepared(number: int) -> Case:
    return PREPARED.setdefault(number, prepare(SAMPLES[number], default()))


EXTRAS = st.lists(st.sampled_from(TEXTS), min_size=1, max_size=4, unique=True).map(lambda texts: plugins(*texts))
DEALT = EXTRAS.map(lambda extras: (*plugins("Taken(0, 1)"), *extras))
NUMBERS = st.sampled_from(range(len(SAMPLES)))


@settings(max_examples=60)
@given(NUMBERS, EXTRAS, st.sampled_from((2, 3, 4)))
def test_every_lifted_row_gives_what_the_op_gives(number: int, extras: tuple[Placement, ...], count: int):
    case = prepared(number)
    for row in strategies_of(case.rule, count, extras):
        assert judge(case, [("x", row)], Mesh({"x": count})).fault is None


@settings(max_examples=60)
@given(NUMBERS, DEALT, st.sampled_from(((2, 2), (2, 3), (3, 2))), st.data())
def test_lifted_strategies_of_two_axes_that_hold_together_are_right(
    number: int, extras: tuple[Placement, ...], counts: tuple[int, int], data: st.DataObject
):
    case = prepared(number)
    outer = data.draw(st.sampled_from([row for row in strategies_of(case.rule, counts[0], extras) if row.factors]))
    inner = case.rule.strategies(counts[1], shard_counts([(outer, counts[0])]), extras)
    pairs = [way for row in inner if row.factors for way in ((outer, row), (row, outer))]
    assume(
        pairs := [
            rows for rows in pairs if are_compatible(case.rule, rows, counts, extras) and _fits(case, rows, counts)
        ]
    )
    rows = data.draw(st.sampled_from(pairs))
    mesh = Mesh({"x": counts[0], "y": counts[1]})
    assert judge(case, list(zip("xy", rows, strict=True)), mesh).fault is None


def test_placements_that_cannot_shard_over_the_ranks_of_other_axes_are_no_error_beside_them():
    uneven = plugins("Taken(0, 1)", "Ragged(0, [2, 6])")
    rule = next(prepared(at).rule for at, given in enumerate(SAMPLES) if given.op == "aten.cumsum")
    for outer in rule.strategies(3, placements=uneven):
        assert rule.strategies(2, shard_counts([(outer, 3)]), uneven)


def _fits(case: Case, pair: Sequence[Strategy], counts: Sequence[int]) -> bool:
    """Return whether shapes can be placed so, which the type check asks beside the strategies."""
    mesh = Mesh({"x": counts[0], "y": counts[1]})
    metas = (*case.rule.call.operands, *case.rule.call.results)
    try:
        for index, meta in enumerate(metas):
            held = [(*row.operands, *row.results)[index] for row in pair]
            if meta is not None:
                spmdir.Sharding(zip("xy", held, strict=True)).check_shape(mesh, meta.shape)
    except ShardingError:
        return False
    return True


def test_a_placement_that_says_wrongly_what_it_is_of_a_part_gets_no_row():
    @attrs.frozen
    class Wrong(Taken):
        text: ClassVar[str] = "WrongDealt({dim}, {block})"

        def scaled(self, inner: int) -> Wrong:
            return Wrong(self.dim, self.block)

        def unscaled(self, inner: int) -> Wrong | None:
            return self if inner == 1 else None

        def inside(self, outer: int) -> Wrong:
            return self

    found = added(rule_of("aten.view", "5x8x4xf32", size=(5, 32)), "WrongDealt(0, 1)")
    assert found == ["(WrongDealt(0, 1)) -> (WrongDealt(0, 1))", "(WrongDealt(2, 1)) -> (WrongDealt(1, 1))"]


def test_samples_of_all_kinds_are_lifted():
    counts = [len(strategies_of(prepared(at).rule, 2, plugins("Taken(0, 1)"))) for at in range(len(SAMPLES))]
    assert all(counts), counts


@pytest.mark.parametrize(
    ("op", "types", "arguments", "expected"),
    [
        ("aten.relu", "4x6xf32", {}, True),
        ("aten.add.Tensor", "4x6xf32 4x6xf32", {}, True),
        ("aten.add.Tensor", "4x6xf32 6xf32", {}, False),
        ("aten.t", "4x6xf32", {}, False),
        ("aten.cumsum", "4x6xf32", {"dim": 1}, False),
        ("aten._softmax", "4x6xf32", {"dim": 1, "half_to_float": False}, False),
    ],
)
def test_ops_are_pointwise_that_do_the_same_to_each_element_alone(op, types, arguments, expected):
    assert rule_of(op, types, **arguments).is_pointwise == expected
