"""Rules and rewrites with even blanks: what stands on a line stays there, and so do columns that are lined up."""

from __future__ import annotations

import re
from collections.abc import Iterator

from spmdir.core.errors import SpmdirError

INDENT = 4
"""By how many columns lines stand under a rule, and under a ring."""

_TOKEN = re.compile(r'[ \t]+|#.*|"[^"]*"|->|=>|[=!<>]=|\.\.\.|[\w.]+|.', re.ASCII)

_SPACED = ("->", "=>", "==", "!=", "<=", ">=")
"""What has a blank on both sides."""


def laid_out(text: str) -> str:
    """Return a .rules or .rewrites text with even blanks.

    Two blanks and more are columns that the writer lines up, and stay. So does one, or none, where both mean
    something: a name before a parenthesis, and the signs of arithmetic, which are also those of dimensions.

    Raises:
        SpmdirError: a string goes over several lines.
    """
    depths: list[int] = []
    out: list[str] = []
    for line in text.replace("\r\n", "\n").split("\n"):
        code = line.strip(" \t")
        if not code:
            if out and out[-1]:
                out.append("")
            continue
        margin = len(line[: len(line) - len(line.lstrip(" \t"))].expandtabs(INDENT))
        if not code.startswith("#"):
            while depths and depths[-1] >= margin:
                depths.pop()
            depths.append(margin)
            level = len(depths) - 1
        else:
            level = sum(depth < margin for depth in depths) if margin else 0
        out.append(" " * (INDENT * level) + "".join(_spaced(code)).rstrip(" \t"))
    return "\n".join(out).strip("\n") + "\n"


def _spaced(code: str) -> Iterator[str]:
    """Yield the tokens of a line with the blanks between them."""
    nesting, before, gap = 0, "", ""
    for token in _TOKEN.findall(code):
        if token[0] in " \t":  # other blanks end a line of a record
            gap = token.replace("\t", " " * INDENT)
            continue
        if token == '"':
            raise SpmdirError("a string goes over several lines; expected its end on the same line")
        yield gap if len(gap) > 1 else _blank(before, token, gap, nesting) if before else ""
        yield token
        nesting += (token in "([") - (token in ")]")
        before, gap = token, ""


def _blank(before: str, token: str, gap: str, nesting: int) -> str:
    """Return what stands between two tokens of a line at which the writer has one blank or none."""
    if before in ("(", "[") or token in (")", "]", ",", ";", ":"):
        return ""
    if before in (",", ";", ":", *_SPACED) or token in _SPACED or token.startswith("#"):
        return " "
    if "=" in (before, token):
        return "" if nesting else " "
    return gap
