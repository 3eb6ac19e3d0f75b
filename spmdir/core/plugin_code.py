"""Which exceptions come from the code of a plug-in, and where."""

from __future__ import annotations

import traceback

from spmdir.core.errors import Location, PluginError

IS_PLUGIN = "__spmdir_plugin__"
"""The global variable by which modules of plug-ins are recognised."""


def place_in_plugin(error: BaseException) -> Location | None:
    """Return the innermost line of a plug-in that `error` went through; None if it went through none."""
    frames = reversed(list(traceback.walk_tb(error.__traceback__)))
    places = (Location(f.f_code.co_filename, line, 1) for f, line in frames if IS_PLUGIN in f.f_globals)
    return next(places, None)


def plugin_failure(error: BaseException) -> PluginError | None:
    """Return the error of a plug-in whose code raised `error`, at its line; None if it went through no plug-in."""
    where = place_in_plugin(error)
    return None if where is None else PluginError(f"plug-in failed: {type(error).__name__}: {error}", where)
