"""Progress messages of long computations, shown where a tool asks for them."""

from __future__ import annotations

import sys
import threading
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
        line.close()
        sys.stdout, sys.stderr = out, error


class _Printed:
    """A stream that erases the line of progress before it prints."""

    def __init__(self, stream: TextIO, line: _Line):
        self._stream, self._line = stream, line

    def write(self, text: str) -> int:
        with self._line.cleared():
            return self._stream.write(text)

    def flush(self) -> None:
        with self._line.cleared():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Line:
    """The line, drawn where it is told something.

    What it is told before it appears is drawn when it does, by a timer, since the first stage may be the longest.
    """

    def __init__(self, stream: TextIO):
        self._stream, self._start, self._drawn = stream, time.monotonic(), 0.0
        self._live: Any = None
        self._text = ""
        self._timer: threading.Timer | None = None
        self._lock = threading.RLock()  # of the timer and whoever prints

    @contextmanager
    def cleared(self) -> Iterator[None]:
        """Take the line away until it is told something again; nothing draws it inside the context."""
        with self._lock:
            if self._live is not None:
                self._live.stop()
                self._live = None
            yield

    def close(self) -> None:
        """Take the line away for good."""
        with self.cleared():
            if self._timer is not None:
                self._timer.cancel()
            self._text = ""

    def show(self, text: str) -> None:
        """Draw a text, with the seconds so far."""
        now = time.monotonic()
        with self._lock:
            self._text = text
            if now - self._start >= _LONG:
                if now - self._drawn >= 0.1:
                    self._draw()
            elif self._timer is None:
                self._timer = threading.Timer(_LONG - (now - self._start), self._draw)
                self._timer.daemon = True
                self._timer.start()

    def _draw(self) -> None:
        with self._lock:
            if not self._text:
                return
            self._drawn = now = time.monotonic()
            from rich.console import Console
            from rich.live import Live
            from rich.text import Text

            seconds = f"{now - self._start:6.1f} s  "
            told = Text.assemble((seconds, "dim"), self._text, no_wrap=True, overflow="ellipsis")
            if self._live is None:
                console = Console(file=self._stream)
                self._live = Live(
                    told,
                    console=console,
                    auto_refresh=False,
                    transient=True,
                    redirect_stdout=False,
                    redirect_stderr=False,
                )
                self._live.start()
            self._live.update(told, refresh=True)
