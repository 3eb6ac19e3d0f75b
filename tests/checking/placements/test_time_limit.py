"""A limit of time interrupts the code under it, and nothing else."""

from __future__ import annotations

import signal
import sys
from typing import Any

import pytest

from spmdir.checking.placements.time_limit import TooLong, time_limit


def interrupt_here(interrupt: Any) -> None:
    interrupt(signal.SIGPROF, sys._getframe())


def test_a_second_signal_while_the_first_error_leaves_raises_nothing() -> None:
    """Raised there it would leave the timers running without a handler, which ends the process."""
    with time_limit(60):
        interrupt = signal.getsignal(signal.SIGPROF)
        assert callable(interrupt)
        interrupt(signal.SIGPROF, sys._getframe())
        with pytest.raises(TooLong, match="takes longer than 60 s"):
            interrupt_here(interrupt)
    assert signal.getitimer(signal.ITIMER_PROF) == signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
