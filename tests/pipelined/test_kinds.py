"""Orders of pipeline-parallel steps: complete, within their memory, and as close to the bound as is known."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spmdir.core.errors import SpmdirError
from spmdir.pipelined.actions import all_actions
from spmdir.pipelined.kinds import KINDS, make_order, stage_map_of
from spmdir.pipelined.rows import order_of_rows
from spmdir.pipelined.times import StageTimes, equal_stages, lower_bound, replay


def seconds(kind: str, ranks: int, micro: int, stages: int, live: int | None = None) -> float:
    times = equal_stages(stages, ranks, ranks, ranks)
    return replay(make_order(kind, ranks, micro, times, live), times).seconds


@pytest.mark.parametrize(
    ("kind", "ranks", "micro", "stages", "live", "expected"),
    [
        ("gpipe", 4, 8, 4, None, 33),
        ("gpipe", 4, 8, 8, None, 28.5),
        ("1f1b", 4, 8, 4, None, 33),
        ("1f1b", 8, 32, 8, None, 117),
        ("1f1b", 8, 32, 16, None, 106.5),
        ("zb", 4, 8, 4, None, 29),
        ("zbv", 4, 8, 8, None, 25.5),
        ("search", 4, 8, 4, 8, 27),
        ("search", 4, 8, 8, 16, 25.5),
        ("search", 4, 8, 4, None, 27),
    ],
)
def test_equal_stages_take_the_published_time(
    kind: str, ranks: int, micro: int, stages: int, live: int | None, expected: float
):
    assert seconds(kind, ranks, micro, stages, live) == expected


def test_the_bound_of_a_whole_backward_is_the_time_of_1f1b():
    times = equal_stages(4, 4, 4, 4)
    assert lower_bound(stage_map_of("1f1b", 4, 4), 8, times, split=False) == 33
    assert lower_bound(stage_map_of("zb", 4, 4), 8, times, split=True) == 27


def test_1f1b_holds_as_many_activations_as_ranks_follow():
    times = equal_stages(4, 1, 1, 1)
    peaks = replay(make_order("1f1b", 4, 8, times), times).peak_saved
    assert [peak * 4 for peak in peaks] == [4, 3, 2, 1]


positive = st.floats(0.1, 10)


@given(st.data())
def test_any_order_is_complete_ordered_within_its_memory_and_above_the_bound(data: st.DataObject):
    kind = data.draw(st.sampled_from(sorted(KINDS)))
    ranks, share = data.draw(st.integers(1, 4)), 2 if kind == "zbv" else data.draw(st.integers(1, 2))
    stages, micro = ranks * share, data.draw(st.integers(1, 6))
    if kind == "1f1b" and share > 1:
        micro *= ranks
    of_kinds = [data.draw(st.lists(positive, min_size=stages, max_size=stages)) for _ in "FIW"]
    times = StageTimes(of_kinds[0], of_kinds[1], of_kinds[2], data.draw(st.sampled_from([0.0, 0.3, 5.0])))
    live = data.draw(st.integers(share, 3 * stages)) if kind == "search" else None
    order = make_order(kind, ranks, micro, times, live)
    assert sorted(order.actions) == sorted(all_actions(stages, micro, order.is_split))
    # The rows alone give a global order again, so no rank waits for ever, even if sends wait for their receivers.
    again = order_of_rows(order.stage_map, micro, order.rows, order.is_split)
    assert again.rows == order.rows
    timeline = replay(order, times)
    assert timeline.seconds >= lower_bound(order.stage_map, micro, times, order.is_split) * (1 - 1e-12)
    if live is not None:
        assert max(timeline.peak_saved) <= live


@pytest.mark.parametrize(("ranks", "share"), [(4, 1), (4, 2), (8, 1)])
@pytest.mark.parametrize("costs", [(1, 1, 1), (1, 1.3, 0.7)])
@pytest.mark.parametrize("message", [0, 0.1])
def test_a_search_is_within_three_percent_of_the_bound(
    ranks: int, share: int, costs: tuple[float, float, float], message: float
):
    forward, input_gradient, weight_gradient = (cost * ranks for cost in costs)
    times = equal_stages(ranks * share, forward, input_gradient, weight_gradient, message)
    order = make_order("search", ranks, 2 * ranks, times)
    bound = lower_bound(order.stage_map, order.micro, times, order.is_split)
    assert bound * (1 - 1e-9) <= replay(order, times).seconds <= 1.03 * bound


@settings(max_examples=15)
@given(st.data())
def test_a_search_is_never_slower_than_another_kind(data: st.DataObject):
    ranks, share = data.draw(st.integers(2, 3)), data.draw(st.integers(1, 2))
    micro = ranks * data.draw(st.integers(1, 2))
    seconds = [
        data.draw(st.lists(st.sampled_from((0.5, 1.0, 2.0)), min_size=n, max_size=n)) for n in [ranks * share] * 3
    ]
    times = StageTimes(*seconds, data.draw(st.sampled_from((0.0, 0.3, 3.0))))
    search = replay(make_order("search", ranks, micro, times), times).seconds
    for kind in KINDS:
        if kind != "search" and (kind != "zbv" or share == 2):
            assert search <= replay(make_order(kind, ranks, micro, times), times).seconds * (1 + 1e-5)


def test_a_kind_that_does_not_fit_says_what_it_needs():
    with pytest.raises(SpmdirError, match=r"unknown kind '1f1'; expected one of gpipe, .*did you mean '1f1b'"):
        make_order("1f1", 2, 2, equal_stages(2, 1, 1, 1))
    with pytest.raises(SpmdirError, match="found 2 stages for 'zbv' on 2 ranks; expected 4, two for each rank"):
        make_order("zbv", 2, 2, equal_stages(2, 1, 1, 1))
    with pytest.raises(SpmdirError, match="found 3 stages for 2 ranks; expected a multiple of 2"):
        make_order("1f1b", 2, 2, equal_stages(3, 1, 1, 1))
    with pytest.raises(
        SpmdirError, match="found 3 micro-batches for interleaved 1f1b on 2 ranks; expected a multiple of 2"
    ):
        make_order("1f1b", 2, 3, equal_stages(4, 1, 1, 1))
    with pytest.raises(
        SpmdirError,
        match="rank 0 may hold the activations of 1 actions",
    ):
        make_order("search", 2, 3, equal_stages(4, 1, 1, 1), live=1)
