"""Warnings are issued at the line of the user, once, and on one rank."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import Any

from spmdir.core.errors import SpmdirWarning, warn, warnings_issued

ENTER = """
@contextmanager
def inside():
    warn("a cache is left out")
    yield

def enter():
    with inside():
        pass
"""
"""Code of this package, whose frames are not the user's."""


def issue(message: str) -> None:
    warn(message)


def test_a_message_that_was_issued_is_not_issued_again_from_another_line() -> None:
    issued: set[str] = set()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with warnings_issued(issued=issued):
            issue("a cache is left out")
        with warnings_issued(issued=issued):
            issue("a cache is left out")
            issue("another")
    assert [str(w.message) for w in seen] == ["warning: a cache is left out", "warning: another"]


def test_ranks_that_issue_no_warnings_do_not_inside_other_contexts_either() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with warnings_issued(False), warnings_issued(issued=set()):
            issue("a cache is left out")
        issue("after it")
    assert [str(w.message) for w in seen] == ["warning: after it"]


def test_a_warning_from_inside_a_context_manager_is_at_the_line_that_enters_it() -> None:
    names: dict[str, Any] = {"__name__": "spmdir.made", "warn": warn, "contextmanager": contextmanager}
    exec(ENTER, names)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", SpmdirWarning)
        names["enter"]()
    assert seen[0].filename == __file__
