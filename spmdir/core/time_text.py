"""Seconds as text: `1.234 ms`, `56.7 us`."""

from __future__ import annotations


def time_text(seconds: float) -> str:
    """Return a time with its unit: ms from a millisecond on, us below."""
    return f"{milliseconds(seconds)} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.4g} us"


def milliseconds(seconds: float) -> str:
    """Return a time in ms, without the unit, for columns and sentences in which all times have one unit."""
    return f"{seconds * 1e3:.4g}"
