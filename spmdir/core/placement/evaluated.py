"""Calls of the functions that placements declare."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spmdir.core.errors import Location, ShardingError, SpmdirError


def evaluated(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Return `function(*arguments)`, what a placement declares as `name`.

    Raises:
        ShardingError: it fails; at its place in the plug-in.
    """
    try:
        return function(*arguments)
    except SpmdirError:
        raise
    except (Exception, SystemExit) as error:
        # Code of plug-ins raises whatever it likes; for the user it is one thing: this declaration is wrong.
        given = ", ".join(map(str, arguments))
        raise ShardingError(
            f"`{name}` fails for ({given}): {type(error).__name__}: {error}", place(function)
        ) from error


def place(function: Any) -> Location | None:
    """Return where a function is written."""
    code = getattr(function, "__code__", None)
    return Location(code.co_filename, code.co_firstlineno, 1) if code is not None else None
