"""A limit of the time that code of a plug-in may take, so that an endless loop is an error."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

AGAIN = 0.5
"""Seconds after which code that has caught `TooLong` is interrupted again."""

WAITING = 20
"""How many times as long as it may compute code may take in all, waiting and while other programs run."""

OUR_FILES = (__file__, contextlib.__file__)
"""The files whose code sets a limit and takes it back."""


class TooLong(BaseException):
    """Code did not end within its time; no Exception, so that code that catches these ends too."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TooLong at the line that runs after `seconds` of computing, or WAITING times as long in all.

    Without effect where the system has no such signals, and in threads other than the main one, which get no signals.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    ended, limited = False, sys._getframe(2)

    def interrupt(_: int, frame: FrameType | None) -> None:
        # A second signal may come while what the first one raised takes the limit back; raised again, it would stay.
        if ended or frame is limited or (frame is not None and frame.f_code.co_filename in OUR_FILES):
            return
        raise TooLong(f"takes longer than {seconds:g} s; expected an answer at once")

    timers = ((signal.SIGPROF, signal.ITIMER_PROF, seconds), (signal.SIGALRM, signal.ITIMER_REAL, seconds * WAITING))
    before = [(number, signal.signal(number, interrupt)) for number, _, _ in timers]
    for _, timer, limit in timers:
        signal.setitimer(timer, limit, AGAIN)
    try:
        yield
    finally:
        ended = True
        for _, timer, _ in timers:
            signal.setitimer(timer, 0)
        for number, handler in before:
            signal.signal(number, handler)
