"""Bracketed text inside the IR, read as it stands."""

from __future__ import annotations

from xdsl.parser import AttrParser


def scan_balanced(text: str, start: int) -> int:
    """The end of the bracketed text that opens at `start`, strings skipped; -1 if it never closes."""
    pairs, stack, position = {"<": ">", "{": "}", "(": ")", "[": "]"}, [], start
    while position < len(text):
        character = text[position]
        if character == '"':
            position += 1
            while position < len(text) and text[position] != '"':
                position += 2 if text[position] == "\\" else 1
        elif character in pairs:
            stack.append(pairs[character])
        elif stack and character == stack[-1]:
            stack.pop()
            if not stack:
                return position + 1
        position += 1
    return -1


def take_balanced(parser: AttrParser) -> tuple[str, int]:
    """Consume the bracketed text at the parser's current token; its text and position."""
    start = parser.pos
    end = scan_balanced(parser.lexer.input.content, start)
    if end < 0:
        parser.raise_error("bracket is never closed")
    parser._resume_from(end)  # pyright: ignore[reportPrivateUsage]
    return parser.lexer.input.content[start:end], start


def split_entries(text: str) -> list[str]:
    """Top-level parts of `a, <b, c>, d`."""
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        depth += (character in "<(") - (character in ">)")
        if character == "," and not depth:
            parts.append(text[start:position])
            start = position + 1
    return [part.strip() for part in [*parts, text[start:]] if part.strip()]
