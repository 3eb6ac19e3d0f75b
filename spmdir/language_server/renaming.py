"""Find and rename the uses of a name: values, functions, the mesh and its axes, and names in rules."""

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

_AXIS_LIST = re.compile(r"\b(?:on|intra)\s*\[([^\[\]\n]*)\]|\bspmd\.keep\s*=\s*\"([^\"\n]*)\"")
_LIKE = re.compile(r'\bspmd\.like\s*=\s*"([^"\n]*)"')
_VALID: dict[Kind, tuple[re.Pattern[str], str]] = {
    "value": (re.compile(r"[A-Za-z_$.-][\w$.-]*|[0-9]{1,9}", re.ASCII), "letters, digits, `_`, `$`, `.` and `-`"),
    "symbol": (re.compile(r"[A-Za-z_][\w$.]*", re.ASCII), "a letter, then letters, digits, `_`, `$` and `.`"),
    "axis": (re.compile(r"[A-Za-z_]\w*", re.ASCII), "a letter, then letters, digits and `_`"),
    "word": (re.compile(r"[A-Za-z_]\w*", re.ASCII), "a letter, then letters, digits and `_`"),
}
"""Kind of name → the pattern of valid names, and its description in errors."""


@attrs.frozen
class NameUses:
    """A name and its uses in a text.

    Attributes:
        name: the name without `%` or `@`.
        kind: the kind of name; `word` is a name in a rule.
        places: its spans in the text, with `%` or `@`, in order; the first is the definition.
        other_names: the other names of this kind in the scope.
    """

    name: str
    kind: Kind
    places: tuple[TextSpan, ...]
    other_names: frozenset[str]


def name_at(document: Document, offset: int) -> NameUses | None:
    """Return the name at `offset` and its uses; None if the text has no such name there.

    In a program, it is a value, a function, the mesh or an axis, outside comments. In rules and rewrites, it is any
    word.
    """
    match = document.scan.word_at(offset)
    if match is None:
        return None
    word, span = match
    if document.language != "program":
        return _name_in_record(document, word, span)
    if document.scan.is_in(span.start, document.scan.comments):
        return None
    scope = document.scan.scope_at(span.start)
    if word.startswith("%"):
        values = document.scan.values[scope]
        places = values.get(word[1:], [])
        return _name_uses(word[1:], "value", [*places, *_like_places(document, scope, word[1:])], values)
    if word.startswith("@"):
        symbols = document.scan.symbols[scope.part]
        return _name_uses(word[1:], "symbol", symbols.get(word[1:], []), symbols)
    axes = axes_of(document, scope.part)
    name = word.partition(".")[0]
    places = [place for place in _axis_places(document, scope.part, name) if name in axes]
    return _name_uses(name, "axis", places, axes) if any(span.start in place for place in places) else None


def _name_uses(name: str, kind: Kind, places: Iterable[TextSpan], names: Iterable[str]) -> NameUses | None:
    """Return a name with its sorted uses and the other `names` of its kind; None if it has no uses."""
    spans = tuple(sorted(places, key=lambda place: place.start))
    return NameUses(name, kind, spans, frozenset(names) - {name}) if spans else None


def axes_of(document: Document, part: int) -> tuple[str, ...]:
    """Return the axes of the mesh that a part of the text declares."""
    mesh = document.scan.meshes.get(part)
    return tuple(match[1] for match in AXIS_SIZE.finditer(document.text, mesh.start, mesh.end)) if mesh else ()


def _part_span(document: Document, part: int) -> TextSpan:
    """Return the span of a part of the text."""
    starts = {scope.part: start for start, scope in document.scan.scopes if scope.function is None}
    return TextSpan(starts[part], starts.get(part + 1, len(document.text)))


def _axis_places(document: Document, part: int, name: str) -> list[TextSpan]:
    """Return the spans of an axis: before `=` in the mesh, before `:` in shardings, and in lists of axes."""
    if re.fullmatch(r"\w+", name) is None:
        return []
    text, span = document.text, _part_span(document, part)
    placed = re.compile(rf"(?<=[<,(\[{{\s]){name}(?=(?:\([0-9]+\)[0-9]+)?\s*:)")
    word = re.compile(rf"(?<![\w.]){name}(?![\w.])")
    places = [TextSpan(*match.span()) for match in placed.finditer(text, span.start, span.end)]
    mesh = document.scan.meshes.get(part)
    if mesh is not None:
        declared = re.compile(rf"(?<=[<,\s]){name}(?=\s*=)")
        places += [TextSpan(*match.span()) for match in declared.finditer(text, mesh.start, mesh.end)]
    for match in _AXIS_LIST.finditer(text, span.start, span.end):
        start, end = match.span(1 if match[1] is not None else 2)
        places += [TextSpan(*name_match.span()) for name_match in word.finditer(text, start, end)]
    return [place for place in places if not document.scan.is_in(place.start, document.scan.comments)]


def _like_places(document: Document, scope: NameScope, name: str) -> list[TextSpan]:
    """Return the spans in which results of a function refer to an argument, as in `spmd.like = "w"`."""
    starts = [start for start, _ in document.scan.scopes]
    start = next(start for start, start_scope in document.scan.scopes if start_scope == scope)
    end = next((next_start for next_start in starts if next_start > start), len(document.text))
    matches = _LIKE.finditer(document.text, start, end)
    return [TextSpan(*match.span(1)) for match in matches if match[1] == name]


def _name_in_record(document: Document, word: str, span: TextSpan) -> NameUses | None:
    """Return the uses of a name: of an op in the whole file, of another name in its rule or rewrite."""
    text = document.text
    if "." in word:
        searched, pattern = TextSpan(0, len(text)), re.escape(word) + r"(?![\w.])"
    else:
        searched, pattern = _record_span(document, span.start), rf"(?<![\w.]){re.escape(word)}(?![\w.]|\()"
    matches = re.compile(pattern).finditer(text, searched.start, searched.end)
    places = [TextSpan(*match.span()) for match in matches]
    names = re.findall(r"[A-Za-z_]\w*", text[searched.start : searched.end])
    return _name_uses(word, "word", places, names)


def _record_span(document: Document, offset: int) -> TextSpan:
    """Return the record around `offset`: a line without indentation, and the indented lines after it."""
    text, lines = document.text, document.scan.lines
    first_line = last_line = document.scan.line(offset)
    while first_line and text[lines[first_line]] in " \t":
        first_line -= 1
    while last_line + 1 < len(lines) and text.startswith((" ", "\t"), lines[last_line + 1]):
        last_line += 1
    return TextSpan(lines[first_line], document.scan.line_span(last_line).end)


def rule_places(document: Document, offset: int) -> list[Location]:
    """Return the locations of the rules of the op at `offset`."""
    match = document.scan.word_at(offset)
    if match is None or "." not in match[0]:
        return []
    rules = document.pipeline.rules
    records = (*rules.records.get(match[0], ()), *rules.declared.get(match[0], ()))
    packaged = {path.name: str(path) for path in PACKAGED.glob("*.rules")}
    return [Location(str(Path(packaged.get(record.file, record.file)).resolve()), record.line, 1) for record in records]


def rename(
    document: Document, offset: int, name: str, read: Callable[..., Document] = read_document
) -> list[tuple[TextSpan, str]]:
    """Return the edits that rename the name at `offset`.

    Args:
        name: the new name, with or without `%` or `@`.
        read: parses the new text, to check it. A text that already has errors is not checked.

    Raises:
        SpmdirError: the word cannot be renamed, the new name is invalid or used already, or the new text has errors.
    """
    named = name_at(document, offset)
    if named is None or (named.kind == "word" and "." in named.name):
        raise SpmdirError(
            "cannot rename the text here; expected the name of a value, a function, a mesh or an axis: move "
            "the cursor to one"
        )
    name = name.removeprefix({"value": "%", "symbol": "@"}.get(named.kind, ""))
    valid, expected = _VALID[named.kind]
    if valid.fullmatch(name) is None:
        raise SpmdirError(f"invalid {named.kind} name '{name}'; expected {expected}")
    if name in named.other_names:
        raise SpmdirError(
            f"'{name}' is already the name of another {named.kind}; expected an unused name: choose another one"
        )
    edits = [(_without_sigil(document.text, place), name) for place in named.places]
    if not document.mistakes:
        renamed = read(apply_edits(document.text, edits), document.file, document.pipeline)
        if renamed.mistakes:
            raise SpmdirError(
                f"the text would have errors with the name '{name}': {renamed.mistakes[0].message}; "
                "expected a name without errors: choose another one"
            )
    return edits


def _without_sigil(text: str, place: TextSpan) -> TextSpan:
    """Return a span without the `%` or `@` at its start."""
    return TextSpan(place.start + (text[place.start] in "%@"), place.end)


def apply_edits(text: str, edits: Iterable[tuple[TextSpan, str]]) -> str:
    """Return `text` after edits of non-overlapping spans."""
    for span, new in sorted(edits, key=lambda edit: -edit[0].start):
        text = text[: span.start] + new + text[span.end :]
    return text
