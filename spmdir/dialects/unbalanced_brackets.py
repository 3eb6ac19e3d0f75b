"""Find a missing bracket, brace or quote in a text.

A parser reports a missing bracket where it cannot continue, which may be many lines later. Each op starts on a new
line. Therefore a bracket that is open at the start of an op was not closed, unless it is the brace of a function:

    %1 = aten.gelu(%x) {approximate = "none" : tensor<4xf32>    <- this brace is not closed
    return %1 : tensor<4xf32>                                   <- the next op starts here
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import attrs

_CLOSING = {"<": ">", "{": "}", "(": ")", "[": "]"}
_OPENING = {closing: opening for opening, closing in _CLOSING.items()}

_TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*) | (?P<string>"(?:[^"\\\n]|\\.)*+"?) | (?P<arrow>->|(?<=[FIWBU])[0-9]+>)
      | (?P<bracket>[<>(){}\[\]])
      | (?P<op>(?:(?<=\n)|\A)[ \t]*(?:%[\w$.\-]+(?:[ \t]*,[ \t]*%[\w$.\-]+)*(?::[0-9]+)?[ \t]*=|(?:func\.)?return\b))
      | (?P<top>(?:(?<=\n)|\A)[ \t]*(?:func\.func|spmd\.mesh|spmd\.sizes|spmd\.pipeline)\b)""",
    re.VERBOSE | re.ASCII,
)
_BODY = re.compile(r"[ \t]*(?://[^\n]*)?(?:\n|\Z)")
_GENERIC = re.compile(r"\([ \t]*\{|^[ \t]*\^", re.MULTILINE)
"""The start of a region in the generic form."""


@attrs.frozen
class Unbalanced:
    """The error message for a missing bracket or quote, and its offset in the text."""

    message: str
    offset: int


def find_unbalanced(text: str) -> Unbalanced | None:
    """Return the first missing bracket or quote; None if nothing is missing.

    The text is read token by token with a stack of open brackets. Each line that begins an op, a function or a
    declaration must find only bodies of functions on the stack. A text in MLIR's generic form is not checked: None.
    """
    if _GENERIC.search(text):
        return None
    open_brackets: list[tuple[str, int, bool]] = []  # bracket, offset, whether it opens the body of a function
    has_function = False
    for kind, token, offset in _tokens(text):
        if kind == "string" and (len(token) < 2 or not token.endswith('"')):
            return Unbalanced("this string is not closed on its line; expected '\"'", offset)
        if kind in ("op", "top"):
            # A new op begins, so the last open bracket must be that of a body. A bracket before it is found later.
            unclosed = next((entry for entry in reversed(open_brackets) if not entry[2]), None)
            if unclosed is not None and open_brackets[-1] == unclosed:
                return Unbalanced(f"'{unclosed[0]}' is not closed; expected '{_CLOSING[unclosed[0]]}'", unclosed[1])
            if kind == "op" and has_function and not open_brackets:
                return Unbalanced(
                    "this op is outside of a function; expected '{' after the signature and no '}' before this op",
                    offset,
                )
            if kind == "top" and token == "func.func" and open_brackets and has_function:
                return Unbalanced("the previous function is not closed; expected '}'", offset)
            has_function = has_function or token == "func.func"
        if kind != "bracket":
            continue
        last_bracket, last_offset, last_is_body = open_brackets[-1] if open_brackets else ("", 0, True)
        if token in _CLOSING:  # it opens a bracket
            is_body = token == "{" and _opens_body(text, offset)
            if is_body and not last_is_body:
                return Unbalanced(
                    f"'{last_bracket}' is not closed before the body; expected '{_CLOSING[last_bracket]}'", offset
                )
            open_brackets.append((token, offset, is_body))
        elif last_bracket == _OPENING[token] and (not last_is_body or _is_first(text, offset)):
            open_brackets.pop()  # the end of a body is the first character of its line
        elif not last_is_body and any(bracket == _OPENING[token] for bracket, _, _ in open_brackets):
            return Unbalanced(
                f"'{last_bracket}' is not closed before '{token}'; expected '{_CLOSING[last_bracket]}'", last_offset
            )
        else:
            return Unbalanced(f"'{token}' closes nothing; expected '{_OPENING[token]}' before it", offset)
    return None


def _tokens(text: str) -> Iterator[tuple[str, str, int]]:
    """Yield (kind, text, offset) of each token that matters; the kinds are the groups of `_TOKEN`."""
    for match in _TOKEN.finditer(text):
        token = match[0].lstrip()
        yield match.lastgroup or "", token, match.end() - len(token)


def _opens_body(text: str, offset: int) -> bool:
    """Return whether the brace at `offset` is the last character of its line and does not belong to `attributes {`."""
    return bool(_BODY.match(text, offset + 1)) and not text[:offset].rstrip().endswith("attributes")


def _is_first(text: str, offset: int) -> bool:
    """Return whether the character at `offset` is the first of its line, as is the brace that closes a body."""
    return not text[text.rfind("\n", 0, offset) + 1 : offset].strip()
