"""The places that a location names: module paths, and the frames of a call stack."""

from __future__ import annotations

import attrs
from xdsl.dialects.builtin import CallSiteLoc, FileLineColLoc, FusedLoc, NameLoc
from xdsl.ir import Attribute


@attrs.frozen
class SourcePlaces:
    """Where the source has an op.

    Attributes:
        paths: of the modules that it belongs to, the outermost name first.
        frames: (file, line) of its call stack.
    """

    paths: tuple[str, ...] = ()
    frames: tuple[tuple[str, int], ...] = ()


def places_of(location: Attribute) -> SourcePlaces:
    """Return all places that a location names."""
    paths: list[str] = []
    frames: list[tuple[str, int]] = []
    waiting = [location]
    while waiting:
        one = waiting.pop()
        if isinstance(one, FileLineColLoc):
            frames.append((one.filename.data, one.line.data))
        elif isinstance(one, NameLoc):
            paths.append(one.desc.data)
            waiting.append(one.location)
        elif isinstance(one, CallSiteLoc):
            waiting += [one.caller, one.callee]
        elif isinstance(one, FusedLoc):
            waiting += one.locations  # type: ignore  # xDSL says Attribute of an array
    return SourcePlaces(tuple(paths), tuple(frames))
