"""Format texts: programs as the printer prints them, with their comments; rules and rewrites with even spaces."""

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
"""The indentation of lines below a rule or a ring, in columns."""

_TOKEN = re.compile(r'[ \t]+|#.*|"[^"]*"|->|=>|[=!<>]=|\.\.\.|[\w.]+|.', re.ASCII)

_SPACED = ("->", "=>", "==", "!=", "<=", ">=")
"""The operators with a space on both sides."""


def format_records(text: str) -> str:
    """Format a .rules or .rewrites text.

    Two or more spaces align columns, and are kept. A single space, or none, is kept where both have a meaning: before a
    parenthesis, and around the signs of arithmetic.

    Raises:
        SpmdirError: a string contains a line break.
    """
    depths: list[int] = []
    formatted_lines: list[str] = []
    for line in text.replace("\r\n", "\n").split("\n"):
        code = line.strip(" \t")
        if not code:
            if formatted_lines and formatted_lines[-1]:
                formatted_lines.append("")
            continue
        margin = len(line[: len(line) - len(line.lstrip(" \t"))].expandtabs(INDENT))
        if not code.startswith("#"):
            while depths and depths[-1] >= margin:
                depths.pop()
            depths.append(margin)
            level = len(depths) - 1
        else:
            level = sum(depth < margin for depth in depths) if margin else 0
        formatted_lines.append(" " * (INDENT * level) + "".join(_spaced(code)).rstrip(" \t"))
    return "\n".join(formatted_lines).strip("\n") + "\n"


def _spaced(code: str) -> Iterator[str]:
    """Yield the tokens of a line with the spaces between them."""
    nesting, before, gap = 0, "", ""
    for token in _TOKEN.findall(code):
        if token[0] in " \t":  # other white space ends a line
            gap = token.replace("\t", " " * INDENT)
            continue
        if token == '"':
            raise SpmdirError("a string has no end on its line; expected a closing quote")
        if len(gap) > 1:
            yield gap
        elif before:
            yield _space_between(before, token, gap, nesting)
        yield token
        nesting += (token in "([") - (token in ")]")
        before, gap = token, ""


def _space_between(before: str, token: str, gap: str, nesting: int) -> str:
    """Return the space, "" or " ", between two tokens of a line.

    Args:
        before: the first token.
        token: the second token.
        gap: the space between them in the source, at most one.
        nesting: the number of open brackets. Inside brackets, `=` has no spaces.
    """
    if before in ("(", "[") or token in (")", "]", ",", ";", ":"):
        return ""
    if before in (",", ";", ":", *_SPACED) or token in _SPACED or token.startswith("#"):
        return " "
    if "=" in (before, token):
        return "" if nesting else " "
    return gap


def formatted(document: Document) -> str:
    """Format a text.

    A comment on a separate line stays above the op, argument or function that follows it. A comment after code stays
    after the same op.

    Raises:
        SpmdirError: the text has errors; a program has locations, which the printer would change, or comments that
            cannot be kept.
    """
    if document.mistakes:
        raise SpmdirError(
            "the text has errors; expected a text without errors: correct them before formatting. The "
            f"first: {document.mistakes[0].message}"
        )
    if document.language != "program":
        return format_records(document.text)
    parts = []
    for part in document.parts:
        if re.search(r"\bloc\s*\(", part.text):
            raise SpmdirError(
                "the text has locations, which formatting would remove; expected a text without locations: "
                "use spmd-opt --print-debuginfo to format it"
            )
        separator = part.text.partition("\n")[0] if part.text.startswith("// -----") else None
        assert part.module is not None  # a part without errors has a module
        text = part.text if separator is None else part.text[len(separator) :]
        if not part.module.body.block.ops:
            parts.append(part.text)
            continue
        body = _merge_comments(scan(text), scan(ir.print_ir(part.module)))
        parts.append(body if separator is None else f"{separator}\n\n{body}")
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def _merge_comments(source: Scan, printed: Scan) -> str:
    """Return the text of `printed` with the comments of `source` added.

    Raises:
        SpmdirError: a comment would be lost or split.
    """
    if not source.comments:
        return printed.text
    lines = printed.text.split("\n")
    # Line of `printed` → the comments above it, with a line break at the end if a blank line follows.
    comments_above: dict[int, list[str]] = {}
    comments_after: dict[int, list[str]] = {}  # line of `printed` → the comments at its end
    line_of_anchor = {key: printed.line(offset) for key, offset in _anchors(printed)}
    # (offset in `source`, line of `printed`) of each anchor that both texts have, in order
    anchors = [(offset, line_of_anchor[key]) for key, offset in _anchors(source) if key in line_of_anchor]
    for comment in source.comments:
        text = source.text[comment.start : comment.end].rstrip()
        line = source.line_span(source.line(comment.start))
        is_alone = not source.text[line.start : comment.start].strip()
        next_anchor = bisect_left(anchors, (comment.start, -1))
        if not is_alone and next_anchor:
            comments_after.setdefault(anchors[next_anchor - 1][1], []).append(text)
        else:
            has_blank_after = is_alone and _is_blank(source, source.line(comment.end) + 1)
            target = anchors[next_anchor][1] if next_anchor < len(anchors) else len(lines) - 1
            comments_above.setdefault(target, []).append(text + "\n" * has_blank_after)
    merged_lines: list[str] = []
    for number, line in enumerate(lines):
        margin = line[: len(line) - len(line.lstrip())]
        for text in comments_above.get(number, ()):
            merged_lines.append(f"{margin}{text.rstrip()}")
            if text.endswith("\n"):
                merged_lines.append("")
        merged_lines.append("  ".join([line, *comments_after.get(number, ())]))
    merged = "\n".join(merged_lines)
    if sorted(_comment_texts(source)) != sorted(_comment_texts(scan(merged))):
        raise SpmdirError(
            "formatting cannot keep the comments of the text; expected each on a separate line or after an op: "
            "move them"
        )
    return merged


def _comment_texts(scanned: Scan) -> Iterator[str]:
    """Yield the comments of a text, with their slashes."""
    return (scanned.text[span.start : span.end].rstrip() for span in scanned.comments)


def _is_blank(source: Scan, line: int) -> bool:
    """Return whether a line, not the last one, is blank."""
    if line >= len(source.lines) - 1:
        return False
    span = source.line_span(line)
    return not source.text[span.start : span.end].strip()


def _anchors(scanned: Scan) -> Iterator[tuple[tuple[int, str, str], int]]:
    """Yield (key, offset) of each anchor: definitions of values and functions, returns, and ends of functions.

    Anchors with equal keys correspond in two texts of one program.
    """
    function = -1
    seen: set[tuple[int, str, str]] = set()
    for match in _ANCHOR.finditer(scanned.text):
        if scanned.is_in(match.start(), scanned.comments) or scanned.is_in(match.start(), scanned.strings):
            continue
        kind = match.lastgroup or ""
        if kind == "function":
            function += 1
        if kind == "end" and not _ends_function(scanned, match.start()):
            continue
        key = (function, kind, match["value"] or "")
        if key not in seen:
            seen.add(key)
            yield key, match.start()


def _ends_function(scanned: Scan, start: int) -> bool:
    """Return whether the brace at `start` is the first character of its line, as at the end of a function."""
    line = scanned.line_span(scanned.line(start))
    return not scanned.text[line.start : start].strip()


def edit_of(old: str, new: str) -> tuple[TextSpan, str] | None:
    """Return the smallest edit of whole lines from `old` to `new`; None if they are equal."""
    if old == new:
        return None
    before, after = old.splitlines(keepends=True), new.splitlines(keepends=True)
    start = 0
    while start < min(len(before), len(after)) and before[start] == after[start]:
        start += 1
    end = 0
    while end < min(len(before), len(after)) - start and before[-1 - end] == after[-1 - end]:
        end += 1
    start_offset = sum(map(len, before[:start]))
    end_offset = len(old) - sum(map(len, before[len(before) - end :]))
    return TextSpan(start_offset, end_offset), "".join(after[start : len(after) - end])
