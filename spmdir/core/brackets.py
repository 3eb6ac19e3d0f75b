"""Functions to find the end of bracketed text and to split it at commas."""

from __future__ import annotations

_CLOSING = {"<": ">", "{": "}", "(": ")", "[": "]"}


def scan_balanced(text: str, start: int) -> int:
    """Return the end, exclusive, of the bracketed text that opens at `start`; -1 if it is not closed.

    For `f(a, [b]) c` and the start 1, the end is 9. Brackets of all four kinds are matched. Brackets in double-quoted
    strings are skipped.
    """
    stack, position = [], start
    while position < len(text):
        character = text[position]
        if character == '"':
            position += 1
            while position < len(text) and text[position] != '"':
                position += 2 if text[position] == "\\" else 1
        elif character in _CLOSING:
            stack.append(_CLOSING[character])
        elif stack and character == stack[-1]:
            stack.pop()
            if not stack:
                return position + 1
        position += 1
    return -1


def split_entries(text: str) -> list[str]:
    """Split text at its top-level commas: `a, <b, c>, d(e, f)` has three parts. Spaces and empty parts are dropped."""
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        depth += (character in "<([") - (character in ">)]")
        if character == "," and not depth:
            parts.append(text[start:position])
            start = position + 1
    return [part.strip() for part in [*parts, text[start:]] if part.strip()]
