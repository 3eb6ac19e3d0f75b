"""Ranges of positions against sets and lists of positions."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spmdir.core.intervals import Ranges, common, joined, length, positions, select


@st.composite
def some_ranges(draw: st.DrawFn, size: int | None = None) -> Ranges:
    """Ranges of at most 30 positions, or of `size`, in any order, empty ones among them."""
    size = draw(st.integers(0, 30)) if size is None else size
    edges = sorted([0, size, *draw(st.lists(st.integers(0, size), max_size=8))])
    pairs = draw(st.permutations(list(itertools.pairwise(edges))))
    return tuple(pairs[: draw(st.integers(0, len(pairs)))])


def listed(ranges: Ranges) -> list[int]:
    return [at for start, end in ranges for at in range(start, end)]


@given(st.data())
def test_a_selection_is_that_of_the_listed_positions_and_positions_find_it_again(data: st.DataObject) -> None:
    ranges = data.draw(some_ranges())
    part = data.draw(some_ranges(length(ranges)))
    chosen = select(ranges, part)
    assert listed(chosen) == [listed(ranges)[at] for at in listed(part)]
    assert listed(positions(chosen, ranges)) == listed(part)


@given(some_ranges(), some_ranges())
def test_what_ranges_have_in_common_is_ascending(a: Ranges, b: Ranges) -> None:
    assert listed(common(a, b)) == sorted(set(listed(a)) & set(listed(b)))


@given(some_ranges(), some_ranges())
def test_positions_outside_the_shard_are_rejected(part: Ranges, ranges: Ranges) -> None:
    part, ranges = joined(part), joined(ranges)
    if set(listed(part)) <= set(listed(ranges)):
        return
    with pytest.raises(ValueError, match="contain positions that are not in"):
        positions(part, ranges)
