"""Formatted texts: programs as the printer spells them, with their comments; rules and rewrites with even blanks."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator

from spmdir.core.errors import SpmdirError
from spmdir.dialects import ir
from spmdir.language_server.document import Document
from spmdir.language_server.scan import Scan, TextSpan, scan

_ANCHOR = re.compile(
    r"(?P<mesh>\bspmd\.mesh\b)|(?P<sizes>\bspmd\.sizes\b)|(?P<function>\bfunc\.func\b)|(?P<returns>\breturn\b)"
    r"|(?P<end>\})|%(?P<value>[\w$.-]+)(?=\s*(?:[,:=]))",
    re.ASCII,
)


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


def formatted(document: Document) -> str:
    """Return the text of a program in canonical form, and rules and rewrites with even blanks.

    A comment on lines of its own stays above the op, argument or function that follows it, one behind code stays
    behind the op that it is behind.

    Raises:
        SpmdirError: the text has mistakes; a program has locations, which the printer would change, or comments that
            cannot be kept.
    """
    if document.mistakes:
        raise SpmdirError(f"the text has mistakes, the first of which is: {document.mistakes[0].message}")
    if document.language != "program":
        return laid_out(document.text)
    parts = []
    for part in document.parts:
        if re.search(r"\bloc\s*\(", part.text):
            raise SpmdirError("the text has locations, which would be lost; spmd-opt --print-debuginfo prints them")
        separator = part.text.partition("\n")[0] if part.text.startswith("// -----") else None
        assert part.module is not None  # without mistakes there is one
        text = part.text if separator is None else part.text[len(separator) :]
        if not part.module.body.block.ops:
            parts.append(part.text)
            continue
        body = _commented(scan(text), scan(ir.print_ir(part.module)))
        parts.append(body if separator is None else f"{separator}\n\n{body}")
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def _commented(source: Scan, printed: Scan) -> str:
    """Return the text of `printed` with the comments of `source`."""
    if not source.comments:
        return printed.text
    lines = printed.text.split("\n")
    above: dict[int, list[str]] = {}
    behind: dict[int, list[str]] = {}
    places = {key: printed.line(at) for key, at in _anchors(printed)}
    anchors = [(at, places[key]) for key, at in _anchors(source) if key in places]
    for comment in source.comments:
        text = source.text[comment.start : comment.end].rstrip()
        line = source.line_span(source.line(comment.start))
        is_alone = not source.text[line.start : comment.start].strip()
        index = bisect_left(anchors, (comment.start, -1))
        if not is_alone and index:
            behind.setdefault(anchors[index - 1][1], []).append(text)
        else:
            blank = is_alone and _is_blank(source, source.line(comment.end) + 1)
            target = anchors[index][1] if index < len(anchors) else len(lines) - 1
            above.setdefault(target, []).append(text + "\n" * blank)
    out: list[str] = []
    for number, line in enumerate(lines):
        margin = line[: len(line) - len(line.lstrip())]
        for text in above.get(number, ()):
            out += [f"{margin}{text.rstrip()}", *([""] if text.endswith("\n") else [])]
        out.append("  ".join([line, *behind.get(number, ())]))
    found = "\n".join(out)
    kept = sorted(_texts(source)) == sorted(_texts(scan(found)))
    if not kept:
        raise SpmdirError("the comments of the text cannot be kept; expected each on a line of its own or behind an op")
    return found


def _texts(found: Scan) -> Iterator[str]:
    return (found.text[span.start : span.end].rstrip() for span in found.comments)


def _is_blank(source: Scan, line: int) -> bool:
    return (
        line < len(source.lines) - 1
        and not source.text[source.line_span(line).start : source.line_span(line).end].strip()
    )


def _anchors(found: Scan) -> Iterator[tuple[tuple[int, str, str], int]]:
    """Yield what both texts have, each with its function and its place: the definitions of values, functions, their
    returns and their ends."""
    function = -1
    seen: set[tuple[int, str, str]] = set()
    for match in _ANCHOR.finditer(found.text):
        if found.is_in(match.start(), found.comments) or found.is_in(match.start(), found.strings):
            continue
        kind = match.lastgroup or ""
        if kind == "function":
            function += 1
        if kind == "end" and not _ends_function(found, match.start()):
            continue
        key = (function, kind, match["value"] or "")
        if key not in seen:
            seen.add(key)
            yield key, match.start()


def _ends_function(found: Scan, start: int) -> bool:
    line = found.line_span(found.line(start))
    return not found.text[line.start : start].strip()


def edit_of(old: str, new: str) -> tuple[TextSpan, str] | None:
    """Return the smallest edit of whole lines that makes `new` of `old`; None if they are equal."""
    if old == new:
        return None
    before, after = old.splitlines(keepends=True), new.splitlines(keepends=True)
    start = 0
    while start < min(len(before), len(after)) and before[start] == after[start]:
        start += 1
    end = 0
    while end < min(len(before), len(after)) - start and before[-1 - end] == after[-1 - end]:
        end += 1
    first = sum(map(len, before[:start]))
    return TextSpan(first, len(old) - sum(map(len, before[len(before) - end :]))), "".join(
        after[start : len(after) - end]
    )
