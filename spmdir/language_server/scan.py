"""Scan the names and comments of a text without a parser, which works for broken texts too."""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import cached_property

import attrs

from spmdir.core.input_parts import parts_of

_TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*)|(?P<string>"(?:[^"\\\n]|\\.)*"?)|%(?P<value>[\w$.-]+)|@(?P<symbol>[\w$.-]+|"[^"\n]*")"""
    r"""|(?P<function>\bfunc\.func\b)|(?P<mesh>\bspmd\.mesh\b)""",
    re.ASCII,
)

WORD = re.compile(r"[%@#!^]?[A-Za-z0-9_$](?:[\w$.-]*[\w$])?", re.ASCII)
"""A word at a cursor."""


@attrs.frozen
class TextSpan:
    """A span of a text: the offset of its first character, and the offset after its last.

    `offset in span` also holds for `end`: a cursor directly after a word counts as in it.
    """

    start: int
    end: int

    def __contains__(self, offset: int) -> bool:
        return self.start <= offset <= self.end


@attrs.frozen
class NameScope:
    """A function, or the text of a part outside its functions.

    Attributes:
        part: the index of the part of the text.
        function: the index of the function in the part; None outside functions.
    """

    part: int
    function: int | None


@attrs.frozen(eq=False, slots=False)
class Scan:
    """The names and comments of a text. A line `// -----` begins a part, with separate names.

    Attributes:
        text: the whole text.
        values: scope → name without `%` → its spans, in order; the first is the definition.
        symbols: part → name without `@` → its spans.
        comments: the spans of comments, in order.
        strings: the spans of strings, in order.
        scopes: (offset, scope that begins there), in order.
        meshes: part → the span of its mesh.
    """

    text: str
    values: dict[NameScope, dict[str, list[TextSpan]]] = attrs.field(factory=dict)
    symbols: dict[int, dict[str, list[TextSpan]]] = attrs.field(factory=dict)
    comments: list[TextSpan] = attrs.field(factory=list)
    strings: list[TextSpan] = attrs.field(factory=list)
    scopes: list[tuple[int, NameScope]] = attrs.field(factory=list)
    meshes: dict[int, TextSpan] = attrs.field(factory=dict)

    @cached_property
    def lines(self) -> list[int]:
        """[line], the offset of its first character."""
        return [0, *(match.end() for match in re.finditer("\n", self.text))]

    def line(self, offset: int) -> int:
        """Return the index of the line of `offset`."""
        return bisect_right(self.lines, offset) - 1

    def line_span(self, line: int) -> TextSpan:
        """Return the span of a line, without its line break."""
        following = self.lines[line + 1] - 1 if line + 1 < len(self.lines) else len(self.text)
        return TextSpan(self.lines[line], following)

    def offset(self, line: int, column: int) -> int:
        """Return the offset of a line and column, both from 0 on, clamped to the text."""
        if line >= len(self.lines):
            return len(self.text)
        span = self.line_span(max(line, 0))
        return min(span.start + max(column, 0), span.end)

    def scope_at(self, offset: int) -> NameScope:
        """Return the scope around `offset`."""
        index = bisect_right(self.scopes, offset, key=lambda entry: entry[0]) - 1
        return self.scopes[max(index, 0)][1]

    def word_at(self, offset: int) -> tuple[str, TextSpan] | None:
        """Return the word that contains `offset` or ends there, with its `%` or `@`, and its span."""
        line = self.line_span(self.line(offset))
        for match in WORD.finditer(self.text, line.start, line.end):
            if match.start() <= offset <= match.end():
                return match[0], TextSpan(*match.span())
        return None

    def is_in(self, offset: int, spans: list[TextSpan]) -> bool:
        """Return whether `offset` is inside one of the sorted `spans`."""
        index = bisect_right(spans, offset, key=lambda span: span.start) - 1
        return index >= 0 and offset < spans[index].end

    def definition(self, scope: NameScope, name: str) -> TextSpan | None:
        """Return the span that defines a value."""
        return next(iter(self.values.get(scope, {}).get(name, ())), None)

    def code_end(self, start: int) -> int:
        """Return the end of the code on the line of `start`, without a comment and white space."""
        span = self.line_span(self.line(start))
        index = bisect_right(self.comments, start, key=lambda comment: comment.start)
        end = self.comments[index].start if index < len(self.comments) else span.end
        return start + len(self.text[start : min(end, span.end)].rstrip())


def scan(text: str) -> Scan:
    """Scan a text."""
    scanned = Scan(text)
    offset = 0
    for number, (_, part) in enumerate(parts_of(text)):
        _scan_part(scanned, number, offset, offset + len(part))
        offset += len(part)
    return scanned


def _scan_part(scanned: Scan, part: int, start: int, end: int) -> None:
    """Add the names, comments, strings, scopes and mesh of one part of the text to `scanned`.

    A function begins a scope, which ends at the next function or at the end of the part.

    Args:
        part: the index of the part.
        start, end: the offsets of the part.
    """
    scope = NameScope(part, None)
    scanned.scopes.append((start, scope))
    functions = 0
    values: dict[str, list[TextSpan]] = scanned.values.setdefault(scope, {})
    symbols = scanned.symbols.setdefault(part, {})
    for match in _TOKEN.finditer(scanned.text, start, end):
        kind = match.lastgroup
        if kind == "value":
            values.setdefault(match["value"], []).append(TextSpan(*match.span()))
        elif kind == "symbol":
            symbols.setdefault(match["symbol"], []).append(TextSpan(*match.span()))
        elif kind == "comment":
            scanned.comments.append(TextSpan(*match.span()))
        elif kind == "string" and match[0] != '"func.func"':  # the op name in the generic form
            scanned.strings.append(TextSpan(*match.span()))
        elif kind == "mesh":
            scanned.meshes.setdefault(part, TextSpan(match.start(), scanned.code_end(match.start())))
        else:
            scope = NameScope(part, functions)
            functions += 1
            scanned.scopes.append((match.start(), scope))
            values = scanned.values.setdefault(scope, {})
