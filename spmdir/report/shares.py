"""What some of the ops of a program add up to: their number, the bytes that they send, and their modelled time."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from spmdir.core.byte_size import size_text
from spmdir.core.errors import printable
from spmdir.core.time_text import milliseconds

LISTED = 3
"""How many lines of a table of costs the report names for one kind of op."""


@attrs.frozen
class Share:
    """What some of the ops of a program add up to.

    Attributes:
        count: how many there are.
        wire_bytes: bytes a rank sends, ring model.
        seconds: their time, one after the other.
        prices: where the time is from: the topology that models it, or lines of a table of costs.
    """

    count: int = 0
    wire_bytes: float = 0.0
    seconds: float = 0.0
    prices: tuple[str, ...] = attrs.field(default=(), eq=False, repr=False)

    def __add__(self, other: Share) -> Share:
        prices = tuple(dict.fromkeys((*self.prices, *other.prices)))
        return Share(self.count + other.count, self.wire_bytes + other.wire_bytes, self.seconds + other.seconds, prices)

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """Return the number, the bytes, the milliseconds and where these are from, as text."""
        prices = ", ".join(self.prices[:LISTED]) + (", …" if len(self.prices) > LISTED else "")
        return str(self.count), size_text(self.wire_bytes), milliseconds(self.seconds), prices


def table(rows: Sequence[tuple[str, ...]], numbers: range) -> list[str]:
    """Return the lines of a table, its columns of `numbers` to the right and the others to the left."""
    rows = [tuple(map(printable, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]

    def line(row: tuple[str, ...]) -> str:
        cells = enumerate(zip(row, widths, strict=True))
        return "  ".join(c.rjust(w) if at in numbers else c.ljust(w) for at, (c, w) in cells).rstrip()

    return list(map(line, rows))
