"""Progress messages of long computations, shown where a tool asks for them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TextIO

_LONG = 2.0
"""Seconds before which nothing is shown."""

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
def shown_on_terminal(shows: bool = True) -> Iterator[None]:
    """Show what `say` is told inside the context in a line of the terminal, if there is one; nothing if not `shows`.

    Whatever shows it already goes on to.
    """
    if shows and _SHOW.get() is not None:
        yield
        return
    with terminal_line() as show, shown_by(show if shows else None):
        yield


@contextmanager
def terminal_line() -> Iterator[Callable[[str], None] | None]:
    """Yield what shows progress in one line of a terminal, with the seconds so far; None where stderr is none.

    The line appears after two seconds and is drawn at most ten times a second. It is erased before this process prints
    anything else, and at the end. That includes stdout where it is a pipe: its reader may print to the same terminal.
    """
    if sys.stderr is None or not sys.stderr.isatty():  # None if it is closed, as by `2>&-`
        yield None
        return
    line, out, error = _Line(sys.stderr), sys.stdout, sys.stderr
    sys.stderr = _Printed(error, line)
    if out is not None:
        sys.stdout = _Printed(out, line)
    try:
        yield line.show
    finally:
        line.clear()
        sys.stdout, sys.stderr = out, error


class _Printed:
    """A stream that erases the line of progress before it prints."""

    def __init__(self, stream: TextIO, line: _Line):
        self._stream, self._line = stream, line

    def write(self, text: str) -> int:
        self._line.clear()
        return self._stream.write(text)

    def flush(self) -> None:
        self._line.clear()
        self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Line:
    """The line, drawn where it is told something: no thread draws into what is printed beside it."""

    def __init__(self, stream: TextIO):
        self._stream, self._start, self._drawn = stream, time.monotonic(), 0.0
        self._live: Any = None

    def clear(self) -> None:
        """Take the line away until it is told something again."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def show(self, text: str) -> None:
        """Draw a text, with the seconds so far."""
        now = time.monotonic()
        if now - self._start < _LONG or now - self._drawn < 0.1:
            return
        self._drawn = now
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        told = Text.assemble((f"{now - self._start:6.1f} s  ", "dim"), text, no_wrap=True, overflow="ellipsis")
        if self._live is None:
            console = Console(file=self._stream)
            self._live = Live(
                told, console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
            )
            self._live.start()
        self._live.update(told, refresh=True)
