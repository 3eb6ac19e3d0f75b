"""A cache file of parsed texts, such as rules: loading the cached values is faster than parsing."""

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
    """A file with one parsed text per line: the digest of the text, and the parsed value as JSON.

    An edited text has another digest, so `find` returns None and the caller parses it. An object is written as `[number
    of its class, *fields]`, and a container as `[number of its class, *items]`. Lines of locations are relative to the
    first line of the text.

    Attributes:
        path: the file.
        kinds: the attrs classes of the values, apart from Location, tuple and frozenset.
    """

    path: Path
    kinds: tuple[type, ...]

    def find(self, text: str, file: str, first_line: int = 1) -> Any | None:
        """Return the parsed value of `text`; None on a miss or if the file is corrupt.

        Args:
            file: file name for the locations in the value.
            first_line: line of `file` on which the text starts.
        """
        entry = self._entries.get(_digest(text))
        if entry is None:
            return None
        try:
            return self._value(json.loads(entry), file, first_line - 1)
        except (ValueError, TypeError, IndexError):
            return None

    def spell(self, entries: Iterable[tuple[str, int, Any]]) -> str:
        """Return the content of a file with `entries`: (text, its first line, its parsed value)."""
        lines = {}
        for text, first_line, value in entries:
            lines[_digest(text)] = json.dumps(self._data(value, first_line - 1), separators=(",", ":"))
        return "".join(f"{digest} {line}\n" for digest, line in sorted(lines.items()))

    @cached_property
    def _entries(self) -> dict[str, str]:
        """Return digest of a text → JSON of its parsed value; empty if the file cannot be read."""
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            return {}
        return {digest: entry for digest, _, entry in (line.partition(" ") for line in lines)}

    @cached_property
    def _classes(self) -> tuple[type, ...]:
        """Return the classes of the values. JSON data refer to a class by its index here."""
        return (*_CONTAINERS, Location, *self.kinds)

    def _data(self, value: Any, offset: int) -> Any:
        """Convert `value` to JSON data, with `offset` subtracted from the lines of locations.

        The file of a location is omitted. The items of a frozenset are sorted, so that equal values have equal data.
        """
        if value is None or type(value) in (bool, int, float, str):
            return value
        class_index = self._classes.index(type(value))
        if isinstance(value, Location):
            return [class_index, value.line - offset, value.column]
        if isinstance(value, _CONTAINERS):
            fields = sorted(value) if isinstance(value, frozenset) else value
        else:
            fields = [getattr(value, field.name) for field in attrs.fields(type(value)) if field.init]
        return [class_index, *(self._data(field, offset) for field in fields)]

    def _value(self, data: Any, file: str, offset: int) -> Any:
        """Convert JSON data to a value: the inverse of `_data`.

        Locations are in `file`, with `offset` added to their lines.
        """
        constructors: list[Callable[..., Any]] = [
            lambda *items: items,
            lambda *items: frozenset(items),
            lambda line, column: Location(file, line + offset, column),
            *self.kinds,
        ]

        def build(data: Any) -> Any:
            return constructors[data[0]](*map(build, data[1:])) if type(data) is list else data

        return build(data)


def _digest(text: str) -> str:
    """Return the digest of `text`, with which its line in the file begins."""
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
