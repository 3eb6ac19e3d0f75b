"""Why the values whose reshards take longest are as they are, as many of them as are explained in little time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from spmdir.core.errors import Location
from spmdir.core.progress import say
from spmdir.explanation.decided import DecidedProgram
from spmdir.explanation.explain import explanations
from spmdir.pictures.source_lines import source_lines

SECONDS = 4.0
"""After how many seconds of computing no further value is explained, unless the number of them is given."""

MOST = 12
"""How many values are explained at most, unless the number of them is given."""


def dearest_reasons(program: DecidedProgram, count: int | None) -> list[dict[str, Any]]:
    """Return name, explanation, seconds of its reshards, and source of each value, the dearest first.

    Of values that are decided as one, the first stands for all.

    Args:
        count: how many; if None as many as are explained in little time, and one at least.
    """
    found: list[dict[str, Any]] = []
    started = time.process_time()
    for value in _dearest(program):
        enough = (
            len(found) >= MOST or (found and time.process_time() - started > SECONDS)
            if count is None
            else len(found) >= count
        )
        if enough:
            break
        name = program.names[value]
        say("why {} is resharded", name)
        (one,) = explanations(program, name, 1).values
        found.append({
            "name": name,
            "text": str(one),
            "seconds": program.reshard_seconds[value],
            "line": place_text(one.location),
            "source": source_lines(one.location),
        })  # fmt: skip
    return found


def place_text(location: Location | None) -> str:
    """Return a file with the number of a line; nothing where the place is not known."""
    return f"{location.file}:{location.line}" if location is not None else ""


def _dearest(program: DecidedProgram) -> Iterator[int]:
    """Yield the values that are resharded, those that take longest first, one of each that are decided as one."""
    told: set[int] = set()
    for value in sorted(program.values.values(), key=lambda value: -program.reshard_seconds[value]):
        if program.reshard_seconds[value] and value not in told:
            maker = program.maker[value]
            position = program.problem.nodes[maker].results.index(value)
            told.update(program.problem.nodes[node].results[position] for node in program.alike(maker))
            yield value
