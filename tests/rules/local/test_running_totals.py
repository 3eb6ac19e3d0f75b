"""Running sums, products and logarithms of sums along a sharded dimension."""

from __future__ import annotations

import math

import pytest
import torch

from spmdir.checking.rules.samples.sample import Sample, f, i, sample
from spmdir.checking.rules.soundness import prepare, unsound
from spmdir.core.placement.base import parse_placement
from spmdir.rules.rule_set import default

OPS = ("cumsum", "cumprod", "logcumsumexp")

ROWS = 7
"""So many that shards are uneven on 2 and 3 ranks."""


def special() -> torch.Tensor:
    """Return columns with NaN, both infinities, their sum, negative zeros, and an infinity that meets a zero."""
    inf, zero = math.inf, -0.0
    columns = [
        [1, math.nan, 2, 3, 4, 5, 6], [1, inf, 2, 3, 4, 5, 6], [1, 2, -inf, 3, 4, 5, 6], [1, inf, 2, 3, -inf, 5, 6],
        [zero] * 7, [2, 0, 3, 4, 5, inf, 6], [-inf] * 7,
    ]  # fmt: skip
    return torch.tensor(columns, dtype=torch.float64).T.contiguous()


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("placement", ["S(0)", "ZigZag(0)", "Cyclic(0, 1)"])
def test_they_are_right_by_every_placement(op: str, placement: str) -> None:
    extras = () if placement == "S(0)" else (parse_placement(placement),)
    for given in (f(ROWS, 4), special()):
        assert not unsound(sample(op, given, dim=0), default(), (2, 3), plugins=extras)


def test_shards_of_any_lengths_get_the_totals_before_them() -> None:
    for op in OPS:
        assert not unsound(
            sample(op, f(ROWS, 4), dim=0), default(), (2,), plugins=(parse_placement("Ragged(0, [1, 6])"),)
        )
    assert not unsound(sample("cumsum", i(9, ROWS, 4), dim=0), default(), (2, 3))


def strategies(one: Sample, *placements: str) -> list[str]:
    found = prepare(one, default()).rule.strategies(2, placements=tuple(map(parse_placement, placements)))
    return [str(strategy) for strategy in found if 0 in strategy.factors]


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (
            "cumsum",
            ["(S(0)) -> (S(0)) local", "(S(0)) -> (P(sum)) local", "(Cyclic(0, 1)) -> (P(sum)) local"],
        ),
        (
            "cumprod",
            ["(S(0)) -> (S(0)) local", "(S(0)) -> (P(product)) local", "(Cyclic(0, 1)) -> (P(product)) local"],
        ),
        ("logcumsumexp", ["(S(0)) -> (S(0)) local"]),
        ("cummax", []),
    ],
)
def test_shards_that_are_ranges_stay_and_others_become_partial(op: str, expected: list[str]) -> None:
    assert sorted(strategies(sample(op, f(ROWS, 4), dim=0), "Cyclic(0, 1)")) == sorted(expected)


def test_ranks_send_only_totals() -> None:
    rule = prepare(sample("cumsum", f(800, 4), dim=0), default()).rule
    (kept,) = (strategy for strategy in rule.strategies(4) if str(strategy) == "(S(0)) -> (S(0)) local")
    assert [sent.bytes for sent in rule.sent_tensors(kept, 4)] == [4 * 8] * 3
