"""A limit of the time that code of a plug-in may take, so that an endless loop is an error."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

AGAIN = 0.5
"""Seconds after which code that has caught `TooLong` is interrupted again."""


class TooLong(BaseException):
    """Code did not end within its time; no Exception, so that code that catches these ends too."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TooLong at the line that runs `seconds` from now.

    Without effect where the system has no such signal, and in threads other than the main one, which get no signals.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    ended = False

    def interrupt(*_: Any) -> None:
        if ended:  # the signal came while the limit was taken back
            return
        raise TooLong(f"takes longer than {seconds:g} s; expected an answer at once")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
    try:
        yield
    finally:
        ended = True
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
