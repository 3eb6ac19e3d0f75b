"""Progress messages of long computations, shown where a tool asks for them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_SHOW: ContextVar[Callable[[str], object] | None] = ContextVar("progress", default=None)


def say(text: str, *values: object) -> None:
    """Report progress: `text` formatted with `values`; free where no tool listens."""
    show = _SHOW.get()
    if show is not None:
        show(text.format(*values) if values else text)


@contextmanager
def shown_by(show: Callable[[str], object] | None) -> Iterator[None]:
    """Pass what `say` is told inside the context to `show`."""
    token = _SHOW.set(show)
    try:
        yield
    finally:
        _SHOW.reset(token)


@contextmanager
def terminal_line() -> Iterator[Callable[[str], None] | None]:
    """Yield what shows progress in one line of a terminal, at most ten times a second; None where stderr is none."""
    if not sys.stderr.isatty():
        yield None
        return
    last = 0.0

    def show(text: str) -> None:
        nonlocal last
        if time.monotonic() - last > 0.1:
            print(f"\r\033[K{text[:78]}", end="", file=sys.stderr, flush=True)
            last = time.monotonic()

    try:
        yield show
    finally:
        if last:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
