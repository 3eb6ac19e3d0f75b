"""Values that texts of this package parse to, kept in a file beside them: reading them needs no parser."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import attrs

from spmdir.core.errors import Location

_CONTAINERS: tuple[type, ...] = (tuple, frozenset)


@attrs.define(frozen=True, slots=False, eq=False)
class ParsedTexts:
    """A file of parsed texts: one a line, the digest of the text and, as JSON, the value that it parses to.

    An entry is that of its text alone: a text that was edited since is not found, and has to be parsed. A value is
    written as a list of the number of its class and of its fields, a container as one of its number and its items;
    places are relative to the first line of the text.

    Attributes:
        path: the file.
        kinds: the attrs classes of which values are made, beside Location, tuples and frozensets.
    """

    path: Path
    kinds: tuple[type, ...]

    def find(self, text: str, file: str, first_line: int = 1) -> Any | None:
        """Return what `text` parses to, its places in `file` from `first_line` on; None if the file does not say.

        A damaged file does not say either.
        """
        entry = self._entries.get(_digest(text))
        if entry is None:
            return None
        try:
            return self._value(json.loads(entry), file, first_line - 1)
        except (ValueError, TypeError, IndexError):
            return None

    def spell(self, entries: Iterable[tuple[str, int, Any]]) -> str:
        """Return the text of a file with `entries`: (text, its first line, the value that it parses to)."""
        lines = {}
        for text, first_line, value in entries:
            lines[_digest(text)] = json.dumps(self._data(value, first_line - 1), separators=(",", ":"))
        return "".join(f"{digest} {line}\n" for digest, line in sorted(lines.items()))

    @cached_property
    def _entries(self) -> dict[str, str]:
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            return {}
        return {digest: entry for digest, _, entry in (line.partition(" ") for line in lines)}

    @cached_property
    def _classes(self) -> tuple[type, ...]:
        return (*_CONTAINERS, Location, *self.kinds)

    def _data(self, value: Any, offset: int) -> Any:
        """Return `value` as what JSON has, its places `offset` lines up."""
        if value is None or type(value) in (bool, int, float, str):
            return value
        number = self._classes.index(type(value))
        if isinstance(value, Location):
            return [number, value.line - offset, value.column]
        if isinstance(value, _CONTAINERS):
            fields = sorted(value) if isinstance(value, frozenset) else value
        else:
            fields = [getattr(value, field.name) for field in attrs.fields(type(value)) if field.init]
        return [number, *(self._data(field, offset) for field in fields)]

    def _value(self, data: Any, file: str, offset: int) -> Any:
        """Return the value that `data` is, its places in `file` and `offset` lines down."""
        makers: list[Callable[..., Any]] = [
            lambda *items: items,
            lambda *items: frozenset(items),
            lambda line, column: Location(file, line + offset, column),
            *self.kinds,
        ]

        def made(data: Any) -> Any:
            return makers[data[0]](*map(made, data[1:])) if type(data) is list else data

        return made(data)


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
