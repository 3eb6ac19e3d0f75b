"""The garbage collector is paused inside the context, and afterwards as it was before."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from spmdir.core.garbage_collector import collector_paused


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()


def test_the_collector_is_off_inside_and_on_again_after_an_error() -> None:
    found = []

    @collector_paused()
    def fail() -> None:
        found.append(gc.isenabled())
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert found == [False]
    assert gc.isenabled()


def test_a_collector_that_is_off_stays_off() -> None:
    with collector_paused():
        with collector_paused():
            pass
        assert not gc.isenabled()
    gc.disable()
    with collector_paused():
        pass
    assert not gc.isenabled()


def test_a_decorated_function_runs_without_the_collector_each_time() -> None:
    is_enabled = collector_paused()(gc.isenabled)
    assert [is_enabled(), gc.isenabled(), is_enabled(), gc.isenabled()] == [False, True, False, True]
