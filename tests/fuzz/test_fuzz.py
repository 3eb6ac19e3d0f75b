"""A bounded part of every kind of fuzzing, the same cases in every run; `make fuzz` goes on from there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import strategies as st

from spmdir.checking.rules.pool import Worker
from spmdir.core.errors import CheckError
from tests.fuzz import batches, rank_processes, ranks
from tests.fuzz.batch import Batch, Kind, Wrong, run_batch, shape_of
from tests.fuzz.batches import ADDED, Batches
from tests.fuzz.kinds import KINDS
from tests.fuzz.training import TRAINING

EXAMPLES = {"programs": 25, "pipelines": 15, "malformed": 160, "deletions": 200, "types": 40}
EXAMPLES |= {"special": 40, "edits": 40, "schedules": 30, "lossy": 20, "orders": 100, "routes": 12}
"""Kind → how many cases; some seconds of processor time each."""


PAIRS = {
    "nothing": None,
    "seed": None,
    "calls": "the broadcast of the state of the random generator",
    "sizes": "call with the sizes s0 = 3 and s0 = 5",
    "error in the model": "rank 1: the model cannot be exported",
}
"""What differs between two ranks → what the first rank that rejects it says; processes are few enough for every run."""


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """Yield a process of its own: what hypothesis draws depends on the modules that are imported."""
    worker = Worker(None, "tests.fuzz.worker")
    yield worker
    worker.stop()


@pytest.mark.parametrize("kind", EXAMPLES)
def test_nothing_is_wrong_raw_or_hangs(kind: str, worker: Worker) -> None:
    batch = worker.ask(("batch", kind, 0, EXAMPLES[kind]), 1200)
    assert isinstance(batch, Batch), batch
    assert not batch.failures, "\n".join(map(str, batch.failures))
    assert batch.right > batch.tried // 8 or kind in ("deletions", "types", "orders")  # which are rejected


@pytest.mark.gloo
def test_training_on_ranks_is_that_of_one_device() -> None:
    try:
        batch = run_batch(TRAINING, 0, examples=6)
    finally:
        rank_processes.stop()
    assert not batch.failures, "\n".join(map(str, batch.failures))
    assert batch.right > batch.tried // 2


@pytest.mark.gloo
def test_local_batches_of_other_sizes_are_those_of_one_device() -> None:
    every = Batches(tuple(ADDED), ("y", "y.t()", "x"), "tensor(2.).expand(1)", ((4, 4), (3, 5)))
    try:
        assert batches.check(every) is None
    finally:
        rank_processes.stop()


@pytest.mark.gloo
def test_two_ranks_of_which_one_is_different_end_as_they_may() -> None:
    pairs = [ranks.Pair(d, layers=1, width=4, batch=3, dropout=True, dynamic=True, sharding="tp: S(0)") for d in PAIRS]
    try:
        rejected = [ranks.check(pair) for pair in pairs]
    finally:
        rank_processes.stop()
    for pair, found, expected in zip(pairs, rejected, PAIRS.values(), strict=True):
        assert (found is None) if expected is None else found is not None and expected in found, (str(pair), found)


def test_every_kind_has_a_bounded_part_and_its_row_on_the_page() -> None:
    assert {*EXAMPLES, "ranks", "training", "batches"} == set(KINDS)
    page = (Path(__file__).parents[2] / "docs/fuzzing.md").read_text()
    table, _ = page.split("## Usage")
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(KINDS)


def _fail(number: int) -> str | None:
    if number >= 100:
        raise Wrong("too large")
    if number >= 50:
        raise ValueError
    return "odd 7" if number % 2 else None


def test_a_failing_case_is_shrunk_and_found_again_by_its_seed() -> None:
    kind = Kind("own", st.integers(100, 10_000), _fail, examples=50)
    (failure,) = run_batch(kind, 5).failures
    assert (failure.what, failure.case) == ("wrong", "100")
    assert "--kind own --replay 5" in str(failure)
    assert run_batch(kind, 5).failures == (failure,)


def test_what_escapes_is_raw_and_rejections_count_by_their_shape() -> None:
    (failure,) = run_batch(Kind("own", st.just(60), _fail, examples=5), 0).failures
    assert failure.what == "raw" and failure.message.startswith("ValueError")
    batch = run_batch(Kind("own", st.integers(0, 49), _fail, examples=30), 0)
    assert set(batch.rejected) == {"odd N"} and batch.right + batch.rejected["odd N"] == batch.tried


def _differs(_: int) -> None:
    raise CheckError("output 0 differs")


def test_an_import_that_differs_from_its_graph_is_wrong() -> None:
    (failure,) = run_batch(Kind("own", st.just(1), _differs, examples=5), 0).failures
    assert failure.what == "wrong"


def _spin(_: int) -> None:
    while True:
        pass


def test_a_case_that_does_not_end_is_a_hang() -> None:
    (failure,) = run_batch(Kind("own", st.just(1), _spin, examples=5, seconds=1), 0).failures
    assert failure.what == "hang"


def test_alike_messages_have_one_shape() -> None:
    assert shape_of("'aten.mm': 3 of <dp: S(0)> in %x1\nmore") == shape_of("'aten.add': 12 of <> in %y")
