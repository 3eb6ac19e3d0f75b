"""Read TOML files of users, and find the locations of keys and values for errors."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from functools import partial
from typing import Any

from spmdir.core.errors import Location, ParseError, text_location
from spmdir.core.limits import check_nesting

_INDENT = 80
"""Largest number of blanks around a key when its location is searched."""


def read_toml(text: str, file: str) -> dict[str, Any]:
    """Parse a TOML text.

    Raises:
        ParseError: the text is not TOML.
        LimitError: brackets are nested too deeply.
    """
    check_nesting(text, file)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _malformed(error, text, file) from None


class LocatedKey(str):
    """A key of a TOML text with its location, for errors that occur when the key is used.

    Attributes:
        place: returns the location. It searches the text, so only errors call it.
    """

    place: Callable[[], Location]


def located_key(text: str, file: str, key: str) -> LocatedKey:
    """Return `key` of the TOML `text` as a LocatedKey."""
    located = LocatedKey(key)
    located.place = partial(place_of, text, file, key)
    return located


def key_location(key: str) -> Location | None:
    """Return the location of `key` in its file; None if it is not from a file."""
    return key.place() if isinstance(key, LocatedKey) else None


def place_of(text: str, file: str, key: str, value: Any = None) -> Location:
    """Return the location of a `value` or key in a TOML text.

    The first location that exists is returned: of `value` after `key`, of the last part of a dotted `key`, of the table
    that contains it, or of the beginning of the text.
    """
    table, _, last_part = key.rpartition(".")
    for name in filter(None, (key, last_part, table)):
        start = text.find(name)
        while start >= 0 and not _is_key(text, start, start + len(name)):
            start = text.find(name, start + 1)
        if start >= 0:
            value_offset = text.find(value, start + len(name)) if isinstance(value, str) else -1
            line_start = text.rfind("\n", 0, start) + 1
            key_offset = start - len(text[line_start:start].lstrip())  # with the quote or bracket before the name
            return text_location(text, key_offset if value_offset < 0 else value_offset, file)
    return Location(file, 1, 1)


def _is_key(text: str, start: int, end: int) -> bool:
    """Return whether `text[start:end]` is a key: it begins a line, and an equals sign or ] follows.

    Blanks and quotes around the key, and brackets before it, are skipped.
    """
    before = text[max(text.rfind("\n", 0, start), start - _INDENT) + 1 : start]
    after = text[end : end + _INDENT].lstrip("\"' \t")
    return not before.strip("[\"' \t\r") and after.startswith(("=", "]"))


def _malformed(error: tomllib.TOMLDecodeError, text: str, file: str) -> ParseError:
    """Return the ParseError for an error of tomllib, with the location that its message contains."""
    message = str(error)
    position = re.search(r" \(at (?:line ([0-9]+), column ([0-9]+)|end of document)\)\Z", message)
    if position is None or position[1] is None:
        place = text_location(text, len(text), file)
    else:
        place = Location(file, int(position[1]), int(position[2]))
    return ParseError(message[: position.start()] if position else message, place)
