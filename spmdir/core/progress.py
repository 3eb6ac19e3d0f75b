"""Progress messages of long computations. Tools choose where to show them."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TextIO

_DELAY = 2.0
"""Seconds before the first message is shown."""

_SHOW: ContextVar[Callable[[str], object] | None] = ContextVar("progress", default=None)


def say(text: str, *values: object) -> None:
    """Report progress: `text` formatted with `values`. There is no cost if no tool shows it."""
    show = _SHOW.get()
    if show is not None:
        show(text.format(*values) if values else text)


@contextmanager
def shown_by(show: Callable[[str], object] | None) -> Iterator[None]:
    """Pass the messages of `say` inside the context to `show`."""
    token = _SHOW.set(show)
    try:
        yield
    finally:
        _SHOW.reset(token)


@contextmanager
def shown_on_terminal(shows: bool = True) -> Iterator[None]:
    """Show the messages of `say` inside the context in one line of the terminal; discard them if `shows` is False.

    If an outer context already shows messages, they continue to go there.
    """
    if shows and _SHOW.get() is not None:
        yield
        return
    with terminal_line() as show, shown_by(show if shows else None):
        yield


@contextmanager
def terminal_line() -> Iterator[Callable[[str], None] | None]:
    """Yield a function that shows a message and the elapsed seconds in one line; None if stderr is not a terminal.

    The line appears after two seconds and is updated at most ten times a second. It is erased at the end, and before
    this process prints to stderr or stdout. Stdout may be a pipe to a process that prints to the same terminal.
    """
    if sys.stderr is None or not sys.stderr.isatty():  # None if it is closed, as by `2>&-`
        yield None
        return
    line, out, error = _Line(sys.stderr), sys.stdout, sys.stderr
    sys.stderr = _ErasingStream(error, line)
    if out is not None:
        sys.stdout = _ErasingStream(out, line)
    try:
        yield line.show
    finally:
        line.close()
        sys.stdout, sys.stderr = out, error


class _ErasingStream:
    """A stream that erases the progress line before each write."""

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
    """The progress line of a terminal.

    A timer draws the first message after the delay, because the first stage may be the longest.

    Attributes:
        _start, _drawn: the times at which the object was created, and at which the line was last drawn.
        _live: the display of rich while the line is visible, else None.
        _text: the last message; "" before the first one and after `close`.
    """

    def __init__(self, stream: TextIO):
        self._stream, self._start, self._drawn = stream, time.monotonic(), 0.0
        self._live: Any = None
        self._text = ""
        self._timer: threading.Timer | None = None
        self._lock = threading.RLock()  # shared by the timer and threads that print

    @contextmanager
    def cleared(self) -> Iterator[None]:
        """Erase the line, and do not draw it inside the context. The next message draws it again."""
        with self._lock:
            if self._live is not None:
                self._live.stop()
                self._live = None
            yield

    def close(self) -> None:
        """Erase the line and stop the timer."""
        with self.cleared():
            if self._timer is not None:
                self._timer.cancel()
            self._text = ""

    def show(self, text: str) -> None:
        """Show a message with the elapsed seconds, not before the delay and at most ten times a second."""
        time_now = time.monotonic()
        with self._lock:
            self._text = text
            if time_now - self._start >= _DELAY:
                if time_now - self._drawn >= 0.1:
                    self._draw()
            elif self._timer is None:
                self._timer = threading.Timer(_DELAY - (time_now - self._start), self._draw)
                self._timer.daemon = True
                self._timer.start()

    def _draw(self) -> None:
        """Draw the line with the last message; do nothing after `close`."""
        with self._lock:
            if not self._text:
                return
            self._drawn = drawn_at = time.monotonic()
            from rich.console import Console
            from rich.live import Live
            from rich.text import Text

            seconds = f"{drawn_at - self._start:6.1f} s  "
            line = Text.assemble((seconds, "dim"), self._text, no_wrap=True, overflow="ellipsis")
            if self._live is None:
                console = Console(file=self._stream)
                self._live = Live(
                    line,
                    console=console,
                    auto_refresh=False,
                    transient=True,
                    redirect_stdout=False,
                    redirect_stderr=False,
                )
                self._live.start()
            self._live.update(line, refresh=True)
