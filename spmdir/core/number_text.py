"""Numbers in options and on command lines: Python's, in ASCII digits alone, as in every other text."""

from __future__ import annotations


def integer(text: str) -> int:
    """Return the integer that `text` is.

    Raises:
        ValueError: it is none, or has digits of another script, which Python takes too.
    """
    return int(_ascii(text))


def real(text: str) -> float:
    """Return the number that `text` is.

    Raises:
        ValueError: it is none, or has digits of another script, which Python takes too.
    """
    return float(_ascii(text))


def _ascii(text: str) -> str:
    if not text.isascii():
        raise ValueError(text)
    return text
