"""Which factors an axis can shard: sizes, kernels' demands, and what other axes shard already."""

import pytest

from spmdir.core.placement.standard import R, Shard
from spmdir.rules.strategies.divisibility import incompatible, unshardable
from spmdir.rules.strategies.strategy import UNSHARDED, ShardCounts, Strategy, shard_counts
from tests.rules.lines import instance


@pytest.mark.parametrize(
    ("line", "operands", "factor", "count", "sharded", "expected"),
    [
        ("(x: m) -> m", "4", 0, 2, {}, True),
        ("(x: m) -> m", "4", 0, 3, {}, True),  # uneven
        ("(x: m) -> m", "2", 0, 3, {}, True),  # empty
        ("(x: m) -> m", "1", 0, 2, {}, False),
        ("(x: m) -> m", "0", 0, 2, {}, False),
        ("(x: m) -> m    unsharded m", "4", 0, 2, {}, False),
        ("(x: m) -> m    nonempty m", "2", 0, 3, {}, False),
        ("(x: m) -> m    nonempty m", "5", 0, 3, {}, True),
        ("(x: m) -> scalar    max m", "4", 0, 3, {}, False),  # 2, 2 and none
        ("(x: m) -> m    aligned m", "8", 0, 2, {}, True),  # 4 elements of f32 are 16 bytes
        ("(x: m) -> m    aligned m", "8", 0, 4, {}, False),
        ("(x: (h g), y: h) -> (h g)", "8 4", 0, 2, {}, True),
        ("(x: (h g), y: h) -> (h g)", "8 4", 0, 3, {}, False),  # uneven beside a minor factor
        ("(x: (h g), y: h) -> (h g)", "8 4", 1, 2, {}, False),  # minor, and the major one has 4 elements
        ("(x: (h g), y: h) -> (h g)", "8 4", 1, 2, {0: 4}, True),
        ("(x: (h g), y: h) -> (h g)", "8 4", 1, 2, {0: 2}, False),
        ("(x: m m) -> m    unsharded m", "4x4", 0, 2, {}, False),
    ],
)
def test_a_factor_can_be_sharded(line: str, operands: str, factor: int, count: int, sharded: dict, expected: bool):
    assert (unshardable(instance(line, operands), factor, count, ShardCounts(sharded)) is None) == expected


def test_two_rewrites_are_not_compatible():
    rule = instance("(x: m n) -> m n\n    local m\n    return x\n    local n\n    return x", "4x4")
    assert incompatible(rule, 1, UNSHARDED) is None and incompatible(rule, 1, ShardCounts({0: 2}))


def test_counts_multiply_over_axes_and_tell_plug_ins_apart():
    whole, shard = Strategy((R,), (R,)), Strategy((Shard(0),), (Shard(0),), factors=(3,))
    lifted = Strategy((Shard(0),), (Shard(0),), factors=(3,), factor_placements=(Shard(0),))
    counts = shard_counts([(whole, 2), (shard, 4), (lifted, 3), (shard, 1)])
    assert (counts.of(3), counts.by_s(3), counts.of(0)) == (12, 4, 1) and counts.by_plugins == {3: ((Shard(0), 3),)}
    assert counts.for_inner_op({0: 3}).all_axes == {0: 12}
    assert counts.without_plugins_of([3]).by_plugins == {}
    assert shard_counts([(whole, 2)]).key == UNSHARDED.key


@pytest.mark.parametrize(
    ("line", "sharded"),
    [
        ("(x: m n) -> m n    nonempty m", {0: 4}),  # 10 elements in 4 uneven shards
        ("(x: m n) -> m n\n    local m\n    return x\n    local n\n    return x", {0: 2}),
        ("(x: (h g), y: h) -> (h g)", {0: 3}),
    ],
)
def test_an_axis_of_one_rank_shards_whatever_others_shard(line: str, sharded: dict):
    rule = instance(line, "10x4" if "m n" in line else "8 4")
    assert rule.strategies(1, ShardCounts(sharded)) == rule.strategies(1) != (rule.strategies(1)[0],)
