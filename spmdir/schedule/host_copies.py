"""Copies between the accelerator and the memory of its host.

Each direction is a stream with a link of its own: copies in one direction are made one after the other, beside those
in the other one and beside all that ranks send to each other.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping

from spmdir.schedule.program import Program, Transfer

TO_HOST, FROM_HOST = "to host", "from host"
"""The streams of copies; no stream of a program has a name with a space."""


def copy_transfer(to_host: bool, size: float, seconds: float) -> Transfer:
    """Return a copy of `size` bytes in one direction, which takes `seconds` alone."""
    return Transfer(TO_HOST if to_host else FROM_HOST, (), seconds, 0.0, 0.0, size)


HIDDEN = 0.05
"""The part of the time of a copy that is not hidden although it could be: what is copied is held meanwhile, and leaves
less memory for what is gathered early."""

BUSY = 0.9
"""The part of the time of the accelerator for which copies in one direction may be under way."""


class Copies:
    """What it takes to copy values to the host that wait across a cut of a program, and back.

    Args:
        last, following: buffer → its last use before the cut, and the first one after it.
        seconds: buffer that may be copied → the seconds of a copy.

    Attributes:
        seconds: those.
        room: how long copies in one direction may be under way and be hidden.
    """

    def __init__(
        self,
        program: Program,
        cut: int,
        last: Mapping[int, int],
        following: Mapping[int, int],
        seconds: Mapping[int, float],
    ):
        self.seconds = seconds
        clock = list(itertools.accumulate([task.seconds for task in program.tasks], initial=0.0))
        self.hidden_limit = BUSY * min(clock[cut + 1], clock[-1] - clock[cut + 1])
        self._exposed = {
            buffer: max(0.0, 2 * copy - (clock[following[buffer]] - clock[last[buffer] + 1]))
            for buffer, copy in seconds.items()
        }

    def price(self, buffer: int, rate: float) -> float:
        """Return the seconds of a copy to the host and back that nothing hides, and `rate` times all of them."""
        return min(2 * self.seconds[buffer], 2 * rate * self.seconds[buffer] + self._exposed[buffer])

    def prices(self, rate: float) -> dict[int, float]:
        """Return that of all buffers."""
        return {buffer: self.price(buffer, rate) for buffer in self.seconds}

    def total(self, buffers: Collection[int]) -> float:
        """Return the seconds of the copies of some buffers that are not hidden."""
        beyond = max(0.0, sum(self.seconds[buffer] for buffer in buffers) - self.hidden_limit)
        return 2 * beyond + sum(self.price(buffer, HIDDEN) for buffer in buffers)
