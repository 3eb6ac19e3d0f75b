"""Ranks that compare what they do, one after the other in one process: each finds what the others left in the store."""

# pyright: reportPrivateImportUsage=false
from __future__ import annotations

import json
from typing import Any

import pytest
import torch.distributed as dist

from spmdir.core.errors import CLASSES, DivergenceError, Location, SpmdirError, SpmdirErrors
from spmdir.runtime.agreement import RankGroup

SOON = 0.05
"""Seconds after which a rank gives up on one that has not come."""

LATE = 5.0
"""Seconds that only a defect waits."""


def group(store: Any, index: int, timeout: float) -> RankGroup:
    return RankGroup((0, 1), index, timeout, store)


def come(ranks: RankGroup, error: Exception | None = None, **status: Any) -> Exception | None:
    """Return what is raised where a rank says `status`, or raises `error`."""
    try:
        with ranks.check_agreement("the test") as said:
            said |= status
            if error:
                raise error
    except Exception as raised:
        return raised
    return None


PLACE = Location("model.py", 3, 1)


@pytest.mark.parametrize("error", [kind("m", PLACE) for kind in CLASSES.values()], ids=list(CLASSES))
def test_other_ranks_raise_the_class_and_the_place_of_an_error(error: SpmdirError) -> None:
    store = dist.HashStore()
    assert come(group(store, 1, SOON), error) is error
    found = come(group(store, 0, LATE))
    assert type(found) is type(error)
    assert str(found) == "model.py:3:1: error: rank 1: m"


@pytest.mark.parametrize("error", [ValueError("m"), SpmdirErrors([SpmdirError("ValueError: m")])])
def test_other_ranks_raise_a_plain_error_for_what_has_another_form(error: Exception) -> None:
    store = dist.HashStore()
    assert come(group(store, 1, SOON), error) is error
    found = come(group(store, 0, LATE))
    assert type(found) is SpmdirError
    assert str(found) == "error: rank 1: ValueError: m"


def test_ranks_that_differ_raise_a_divergence() -> None:
    store = dist.HashStore()
    assert "rank 0 has not reached" in str(come(group(store, 1, SOON), sizes={"s0": 2}))
    found = come(group(store, 0, SOON), sizes={"s0": 3})
    assert isinstance(found, DivergenceError)
    assert "s0 = 3 and s0 = 2" in found.message


def test_a_comparison_that_fails_is_a_verdict_for_all() -> None:
    store = dist.HashStore()
    come(group(store, 1, SOON))
    found = come(group(store, 0, SOON), state={"w": "1"})
    assert isinstance(found, SpmdirError)
    assert "the ranks cannot be compared at the test: TypeError" in found.message
    assert json.loads(store.get("1/verdict"))["message"] == found.message


def test_an_error_of_the_first_rank_leaves_what_others_have_still_to_read() -> None:
    store = dist.HashStore()
    first, second = group(store, 0, SOON), group(store, 1, SOON)
    store.set("1/1", json.dumps({"what": "the test"}))
    assert come(first) is None
    come(first, ValueError("m"))
    assert come(second) is None
    assert str(come(second)) == "error: rank 0: ValueError: m"


def test_what_all_have_read_is_deleted() -> None:
    store = dist.HashStore()
    first, second = group(store, 0, SOON), group(store, 1, SOON)
    for round in (1, 2):
        store.set(f"{round}/1", json.dumps({"what": "the test"}))
        assert come(first) is None
        assert come(second) is None
    assert not any(store.check([f"1/{key}"]) for key in ("0", "1", "verdict"))
    assert store.check(["2/verdict"])


def test_no_rank_stays_for_one_that_has_given_up() -> None:
    store = dist.HashStore()
    come(group(store, 1, SOON), ValueError("m"))
    come(group(store, 0, LATE))
    assert store.add("1/seen", 0) == 2
