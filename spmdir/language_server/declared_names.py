"""The declarations of a text, and inlay hints with local shapes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

import attrs

from spmdir.dialects.values import sharding_of
from spmdir.language_server.document import Document
from spmdir.language_server.local_types import mesh_at, shards_of
from spmdir.language_server.scan import TextSpan

_HEAD = re.compile(r"([a-z_]\w*(?:\.\w+)+)[ \t]*[(:]|([a-z][a-z_-]+):")


@attrs.frozen
class DeclaredName:
    """A declaration: a mesh, a function, a rule or a rewrite.

    Attributes:
        name: the declared name.
        kind: the kind of declaration.
        full_span: its whole text.
        name_span: its name in the text.
    """

    name: str
    kind: Literal["mesh", "function", "rule"]
    full_span: TextSpan
    name_span: TextSpan


def symbols(document: Document) -> Iterator[DeclaredName]:
    """Yield the declarations of a text, in order."""
    scanned = document.scan
    if document.language != "program":
        for line in range(len(scanned.lines)):
            span = scanned.line_span(line)
            match = _HEAD.match(document.text, span.start, span.end)
            if match is not None:
                name = TextSpan(*match.span(1 if match[1] else 2))
                yield DeclaredName(document.text[name.start : name.end], "rule", span, name)
        return
    starts = [start for start, _ in scanned.scopes]
    for part, mesh in scanned.meshes.items():
        yield from _declared(document, part, mesh, "mesh")
    for index, (start, scope) in enumerate(scanned.scopes):
        if scope.function is not None:
            end = starts[index + 1] if index + 1 < len(starts) else len(document.text)
            whole = TextSpan(start, start + len(document.text[start:end].rstrip()))
            yield from _declared(document, scope.part, whole, "function")


def _declared(
    document: Document, part: int, whole: TextSpan, sort: Literal["mesh", "function"]
) -> Iterator[DeclaredName]:
    """Yield the mesh or function whose text is `whole`: its name is the first `@name` before any parenthesis."""
    for name, places in document.scan.symbols.get(part, {}).items():
        for place in places:
            if place.start in whole and not document.text[whole.start : place.start].count("("):
                yield DeclaredName(f"@{name}", sort, whole, place)
                return


def shard_hints(document: Document, start: int, end: int) -> Iterator[tuple[int, str]]:
    """Yield (offset, local type) after the definition of each value between two offsets, outside broken parts."""
    for scope, values in document.scan.values.items():
        mesh = mesh_at(document, scope)
        if mesh is None or not document.parts[scope.part].is_current:
            continue
        for name, places in values.items():
            value = document.value(scope, name)
            if value is None or not start <= places[0].start <= end:
                continue
            shards, sharding = shards_of(value, mesh), sharding_of(value)
            if shards is not None and sharding is not None and sharding.entries:
                yield places[0].end, str(shards[1][0])
