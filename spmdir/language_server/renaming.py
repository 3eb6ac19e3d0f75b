"""Where a name is defined and used, and its renaming: values, functions, the mesh and its axes; names in rules."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

import attrs

from spmdir.core.errors import Location, SpmdirError
from spmdir.dialects.mesh_op import AXIS_SIZE
from spmdir.language_server.document import Document, read_document
from spmdir.language_server.scan import NameScope, TextSpan
from spmdir.rules.rule_set import PACKAGED

Kind = Literal["value", "symbol", "axis", "word"]

_LISTED = re.compile(r"\b(?:on|intra)\s*\[([^\[\]\n]*)\]|\bspmd\.keep\s*=\s*\"([^\"\n]*)\"")
_LIKE = re.compile(r'\bspmd\.like\s*=\s*"([^"\n]*)"')
_VALID: dict[Kind, tuple[re.Pattern[str], str]] = {
    "value": (re.compile(r"[A-Za-z_$.-][\w$.-]*|[0-9]{1,9}", re.ASCII), "letters, digits, `_`, `$`, `.` and `-`"),
    "symbol": (re.compile(r"[A-Za-z_][\w$.]*", re.ASCII), "a letter, then letters, digits, `_`, `$` and `.`"),
    "axis": (re.compile(r"[A-Za-z_]\w*", re.ASCII), "a letter, then letters, digits and `_`"),
    "word": (re.compile(r"[A-Za-z_]\w*", re.ASCII), "a letter, then letters, digits and `_`"),
}
"""Kind of name → what may be one, and how an error says that."""


@attrs.frozen
class Named:
    """A name in a text.

    Attributes:
        name: without `%` or `@`.
        kind: what it names; `word` is a name in a rule.
        places: where it stands in the text, with `%` or `@`, in order; the first defines it.
        taken: the other names there are of the kind.
    """

    name: str
    kind: Kind
    places: tuple[TextSpan, ...]
    taken: frozenset[str]


def named_at(document: Document, offset: int) -> Named | None:
    """Return the name at `offset`; None if there is none that a text defines."""
    found = document.scan.word_at(offset)
    if found is None:
        return None
    word, span = found
    if document.language != "program":
        return _in_record(document, word, span)
    if document.scan.is_in(span.start, document.scan.comments):
        return None
    scope = document.scan.scope_at(span.start)
    if word.startswith("%"):
        values = document.scan.values[scope]
        places = values.get(word[1:], [])
        return _named(word[1:], "value", [*places, *_likes(document, scope, word[1:])], values)
    if word.startswith("@"):
        symbols = document.scan.symbols[scope.part]
        return _named(word[1:], "symbol", symbols.get(word[1:], []), symbols)
    axes = axes_of(document, scope.part)
    name = word.partition(".")[0]
    places = [place for place in _axis_places(document, scope.part, name) if name in axes]
    return _named(name, "axis", places, axes) if any(span.start in place for place in places) else None


def _named(name: str, kind: Kind, places: Iterable[TextSpan], names: Iterable[str]) -> Named | None:
    found = tuple(sorted(places, key=lambda place: place.start))
    return Named(name, kind, found, frozenset(names) - {name}) if found else None


def axes_of(document: Document, part: int) -> tuple[str, ...]:
    """Return the axes of the mesh that a part of the text declares."""
    mesh = document.scan.meshes.get(part)
    return tuple(match[1] for match in AXIS_SIZE.finditer(document.text, mesh.start, mesh.end)) if mesh else ()


def _part_span(document: Document, part: int) -> TextSpan:
    starts = [start for start, scope in document.scan.scopes if scope == NameScope(part, None)]
    following = [start for start, scope in document.scan.scopes if scope == NameScope(part + 1, None)]
    return TextSpan(starts[0], following[0] if following else len(document.text))


def _axis_places(document: Document, part: int, name: str) -> list[TextSpan]:
    """Return where an axis stands: before the `=` of the mesh, before the `:` of a placement, in a list of axes."""
    if re.fullmatch(r"\w+", name) is None:
        return []
    text, span = document.text, _part_span(document, part)
    placed = re.compile(rf"(?<=[<,(\[{{\s]){name}(?=(?:\([0-9]+\)[0-9]+)?\s*:)")
    listed = re.compile(rf"(?<![\w.]){name}(?![\w.])")
    places = [TextSpan(*match.span()) for match in placed.finditer(text, span.start, span.end)]
    mesh = document.scan.meshes.get(part)
    if mesh is not None:
        declared = re.compile(rf"(?<=[<,\s]){name}(?=\s*=)")
        places += [TextSpan(*match.span()) for match in declared.finditer(text, mesh.start, mesh.end)]
    for match in _LISTED.finditer(text, span.start, span.end):
        start, end = match.span(1 if match[1] is not None else 2)
        places += [TextSpan(*one.span()) for one in listed.finditer(text, start, end)]
    return [place for place in places if not document.scan.is_in(place.start, document.scan.comments)]


def _likes(document: Document, scope: NameScope, name: str) -> list[TextSpan]:
    """Return where results of a function name an argument by a text, as in `spmd.like = "w"`."""
    starts = [start for start, _ in document.scan.scopes]
    start = next(start for start, found in document.scan.scopes if found == scope)
    end = next((one for one in starts if one > start), len(document.text))
    return [TextSpan(*m.span(1)) for m in _LIKE.finditer(document.text, start, end) if m[1] == name]


def _in_record(document: Document, word: str, span: TextSpan) -> Named | None:
    """Return a name of a rule, a rewrite, or an op, which all records of the file share."""
    text = document.text
    record = TextSpan(0, len(text)) if "." in word else _record(document, span.start)
    start, end = record.start, record.end
    pattern = re.compile(
        rf"(?<![\w.]){re.escape(word)}(?![\w.]|\()" if "." not in word else re.escape(word) + r"(?![\w.])"
    )
    places = [TextSpan(*match.span()) for match in pattern.finditer(text, start, end)]
    names = re.findall(r"[A-Za-z_]\w*", text[start:end])
    return _named(word, "word", places, names)


def _record(document: Document, offset: int) -> TextSpan:
    """Return the line that begins nearest before `offset` without a blank, and those after it that begin with one."""
    text, lines = document.text, document.scan.lines
    first = last = document.scan.line(offset)
    while first and text[lines[first]] in " \t":
        first -= 1
    while last + 1 < len(lines) and text.startswith((" ", "\t"), lines[last + 1]):
        last += 1
    return TextSpan(lines[first], document.scan.line_span(last).end)


def rule_places(document: Document, offset: int) -> list[Location]:
    """Return where the rules of the op at `offset` stand."""
    found = document.scan.word_at(offset)
    if found is None or "." not in found[0]:
        return []
    rules = document.pipeline.rules
    records = (*rules.records.get(found[0], ()), *rules.declared.get(found[0], ()))
    packaged = {path.name: str(path) for path in PACKAGED.glob("*.rules")}
    return [Location(str(Path(packaged.get(one.file, one.file)).resolve()), one.line, 1) for one in records]


def rename(
    document: Document, offset: int, name: str, read: Callable[..., Document] = read_document
) -> list[tuple[TextSpan, str]]:
    """Return the edits that rename what is at `offset`.

    Raises:
        SpmdirError: there is nothing to rename, the name is none or is taken, or the text would mean something else.
    """
    named = named_at(document, offset)
    if named is None or (named.kind == "word" and "." in named.name):
        raise SpmdirError("nothing here has a name that can change; expected a value, a function, a mesh or an axis")
    name = name.removeprefix("%" if named.kind == "value" else "@" if named.kind == "symbol" else "")
    valid, expected = _VALID[named.kind]
    if valid.fullmatch(name) is None:
        raise SpmdirError(f"'{name}' is no name of a {named.kind}; expected {expected}")
    if name in named.taken:
        raise SpmdirError(f"'{name}' is the name of another {named.kind} here; expected one that is free")
    edits = [(_bare(document.text, place), name) for place in named.places]
    if not document.mistakes:
        renamed = read(edited(document.text, edits), document.file, document.pipeline)
        if renamed.mistakes:
            raise SpmdirError(f"'{name}' cannot be the name here: {renamed.mistakes[0].message}")
    return edits


def _bare(text: str, place: TextSpan) -> TextSpan:
    return TextSpan(place.start + (text[place.start] in "%@"), place.end)


def edited(text: str, edits: Iterable[tuple[TextSpan, str]]) -> str:
    """Return `text` with pieces of it replaced."""
    for span, new in sorted(edits, key=lambda edit: -edit[0].start):
        text = text[: span.start] + new + text[span.end :]
    return text
