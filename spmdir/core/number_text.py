"""Parsing of numbers in options and on command lines, as in Python but with ASCII digits only."""

from __future__ import annotations


def integer(text: str) -> int:
    """Parse an integer.

    Raises:
        ValueError: the text is not an integer, or is not ASCII.
    """
    return int(_ascii(text))


def real(text: str) -> float:
    """Parse a floating-point number.

    Raises:
        ValueError: the text is not a number, or is not ASCII.
    """
    return float(_ascii(text))


def _ascii(text: str) -> str:
    """Return `text`; raise ValueError if it has other characters than ASCII."""
    if not text.isascii():
        raise ValueError(text)
    return text
