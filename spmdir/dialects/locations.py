"""Locations of ops: the source line for messages, all module paths and frames, and their text.

In the text each location is defined once, before the module, and ops name it, as in `loc(#loc3)`. MLIR prints the
definitions at the end of the file; xDSL's parser reads them only before their first use.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from io import StringIO
from typing import Any

import attrs
from xdsl.dialects.builtin import (
    UNKNOWN_LOC,
    ArrayAttr,
    CallSiteLoc,
    FileLineColLoc,
    FusedLoc,
    IntAttr,
    LocationAttr,
    NameLoc,
    NoneAttr,
    StringAttr,
)
from xdsl.ir import Attribute, Operation
from xdsl.printer import Printer

from spmdir.core.errors import Location, SpmdirError

_NOWHERE = (UNKNOWN_LOC, NoneAttr())
"""Spellings of an unknown location. xDSL reads `NoneAttr` inside `loc("name")`."""


def location_of(op: Operation) -> Location | None:
    """Return the place of an op in its text, or in the model's source if it was imported."""
    return _innermost(op.location)


@contextmanager
def errors_at(op: Operation, kinds: type[SpmdirError] | tuple[type[SpmdirError], ...] = SpmdirError) -> Iterator[None]:
    """Add the name of `op` to errors of `kinds` raised inside the context, and its location if they have none."""
    try:
        yield
    except kinds as error:
        raise error.at(location_of(op), f"'{op.name}'") from None


@lru_cache(maxsize=4096)
def _innermost(location: Attribute) -> Location | None:
    """Return the first line that a location contains. Without a line, it is the path of a module, at line 0.

    None for an unknown location.
    """
    if isinstance(location, FileLineColLoc):
        return Location(location.filename.data, location.line.data, location.column.data)
    if isinstance(location, NameLoc):
        path = location.desc.data
        return _innermost(location.location) or (Location(path, 0, 0) if path else None)
    # The first part of a call site is the callee, the innermost frame.
    return next(filter(None, map(_innermost, location_parts(location))), None)


@attrs.frozen
class SourcePlaces:
    """The places of an op in the source.

    Attributes:
        paths: the paths of its modules, outermost name first.
        frames: (file, line) of its call stack.
    """

    paths: tuple[str, ...] = ()
    frames: tuple[tuple[str, int], ...] = ()


def places_of(location: Attribute) -> SourcePlaces:
    """Return all places that a location names."""
    paths: list[str] = []
    frames: list[tuple[str, int]] = []
    stack = [location]
    while stack:
        part = stack.pop()
        if isinstance(part, FileLineColLoc):
            frames.append((part.filename.data, part.line.data))
        elif isinstance(part, NameLoc):
            paths.append(part.desc.data)
        stack += reversed([*location_parts(part)])
    return SourcePlaces(tuple(paths), tuple(frames))


_ALIAS = re.compile(
    r'(#\w+) = loc\((?:"([ !#-\[\]-~]*)":([0-9]{1,9}):([0-9]{1,9})|"([ !#-\[\]-~]*)"\((#\w+)\)|'
    r"callsite\((#\w+) at (#\w+)\))\)\n",
    re.ASCII,
)
"""The printed alias of a file location, a name or a call site, without escapes in its strings."""


def read_alias(text: str, start: int, earlier_aliases: Mapping[str, Attribute]) -> tuple[str, LocationAttr, int] | None:
    """Parse the alias at `start`, and return its name, its location and the position after it.

    None if the text does not match `_ALIAS`, the alias is already defined, or it refers to an undefined alias.

    Args:
        earlier_aliases: the aliases defined before this one.
    """
    match = _ALIAS.match(text, start)
    if match is None or match[1] in earlier_aliases:
        return None
    name, file, line, column, path, *nested_names = match.groups()
    if file is not None:
        place = FileLineColLoc(StringAttr(file), IntAttr(int(line)), IntAttr(int(column)))
        return name, place, match.end()
    parts: list[Any] = [earlier_aliases.get(part) for part in nested_names if part is not None]
    if not all(isinstance(part, LocationAttr) for part in parts):
        return None
    return name, CallSiteLoc(*parts) if path is None else NameLoc(StringAttr(path), *parts), match.end()


class LocationAliases:
    """The aliases of one text: location → `#loc1`, numbered in the order of their definitions."""

    def __init__(self) -> None:
        self._names: dict[Attribute, str] = {}
        self._lines: list[str] = []

    def text(self, location: Attribute) -> str:
        """Return `loc(#loc1)`, or `loc(unknown)`."""
        return f"loc({self._alias_of(location)})"

    def definitions(self) -> str:
        """Return one line per alias; nested locations come before those that contain them."""
        return "".join(self._lines)

    def _alias_of(self, location: Attribute) -> str:
        """Return the alias of a location, and define it at its first use; "unknown" for an unknown location."""
        if location in _NOWHERE:
            return "unknown"
        if location not in self._names:
            definition = self._definition_text(location)
            self._names[location] = f"#loc{len(self._names) + 1}"
            self._lines.append(f"{self._names[location]} = loc({definition})\n")
        return self._names[location]

    def _definition_text(self, location: Attribute) -> str:
        """Return the text of a location in MLIR's syntax, with aliases for nested locations."""
        if isinstance(location, NameLoc):
            nested_text = "" if location.location in _NOWHERE else f"({self._alias_of(location.location)})"
            return f"{_literal(location.desc.data)}{nested_text}"
        if isinstance(location, CallSiteLoc):
            return f"callsite({self._alias_of(location.callee)} at {self._alias_of(location.caller)})"
        if isinstance(location, FusedLoc):
            return f"fused[{', '.join(map(self._alias_of, _members(location)))}]"
        assert isinstance(location, FileLineColLoc)
        return f"{_literal(location.filename.data)}:{location.line.data}:{location.column.data}"


def location_parts(location: Attribute) -> Iterable[Attribute]:
    """Return the locations inside a name, a call site or a fused location; () for other locations."""
    if isinstance(location, NameLoc):
        return (location.location,)
    if isinstance(location, CallSiteLoc):
        return (location.callee, location.caller)
    return _members(location) if isinstance(location, FusedLoc) else ()


def _members(location: FusedLoc) -> Iterable[Attribute]:
    """Return the locations that a fused location consists of."""
    members = location.locations
    assert isinstance(members, ArrayAttr)
    return members.data


def _literal(text: str) -> str:
    """Return `text` as a string literal, quoted and escaped."""
    stream = StringIO()
    Printer(stream=stream).print_string_literal(text)
    return stream.getvalue()
