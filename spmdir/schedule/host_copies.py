"""Copies between the accelerator and the memory of its host.

Each direction is a stream with a separate link. Copies in one direction run one after the other, in parallel to the
copies in the other direction and to the messages between ranks.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping

from spmdir.schedule.program import Program, Transfer

TO_HOST, FROM_HOST = "to host", "from host"
"""The streams of copies. Streams of collectives have no spaces in their names."""


def copy_transfer(to_host: bool, size: float, seconds: float) -> Transfer:
    """Return the transfer of a copy of `size` bytes that takes `seconds` on its link.

    All seconds are latency, because a copy does not share the links between ranks.
    """
    return Transfer(TO_HOST if to_host else FROM_HOST, (), seconds, 0.0, 0.0, size)


HIDDEN_PRICE = 0.05
"""The price of a copy that can be hidden, as a fraction of its time. The buffer is held during the copy, which leaves
less memory for gathers that start early."""

BUSY_SHARE = 0.9
"""The fraction of the compute time that can hide copies in one direction."""


class Copies:
    """The prices of copying buffers to the host and back.

    The buffers are live across the *cut*, which is a task of the program.

    For example, a copy takes 2 s in each direction. The buffer is used 3 s of compute before its next use, so 4 − 3 = 1
    s is exposed. With a rate of 0.05, the price is 0.05 · 4 + 1 = 1.2 s.

    Args:
        cut: the number of the task; copies to the host end before it, copies back begin after it.
        last_use, next_use: buffer → its last use up to the cut, and its first use after the cut.
        seconds: buffer that may be copied → the seconds of a copy in one direction.

    Attributes:
        seconds: the argument of the same name.
        hidden_limit: seconds that can hide copies in one direction, all together: nine tenths of the compute time
            before or after the cut, whichever is shorter.
    """

    def __init__(
        self,
        program: Program,
        cut: int,
        last_use: Mapping[int, int],
        next_use: Mapping[int, int],
        seconds: Mapping[int, float],
    ):
        self.seconds = seconds
        # for each task, the compute seconds of all tasks before it; the last entry is the total
        clock = list(itertools.accumulate([task.seconds for task in program.tasks], initial=0.0))
        self.hidden_limit = BUSY_SHARE * min(clock[cut + 1], clock[-1] - clock[cut + 1])
        # buffer → the seconds of its two copies that exceed the compute time between its uses
        self._exposed: dict[int, float] = {}
        for buffer, copy_seconds in seconds.items():
            seconds_between_uses = clock[next_use[buffer]] - clock[last_use[buffer] + 1]
            self._exposed[buffer] = max(0.0, 2 * copy_seconds - seconds_between_uses)

    def price(self, buffer: int, rate: float) -> float:
        """Return the price of a copy to the host and back: its exposed seconds, and `rate` times its whole time.

        The price is at most its whole time.
        """
        return min(2 * self.seconds[buffer], 2 * rate * self.seconds[buffer] + self._exposed[buffer])

    def prices(self, rate: float) -> dict[int, float]:
        """Return buffer → the price of its copy, for all buffers that may be copied."""
        return {buffer: self.price(buffer, rate) for buffer in self.seconds}

    def total_price(self, buffers: Collection[int]) -> float:
        """Return the price of copying all `buffers`.

        The seconds beyond the hidden limit are added, in both directions, because nothing hides them.
        """
        excess = max(0.0, sum(self.seconds[buffer] for buffer in buffers) - self.hidden_limit)
        return 2 * excess + sum(self.price(buffer, HIDDEN_PRICE) for buffer in buffers)
