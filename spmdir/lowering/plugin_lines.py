"""Locations of errors in the files of plug-in placements."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Iterable, Iterator

from spmdir.core.errors import Location
from spmdir.core.placement.standard import Placement


def failing_line(placements: Iterable[Placement], error: BaseException | None = None) -> Location | None:
    """Return the innermost line in the traceback of `error` that is in a file of `placements`.

    Without such a line, return the line of the first class that is in a file; None if no class is.
    """
    files = dict(_declarations(placements))
    for frame in reversed(traceback.extract_tb(error.__traceback__) if error is not None else ()):
        if frame.filename in files:
            return Location(frame.filename, frame.lineno or 1, 1)
    return next((Location(file, line, 1) for file, line in files.items()), None)


def first_line(error: BaseException) -> str:
    """Return the first line of the message of `error`. Messages of torch may have many lines."""
    return str(error).partition("\n")[0]


def _declarations(placements: Iterable[Placement]) -> Iterator[tuple[str, int]]:
    """Yield file and line of the class of each placement, if the class is declared in a file."""
    for placement in placements:
        try:
            yield inspect.getfile(type(placement)), inspect.getsourcelines(type(placement))[1]
        except (OSError, TypeError):
            continue
