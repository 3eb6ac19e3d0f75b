"""The words of a program's text and where they stand: found without a parser, so also in a text that is broken."""

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
"""What a cursor is on."""


@attrs.frozen
class TextSpan:
    """A piece of a text: the offset at which it begins, and that behind it."""

    start: int
    end: int

    def __contains__(self, offset: int) -> bool:
        return self.start <= offset <= self.end


@attrs.frozen
class NameScope:
    """A function, or what stands between functions.

    Attributes:
        part: the number of the part of the text that it stands in.
        function: which function of the part it is, from 0 on; None outside.
    """

    part: int
    function: int | None


@attrs.frozen(eq=False, slots=False)
class Scan:
    """The names and comments of a program's text; a line `// -----` begins a part, whose names are its own.

    Attributes:
        text: all of it.
        values: scope → name without `%` → where it stands, in order; the first place defines it.
        symbols: part → name without `@` → where it stands.
        comments: where comments stand.
        strings: where strings stand.
        scopes: offset → the scope that begins there, in order.
        meshes: part → where its mesh is declared.
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
        """Return the offset at which each line begins."""
        return [0, *(match.end() for match in re.finditer("\n", self.text))]

    def line(self, offset: int) -> int:
        """Return the number of the line that `offset` is on, from 0 on."""
        return bisect_right(self.lines, offset) - 1

    def line_span(self, line: int) -> TextSpan:
        """Return where a line stands, without its end."""
        following = self.lines[line + 1] - 1 if line + 1 < len(self.lines) else len(self.text)
        return TextSpan(self.lines[line], following)

    def offset(self, line: int, column: int) -> int:
        """Return the offset of a place, both from 0 on; what is beyond the text is its end."""
        if line >= len(self.lines):
            return len(self.text)
        span = self.line_span(max(line, 0))
        return min(span.start + max(column, 0), span.end)

    def scope_at(self, offset: int) -> NameScope:
        """Return the scope around `offset`."""
        index = bisect_right(self.scopes, offset, key=lambda entry: entry[0]) - 1
        return self.scopes[max(index, 0)][1]

    def word_at(self, offset: int) -> tuple[str, TextSpan] | None:
        """Return the word at `offset` or that ends there, with its `%` or `@`."""
        line = self.line_span(self.line(offset))
        for match in WORD.finditer(self.text, line.start, line.end):
            if match.start() <= offset <= match.end():
                return match[0], TextSpan(*match.span())
        return None

    def is_in(self, offset: int, spans: list[TextSpan]) -> bool:
        """Return whether `offset` is inside one of `spans`, which are in order."""
        index = bisect_right(spans, offset, key=lambda span: span.start) - 1
        return index >= 0 and offset < spans[index].end

    def definition(self, scope: NameScope, name: str) -> TextSpan | None:
        """Return where a value is defined."""
        return next(iter(self.values.get(scope, {}).get(name, ())), None)

    def code_end(self, start: int) -> int:
        """Return where the code on the line of `start` ends, before a comment and blanks."""
        span = self.line_span(self.line(start))
        index = bisect_right(self.comments, start, key=lambda comment: comment.start)
        end = self.comments[index].start if index < len(self.comments) else span.end
        return start + len(self.text[start : min(end, span.end)].rstrip())


def scan(text: str) -> Scan:
    """Return the words of a program's text."""
    found = Scan(text)
    offset = 0
    for number, (_, part) in enumerate(parts_of(text)):
        _scan_part(found, number, offset, offset + len(part))
        offset += len(part)
    return found


def _scan_part(found: Scan, part: int, start: int, end: int) -> None:
    scope = NameScope(part, None)
    found.scopes.append((start, scope))
    functions = 0
    values: dict[str, list[TextSpan]] = found.values.setdefault(scope, {})
    symbols = found.symbols.setdefault(part, {})
    for match in _TOKEN.finditer(found.text, start, end):
        kind = match.lastgroup
        if kind == "value":
            values.setdefault(match["value"], []).append(TextSpan(*match.span()))
        elif kind == "symbol":
            symbols.setdefault(match["symbol"], []).append(TextSpan(*match.span()))
        elif kind == "comment":
            found.comments.append(TextSpan(*match.span()))
        elif kind == "string" and match[0] != '"func.func"':  # that of the generic form
            found.strings.append(TextSpan(*match.span()))
        elif kind == "mesh":
            found.meshes.setdefault(part, TextSpan(match.start(), found.code_end(match.start())))
        else:
            scope = NameScope(part, functions)
            functions += 1
            found.scopes.append((match.start(), scope))
            values = found.values.setdefault(scope, {})
