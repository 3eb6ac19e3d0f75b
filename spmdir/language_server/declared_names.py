"""What a program's text declares, and hints that stand in its lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

import attrs

from spmdir.dialects.values import sharding_of
from spmdir.language_server.document import Document
from spmdir.language_server.scan import TextSpan
from spmdir.language_server.shards import mesh_at, shards_of

_HEAD = re.compile(r"([a-z_]\w*(?:\.\w+)+)[ \t]*[(:]|([a-z][a-z_-]+):")


@attrs.frozen
class DeclaredName:
    """What a text declares: a mesh, a function, a rule or a rewrite.

    Attributes:
        whole: all of its text.
        span: its name.
    """

    name: str
    sort: Literal["mesh", "function", "rule"]
    whole: TextSpan
    span: TextSpan


def symbols(document: Document) -> Iterator[DeclaredName]:
    """Yield what a text declares, in order."""
    found = document.scan
    if document.language != "program":
        for line in range(len(found.lines)):
            span = found.line_span(line)
            if match := _HEAD.match(document.text, span.start, span.end):
                name = TextSpan(*match.span(1 if match[1] else 2))
                yield DeclaredName(document.text[name.start : name.end], "rule", span, name)
        return
    starts = [start for start, _ in found.scopes]
    for part, mesh in found.meshes.items():
        yield from _named(document, part, mesh, "mesh")
    for index, (start, scope) in enumerate(found.scopes):
        if scope.function is not None:
            end = starts[index + 1] if index + 1 < len(starts) else len(document.text)
            whole = TextSpan(start, start + len(document.text[start:end].rstrip()))
            yield from _named(document, scope.part, whole, "function")


def _named(document: Document, part: int, whole: TextSpan, sort: Literal["mesh", "function"]) -> Iterator[DeclaredName]:
    for name, places in document.scan.symbols.get(part, {}).items():
        for place in places:
            if place.start in whole and not document.text[whole.start : place.start].count("("):
                yield DeclaredName(f"@{name}", sort, whole, place)
                return


def shard_hints(document: Document, first: int, last: int) -> Iterator[tuple[int, str]]:
    """Yield where values between two offsets are defined, each with what a rank has of it; nothing in broken parts."""
    for scope, values in document.scan.values.items():
        mesh = mesh_at(document, scope)
        if mesh is None or not document.parts[scope.part].is_current:
            continue
        for name, places in values.items():
            if not first <= places[0].start <= last or (value := document.value(scope, name)) is None:
                continue
            found, sharding = shards_of(value, mesh), sharding_of(value)
            if found is not None and sharding is not None and sharding.entries:
                yield places[0].end, str(found[1][0])
