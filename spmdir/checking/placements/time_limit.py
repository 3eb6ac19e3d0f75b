"""Limit the time of plug-in code: an endless loop becomes an error."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

REPEAT_INTERVAL = 0.5
"""Seconds after which code that has caught `TooLong` is interrupted again."""

WALL_TIME_FACTOR = 20
"""The ratio of the limits of wall time and processor time. Code may wait, or share the processor."""

OWN_FILES = (__file__, contextlib.__file__)
"""The files whose code sets and removes a limit."""


class TooLong(BaseException):
    """Raised in code that exceeds its time limit. `except Exception` in this code does not catch it."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TooLong at the current line after `seconds` of processor time, or WALL_TIME_FACTOR times as much wall time.

    There is no limit on systems without interval timers, and in threads other than the main thread.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    # Frame 0 is this generator, frame 1 is `contextlib`, and frame 2 has the `with` statement.
    has_ended, caller = False, sys._getframe(2)

    def interrupt(_: int, frame: FrameType | None) -> None:
        """Raise TooLong in `frame`, unless the limit is just being set or removed."""
        # An error while the limit is being removed would leave its timers running.
        if has_ended or frame is caller or (frame is not None and frame.f_code.co_filename in OWN_FILES):
            return
        raise TooLong(f"takes longer than {seconds:g} s; expected a result in less time")

    timers = (
        (signal.SIGPROF, signal.ITIMER_PROF, seconds),
        (signal.SIGALRM, signal.ITIMER_REAL, seconds * WALL_TIME_FACTOR),
    )
    previous_handlers = [(number, signal.signal(number, interrupt)) for number, _, _ in timers]
    for _, timer, limit in timers:
        signal.setitimer(timer, limit, REPEAT_INTERVAL)
    try:
        yield
    finally:
        has_ended = True
        for _, timer, _ in timers:
            signal.setitimer(timer, 0)
        for number, handler in previous_handlers:
            signal.signal(number, handler)
