"""A bounded part of every kind of fuzzing, the same cases in every run; `make fuzz` goes on from there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import strategies as st

from spmdir.checking.pool import Worker
from spmdir.errors import CheckError
from tests.fuzz.batch import Batch, Kind, Wrong, run_batch, shape_of

EXAMPLES = {"programs": 40, "malformed": 250, "special": 60, "edits": 60, "ranks": 3}
"""Kind → how many cases; some seconds of processor time each."""


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """A process of its own: what hypothesis draws depends on the modules that are imported."""
    worker = Worker(None, "tests.fuzz.worker")
    yield worker
    worker.stop()


@pytest.mark.parametrize("kind", [pytest.param(k, marks=[pytest.mark.gloo] * (k == "ranks")) for k in EXAMPLES])
def test_nothing_is_wrong_raw_or_hangs(kind: str, worker: Worker) -> None:
    batch = worker.ask(("batch", kind, 0, EXAMPLES[kind]), 300)
    assert isinstance(batch, Batch), batch
    assert not batch.failures, "\n".join(map(str, batch.failures))
    assert batch.right > batch.tried // 8


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
