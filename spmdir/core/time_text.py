"""Seconds as text: `1.234 ms`, `56.7 us`."""

from __future__ import annotations


def time_text(seconds: float) -> str:
    """Format seconds with a unit: ms for at least a millisecond, else us."""
    return f"{milliseconds(seconds)} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.4g} us"


def milliseconds(seconds: float) -> str:
    """Format seconds as a number of ms, without the unit, for columns in which all times are in ms."""
    return f"{seconds * 1e3:.4g}"
