"""Where in the files of plug-in placements something went wrong."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Iterable, Iterator

from spmdir.core.errors import Location
from spmdir.core.placement.standard import Placement


def failing_line(placements: Iterable[Placement], error: BaseException | None = None) -> Location | None:
    """Return the last line that `error` went through in a file that declares one of `placements`.

    Else that of a class.
    """
    files = dict(_declarations(placements))
    for frame in reversed(traceback.extract_tb(error.__traceback__) if error is not None else ()):
        if frame.filename in files:
            return Location(frame.filename, frame.lineno or 1, 1)
    return next((Location(file, line, 1) for file, line in files.items()), None)


def first_line(error: BaseException) -> str:
    """Return what `error` says; messages of torch go on for many lines."""
    return str(error).partition("\n")[0]


def _declarations(placements: Iterable[Placement]) -> Iterator[tuple[str, int]]:
    """File and line of the class of each placement; a class that was made in no file has none."""
    for placement in placements:
        try:
            yield inspect.getfile(type(placement)), inspect.getsourcelines(type(placement))[1]
        except (OSError, TypeError):
            continue
