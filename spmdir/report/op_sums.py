"""Sums over ops: their number, the bytes that they send, and their modelled time."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from spmdir.core.byte_size import size_text
from spmdir.core.errors import printable
from spmdir.core.time_text import milliseconds

MAX_PRICES = 3
"""The number of lines of a table of measured costs that a report lists for one kind of op."""


@attrs.frozen
class Share:
    """The sum over some ops of a program.

    Attributes:
        count: the number of ops.
        wire_bytes: the bytes that a rank sends, if collectives use ring algorithms.
        seconds: the sum of their times.
        prices: the sources of these times: the topology that models them, or lines of a table of measured costs.
    """

    count: int = 0
    wire_bytes: float = 0.0
    seconds: float = 0.0
    prices: tuple[str, ...] = attrs.field(default=(), eq=False, repr=False)

    def __add__(self, share: Share) -> Share:
        prices = tuple(dict.fromkeys((*self.prices, *share.prices)))
        return Share(self.count + share.count, self.wire_bytes + share.wire_bytes, self.seconds + share.seconds, prices)

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """The count, the bytes, the milliseconds and the sources of the times, as text."""
        prices = ", ".join(self.prices[:MAX_PRICES]) + (", …" if len(self.prices) > MAX_PRICES else "")
        return str(self.count), size_text(self.wire_bytes), milliseconds(self.seconds), prices


def table(rows: Sequence[tuple[str, ...]], numbers: range) -> list[str]:
    """Return the lines of a table. The columns with an index in `numbers` are aligned to the right."""
    rows = [tuple(map(printable, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]

    lines = []
    for row in rows:
        cells = []
        for index, (text, width) in enumerate(zip(row, widths, strict=True)):
            cells.append(text.rjust(width) if index in numbers else text.ljust(width))
        lines.append("  ".join(cells).rstrip())
    return lines
