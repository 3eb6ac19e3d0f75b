"""Detection of exceptions from the code of plug-ins."""

from __future__ import annotations

import traceback

from spmdir.core.errors import Location, PluginError

IS_PLUGIN = "__spmdir_plugin__"
"""A global variable that marks the modules of plug-ins."""


def place_in_plugin(error: BaseException) -> Location | None:
    """Return the innermost line of a plug-in in the traceback of `error`; None if there is none."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if IS_PLUGIN in frame.f_globals:
            return Location(frame.f_code.co_filename, line, 1)
    return None


def plugin_failure(error: BaseException) -> PluginError | None:
    """Convert an exception from a plug-in to a located PluginError; return None if it is not from a plug-in."""
    where = place_in_plugin(error)
    return (
        None
        if where is None
        else PluginError(
            f"plug-in failed: {type(error).__name__}: {error}; expected a file that Python can run: correct this line",
            where,
        )
    )
