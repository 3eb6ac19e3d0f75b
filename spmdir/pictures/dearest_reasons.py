"""Why the values whose reshards take longest are as they are, as many of them as are explained in little time."""

from __future__ import annotations

import time
from typing import Any

from spmdir.core.errors import Location
from spmdir.core.progress import say
from spmdir.explanation.decided import DecidedProgram
from spmdir.explanation.explain import equal_values, explained_alike
from spmdir.pictures.source_lines import source_lines

SECONDS = 4.0
"""After how many seconds of computing no further value is explained, unless the number of them is given."""

MOST = 12
"""How many values are explained at most, unless the number of them is given."""


def dearest_reasons(program: DecidedProgram, count: int | None) -> list[dict[str, Any]]:
    """Return name, explanation, seconds of its reshards, and source of each value, the dearest first.

    Of equal values of equal layers the first stands for all.

    Args:
        count: how many; if None as many as are explained in little time, and one at least.
    """
    found: list[dict[str, Any]] = []
    started = time.process_time()
    for values in equal_values(program, "*"):
        seconds = program.reshard_seconds[values[0]]
        late = count is None and bool(found) and time.process_time() - started > SECONDS
        if not seconds or late or len(found) >= (MOST if count is None else count):
            break
        say("why {} is resharded", program.names[values[0]])
        one = explained_alike(program, values)
        found.append({
            "name": one.name,
            "text": str(one),
            "seconds": seconds,
            "line": place_text(one.location),
            "source": source_lines(one.location),
        })  # fmt: skip
    return found


def place_text(location: Location | None) -> str:
    """Return a file with the number of a line; nothing where the place is not known."""
    return f"{location.file}:{location.line}" if location is not None else ""
