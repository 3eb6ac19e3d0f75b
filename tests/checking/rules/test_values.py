"""Random local values make up their value, whatever it is, and differences are seen."""

from __future__ import annotations

import pytest
import torch

from spmdir.checking.rules.samples.sample import sample
from spmdir.checking.rules.values import difference, local_values, special_variants
from spmdir.core.placement.standard import parse_placement

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("text", ["R", "S(0)", "P(sum)", "P(avg)", "P(max)", "P(min)", "P(product)"])
def test_shards_make_up_their_value(text: str, count: int):
    value = torch.tensor([1.5, -2.0, NAN, INF, -INF, 0.0, 3.0], dtype=torch.float64)
    placement = parse_placement(text)
    held = local_values(value, placement, count)
    assert len(held) == count
    assert difference(placement.collect(held, value.shape), value, through_sums=False) is None


def test_any_rank_may_hold_the_maximum():
    torch.manual_seed(0)
    value = torch.arange(50.0)
    held = torch.stack(local_values(value, parse_placement("P(max)"), 3))
    assert set(held.argmax(0).tolist()) == {0, 1, 2}


def test_one_rank_suffices_for_nan():
    torch.manual_seed(0)
    held = torch.stack(local_values(torch.full((50,), NAN, dtype=torch.float64), parse_placement("P(max)"), 3))
    assert set(held.isnan().sum(0).tolist()) == {1}


@pytest.mark.parametrize(
    ("found", "right", "same", "same_through_sums"),
    [
        (1.0, 1.0 + 1e-9, True, True),
        (1.0, 1.1, False, False),
        (NAN, NAN, True, True),
        (NAN, INF, False, True),
        (-INF, INF, False, True),
        (1.0, INF, False, False),
        (NAN, 1.0, False, False),
        (0.0, -0.0, True, True),
    ],
)
def test_differences(found: float, right: float, same: bool, same_through_sums: bool):
    one, other = torch.tensor([found, 2.0]), torch.tensor([right, 2.0])
    assert (difference(one, other, False) is None) == same
    assert (difference(one, other, True) is None) == same_through_sums


def test_other_types_and_shapes_differ():
    assert difference(torch.zeros(2), torch.zeros(2, dtype=torch.float64), False)
    assert difference(torch.zeros(2), torch.zeros(2, 1), False)


def test_variants_are_made_of_doubles_alone():
    (nan, infinite) = special_variants(sample("add.Tensor", torch.zeros(40, dtype=torch.float64), torch.arange(40)))
    assert nan[1].operands[0].isnan().any() and infinite[1].operands[0].isinf().any()
    assert torch.equal(nan[1].operands[1], torch.arange(40))
    assert not list(special_variants(sample("neg", torch.arange(40))))
