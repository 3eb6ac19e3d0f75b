"""Numbers of bytes as text: `80GiB`, `500MB`, `4096`."""

from __future__ import annotations

import math
import re
from typing import Annotated

UNITS = {"B": 1, **{f"{letter}B": 1000**power for power, letter in enumerate("kMGT", 1)}} | {
    f"{letter}iB": 1024**power for power, letter in enumerate("KMGT", 1)
}
"""Unit → bytes."""


class Bytes(float):
    """A number of bytes, parsed from text with a unit, or given as a number. `str` returns it without a unit.

    Raises:
        ValueError: the text is not a number with a unit of UNITS.
    """

    def __new__(cls, text: str | float) -> Bytes:
        if not isinstance(text, str):
            return super().__new__(cls, text)
        match = re.fullmatch(r"([0-9]+(?:\.[0-9]*)?(?:e[0-9]+)?) *([A-Za-z]*)", text.strip())
        if match is None or (match[2] or "B") not in UNITS:
            raise ValueError(text)
        return super().__new__(cls, float(match[1]) * UNITS[match[2] or "B"])

    def __str__(self) -> str:
        return str(int(self)) if self.is_integer() else repr(float(self))


Size = Annotated[Bytes, "as 80GiB or 500MB"]
"""The type of an option whose value is a number of bytes."""


def size_text(count: float) -> str:
    """Return a number of bytes as text with a decimal unit, as in `1.5 MB`."""
    power = min(int(math.log10(count) / 3), 4) if count >= 1 else 0
    return f"{count / 1000**power:.4g} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"
