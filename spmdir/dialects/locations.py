"""Locations as text: each is defined once, before the module, and ops name it, as in `loc(#loc3)`.

MLIR prints the definitions at the end of the file; xDSL's parser reads them only before their first use.
"""

from __future__ import annotations

from collections.abc import Iterable
from io import StringIO

from xdsl.dialects.builtin import UNKNOWN_LOC, ArrayAttr, CallSiteLoc, FileLineColLoc, FusedLoc, NameLoc, NoneAttr
from xdsl.ir import Attribute
from xdsl.printer import Printer

_NOWHERE = (UNKNOWN_LOC, NoneAttr())
"""What stands where a place is not known; xDSL reads the latter inside `loc("name")`."""


class LocationAliases:
    """The aliases of one text: location → `#loc1`, numbered in the order of their definitions."""

    def __init__(self) -> None:
        self._names: dict[Attribute, str] = {}
        self._lines: list[str] = []

    def text(self, location: Attribute) -> str:
        """Return `loc(#loc1)`, or `loc(unknown)`."""
        return f"loc({self._named(location)})"

    def definitions(self) -> str:
        """Return a line for each alias, nested ones before those that contain them."""
        return "".join(self._lines)

    def _named(self, location: Attribute) -> str:
        if location in _NOWHERE:
            return "unknown"
        if location not in self._names:
            spelled = self._spelled(location)
            self._names[location] = f"#loc{len(self._names) + 1}"
            self._lines.append(f"{self._names[location]} = loc({spelled})\n")
        return self._names[location]

    def _spelled(self, location: Attribute) -> str:
        if isinstance(location, NameLoc):
            inside = "" if location.location in _NOWHERE else f"({self._named(location.location)})"
            return f"{_literal(location.desc.data)}{inside}"
        if isinstance(location, CallSiteLoc):
            return f"callsite({self._named(location.callee)} at {self._named(location.caller)})"
        if isinstance(location, FusedLoc):
            return f"fused[{', '.join(map(self._named, _members(location)))}]"
        assert isinstance(location, FileLineColLoc)
        return f"{_literal(location.filename.data)}:{location.line.data}:{location.column.data}"


def location_parts(location: Attribute) -> Iterable[Attribute]:
    """Return the locations that `location` is made of; none for anything else."""
    if isinstance(location, NameLoc):
        return (location.location,)
    if isinstance(location, CallSiteLoc):
        return (location.callee, location.caller)
    return _members(location) if isinstance(location, FusedLoc) else ()


def _members(location: FusedLoc) -> Iterable[Attribute]:
    members = location.locations
    assert isinstance(members, ArrayAttr)
    return members.data


def _literal(text: str) -> str:
    stream = StringIO()
    Printer(stream=stream).print_string_literal(text)
    return stream.getvalue()
