"""TOML that a user wrote: read, and the places of what is in it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from functools import partial
from typing import Any

from spmdir.core.errors import Location, ParseError, text_location
from spmdir.core.limits import check_nesting

_INDENT = 80
"""How many blanks a key may have around it to be found."""


def read_toml(text: str, file: str) -> dict[str, Any]:
    """Return what `text` says.

    Raises:
        ParseError: it is not TOML. LimitError: it is nested too deeply.
    """
    check_nesting(text, file)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _malformed(error, text, file) from None


class LocatedKey(str):
    """A key of a TOML text that knows its place, for errors found where the key is used.

    Attributes:
        place: gives the location; to find it takes a search of the text, which only errors need.
    """

    place: Callable[[], Location]


def located_key(text: str, file: str, key: str) -> LocatedKey:
    """Return `key` of the TOML `text` with its place."""
    located = LocatedKey(key)
    located.place = partial(place_of, text, file, key)
    return located


def key_location(key: str) -> Location | None:
    """Return where `key` is in its file; None for a key that comes from no file."""
    return key.place() if isinstance(key, LocatedKey) else None


def place_of(text: str, file: str, key: str, value: Any = None) -> Location:
    """Return where `value` stands behind `key`, or else where `key` stands, or the table in which it is."""
    table, _, last = key.rpartition(".")
    for name in filter(None, (key, last, table)):
        start = text.find(name)
        while start >= 0 and not _is_key(text, start, start + len(name)):
            start = text.find(name, start + 1)
        if start >= 0:
            found = text.find(value, start + len(name)) if isinstance(value, str) else -1
            line = text.rfind("\n", 0, start) + 1
            own = start - len(text[line:start].lstrip())
            return text_location(text, own if found < 0 else found, file)
    return Location(file, 1, 1)


def _is_key(text: str, start: int, end: int) -> bool:
    """Return whether `text[start:end]` is a key: it begins a line, and an equals sign or ] follows."""
    before = text[max(text.rfind("\n", 0, start), start - _INDENT) + 1 : start]
    after = text[end : end + _INDENT].lstrip("\"' \t")
    return not before.strip("[\"' \t\r") and after.startswith(("=", "]"))


def _malformed(error: tomllib.TOMLDecodeError, text: str, file: str) -> ParseError:
    message = str(error)
    at = re.search(r" \(at (?:line ([0-9]+), column ([0-9]+)|end of document)\)\Z", message)
    if at is None or at[1] is None:
        place = text_location(text, len(text), file)
    else:
        place = Location(file, int(at[1]), int(at[2]))
    return ParseError(message[: at.start()] if at else message, place)
