"""What an op does not offer is told with its reason, by the engine that leaves it out."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import attrs
import pytest

import spmdir
from spmdir.core.dtype import BF16, DType
from spmdir.core.errors import SpmdirWarning
from spmdir.core.intervals import Ranges
from spmdir.core.placement.base import PartialPlacement
from spmdir.core.placement.shards import ShardPlacement
from spmdir.core.placement.standard import S
from spmdir.rules.strategies.obstacle import Dropped
from tests.rules.lines import tensor


@attrs.frozen
class InTurn(ShardPlacement):
    """Elements are dealt to the ranks in turn; it offers what S offers, whatever the op does with it."""

    text: ClassVar[str] = "InTurn({dim})"
    dim: int

    def ranges(self, size: int, count: int, index: int) -> Ranges:
        return tuple((at, at + 1) for at in range(index, size, count))

    def lift(self, rule: Any, strategies: Any) -> Any:
        def replaced(placements: Any) -> Any:
            return tuple(InTurn(p.dim) if isinstance(p, S) else p for p in placements)

        for one in strategies:
            if one.rewrite == "local":
                yield attrs.evolve(one, operands=replaced(one.operands), factor_placements=(InTurn(0),))


@attrs.frozen
class OfFloats(PartialPlacement):
    text: ClassVar[str] = "OfFloats"

    def supports(self, dtype: DType) -> bool:
        return dtype.is_float


@attrs.frozen
class PassesLinear(PartialPlacement):
    text: ClassVar[str] = "PassesLinear"

    def passes(self, clause: str, reductions: tuple[str, ...]) -> bool:
        return clause in ("linear", "multilinear")


def reasons(op: str, operands: str, *placements: str, count: int = 2, **arguments: Any) -> list[str]:
    """Return what plug-ins, or S where none are given, do not get of an op."""
    metas = tuple(map(tensor, operands.split()))
    found = spmdir.rules.op_strategies(f"aten.{op}", metas, arguments, count, placements, why=True)
    dropped = [one for one in found if isinstance(one, Dropped)]
    return [str(one) for one in dropped if not placements or not isinstance(one.placement, S)]


def test_a_local_form_that_a_placement_cannot_use_is_told_at_its_lift():
    metas = (tensor("2x2x6"),)
    with pytest.warns(
        SpmdirWarning, match=r"adds '\(InTurn\(2\)\) -> \(S\(2\)\) local' to aten.avg_pool1d, which is omitted"
    ) as told:
        spmdir.rules.op_strategies("aten.avg_pool1d", metas, {"kernel_size": (3,)}, 2, ("InTurn(0)",))
    line = InTurn.lift.__code__.co_firstlineno
    assert {str(warning.message).partition(": ")[0] for warning in told} == {f"{__file__}:{line}:1"}


@pytest.mark.filterwarnings("ignore:.*placement InTurn")
@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (lambda: reasons("amax", "5x1", count=4, dim=(0,)),
         ["no S(d0): 5 elements over 4 ranks leave a rank with fewer than 1",
          "no S(d1): it has fewer than 2 elements"]),
        (lambda: reasons("sort", "8x9", "Cyclic(0, 2)", descending=False),
         ["no Cyclic(d1, 2): the rule does not allow sharding it (order.rules:35:76)"]),
        (lambda: reasons("avg_pool1d", "2x2x8", "InTurn(0)", kernel_size=(2,)),
         ["no InTurn(x): windows slide along it, and halos require shards of one range",
          "no InTurn(stride): the rule does not allow sharding it (window.rules:37:1)",
          "no (InTurn(2)) -> (S(2)) local: the local form of the rule requires shards of one range "
          "(window.rules:39:5)"]),
        (lambda: reasons("mm", "6x4 4x8", "Ragged(0, [1, 3])"),
         ["no Ragged(m, [1, 3]): this placement cannot shard 6 elements over 2 ranks",
          "no Ragged(n, [1, 3]): this placement cannot shard 8 elements over 2 ranks"]),
        (lambda: reasons("view", "6x4", "Cyclic(0, 3)", size=(24,)),
         ["no Cyclic(r1, 3): no placement corresponds to it in a dimension that it shares, by `scaled` and `inside`"]),
        (lambda: reasons("neg", "6xi64", "OfFloats"), ["no OfFloats: this placement does not support i64"]),
        (lambda: reasons("exp", "6xf32", "OfFloats"),
         ["no OfFloats: this placement does not pass `commutes max min` (pointwise.rules:80:59)"]),
        (lambda: reasons("add.Tensor", "6xf32", "PassesLinear", other=1.0),
         ["no PassesLinear: `linear` requires a tensor, but 'other' is the number 1.0, which every rank would add "
          "(pointwise.rules:11:59)",
          "no PassesLinear: this placement does not pass `commutes max min` (pointwise.rules:11:78)"]),
        (lambda: reasons("mul.Tensor", "6xf32", "PassesLinear", other=math.inf),
         ["no PassesLinear: an argument is a number that is not finite, and a `linear` op may multiply by it",
          "no PassesLinear: `commutes` requires a tensor, but 'other' is the number inf, which every rank would add "
          "(pointwise.rules:18:32)"]),
        (lambda: reasons("_to_copy", "6xf32", "PassesLinear", dtype=BF16),
         ["no PassesLinear: the sum of f32 values differs from their sum as bf16"]),
        (lambda: reasons("argmax", "6xf32", "PassesLinear"),
         ["no PassesLinear: the rule has no clause that passes partial values"]),
        (lambda: reasons("chunk", "10", "Strided(0, 4)", chunks=4)[-1:],
         ["no (Strided(dim, chunks)) -> (S(dim)…): its `when` does not hold (strided.rules:2:92)"]),
    ],
)  # fmt: skip
def test_a_reason_is_what_says_so_and_where(found: Callable[[], list[str]], expected: list[str]):
    assert found() == expected


def test_what_an_op_offers_is_the_same_with_reasons_and_without():
    calls = [("mm", "4x6 6x8", {}), ("view", "6x4", {"size": (24,)}), ("sort", "8x9", {"descending": False})]
    for op, operands, arguments in calls:
        metas = tuple(map(tensor, operands.split()))
        common = (f"aten.{op}", metas, arguments, 2, ("Cyclic(0, 2)", "Masked", "InTurn(0)"))
        told = [one for one in spmdir.rules.op_strategies(*common, why=True) if not isinstance(one, Dropped)]
        assert tuple(told) == spmdir.rules.op_strategies(*common)


def test_what_a_text_strategy_shards_is_not_told_to_be_left_out(tmp_path):
    path = tmp_path / "own.rules"
    path.write_text("aten.sort: (shard(1)) -> (shard(1), shard(1))    when dim == 1 and descending\n")
    found = {}
    for descending in (True, False):
        with spmdir.rules.using_rules(path):
            found[descending] = reasons("sort", "8x9", "Cyclic(0, 2)", dim=1, descending=descending)
    assert not any("no S(" in reason or "no Cyclic(" in reason for reason in found[True])
    assert any("no Cyclic(d1, 2): the rule does not allow sharding it" in reason for reason in found[False])
