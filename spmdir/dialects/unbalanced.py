"""The bracket, brace or quote that a text lacks, found by the lines on which its ops begin.

A parser notices a missing bracket where it can no longer read on, which may be lines below. An op begins on a line of
its own, so that what is open there, but for the braces of functions, has not been closed on the lines before:

    %1 = aten.gelu(%x) {approximate = "none" : tensor<4xf32>    <- the brace that is never closed
    return %1 : tensor<4xf32>                                   <- where another op begins
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import attrs

_CLOSING = {"<": ">", "{": "}", "(": ")", "[": "]"}
_OPENING = {closing: opening for opening, closing in _CLOSING.items()}

_TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*) | (?P<string>"(?:[^"\\\n]|\\.)*+"?) | (?P<arrow>->) | (?P<bracket>[<>(){}\[\]])
      | (?P<op>(?:(?<=\n)|\A)[ \t]*(?:%[\w$.\-]+(?:[ \t]*,[ \t]*%[\w$.\-]+)*(?::[0-9]+)?[ \t]*=|(?:func\.)?return\b))
      | (?P<top>(?:(?<=\n)|\A)[ \t]*(?:func\.func|spmd\.mesh|spmd\.sizes)\b)""",
    re.VERBOSE | re.ASCII,
)
_BODY = re.compile(r"[ \t]*(?://[^\n]*)?(?:\n|\Z)")
_GENERIC = re.compile(r"\([ \t]*\{|^[ \t]*\^", re.MULTILINE)
"""What regions begin with in the generic form."""


@attrs.frozen
class Unbalanced:
    """What a text lacks, and the offset at which it is missing."""

    message: str
    offset: int


def find_unbalanced(text: str) -> Unbalanced | None:
    """Return the first bracket or quote that a text lacks; None if nothing is missing, or for the generic form."""
    if _GENERIC.search(text):
        return None
    opened: list[tuple[str, int, bool]] = []  # bracket, offset, whether it opens the body of a function
    has_function = False
    for kind, found, offset in _tokens(text):
        if kind == "string" and (len(found) < 2 or not found.endswith('"')):
            return Unbalanced("this string is not closed on its line; expected '\"'", offset)
        if kind in ("op", "top"):
            inner = next((entry for entry in reversed(opened) if not entry[2]), None)
            if inner is not None and opened[-1] == inner:
                return Unbalanced(f"'{inner[0]}' is never closed; expected '{_CLOSING[inner[0]]}'", inner[1])
            if kind == "op" and has_function and not opened:
                return Unbalanced("this op is in no function; expected '{' behind the signature, no '}' before", offset)
            if kind == "top" and found == "func.func" and opened and has_function:
                return Unbalanced("the function before is not closed; expected '}'", offset)
            has_function = has_function or found == "func.func"
        if kind != "bracket":
            continue
        if found in _CLOSING:
            is_body = found == "{" and _opens_body(text, offset)
            if is_body and opened and not opened[-1][2]:
                inner = opened[-1][0]
                return Unbalanced(f"'{inner}' is not closed before the body; expected '{_CLOSING[inner]}'", offset)
            opened.append((found, offset, is_body))
        elif opened and opened[-1][0] == _OPENING[found] and (not opened[-1][2] or _is_first(text, offset)):
            opened.pop()
        elif opened and not opened[-1][2] and any(bracket == _OPENING[found] for bracket, _, _ in opened):
            bracket, place, _ = opened[-1]
            return Unbalanced(f"'{bracket}' is not closed before '{found}'; expected '{_CLOSING[bracket]}'", place)
        else:
            return Unbalanced(f"'{found}' closes nothing; expected '{_OPENING[found]}' before it", offset)
    return None


def _tokens(text: str) -> Iterator[tuple[str, str, int]]:
    for match in _TOKEN.finditer(text):
        found = match[0].lstrip()
        yield match.lastgroup or "", found, match.end() - len(found)


def _opens_body(text: str, offset: int) -> bool:
    """Return whether the brace at `offset` is the last of its line, and is not that of `attributes {`."""
    return bool(_BODY.match(text, offset + 1)) and not text[:offset].rstrip().endswith("attributes")


def _is_first(text: str, offset: int) -> bool:
    """Return whether what is at `offset` is the first of its line, as the brace that closes a body is."""
    return not text[text.rfind("\n", 0, offset) + 1 : offset].strip()
