"""How much memory a program holds at once: buffers that live from one step to another, and the step of the peak."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import attrs

CLASSES = (
    "parameters",
    "gradients",
    "optimizer state",
    "inputs",
    "activations",
    "gathered weights",
    "communication buffers",
)
"""What memory is held for, in the order of reports."""


@attrs.frozen
class Buffer:
    """Memory of one tensor, or of several that share it.

    Attributes:
        name: of the value that it was allocated for.
        bytes: on the rank that holds most.
        kind: one of CLASSES.
        first, last: the steps between which it is live, both included.
    """

    name: str
    bytes: float
    kind: str
    first: int
    last: int


class Timeline:
    """The buffers of a program, told in program order.

    Attributes:
        step: the number of the step that is told now; 0 is before the first op.
    """

    def __init__(self) -> None:
        self.step = 0
        self._made: list[tuple[str, float, str, int]] = []
        self._last: list[int] = []
        self._kept: set[int] = set()

    def advance(self) -> None:
        """Begin the next step."""
        self.step += 1

    def hold(self, name: str, size: float, kind: str) -> int:
        """Return the number of a new buffer, live from this step on."""
        self._made.append((name, size, kind, self.step))
        self._last.append(self.step)
        return len(self._made) - 1

    def use(self, buffer: int) -> None:
        """Keep a buffer live until this step."""
        self._last[buffer] = self.step

    def keep(self, buffer: int) -> None:
        """Keep a buffer live until the end of the program."""
        self._kept.add(buffer)

    def buffers(self) -> tuple[Buffer, ...]:
        """Return the buffers, by number."""
        return tuple(
            Buffer(*made, self.step if index in self._kept else last)
            for index, (made, last) in enumerate(zip(self._made, self._last, strict=True))
        )


def live_bytes(buffers: Sequence[Buffer]) -> list[float]:
    """Return the bytes that are live at each step: a step needs its operands and its results at once."""
    change = [0.0] * (max((buffer.last for buffer in buffers), default=0) + 2)
    for buffer in buffers:
        change[buffer.first] += buffer.bytes
        change[buffer.last + 1] -= buffer.bytes
    return list(itertools.accumulate(change))[:-1]
