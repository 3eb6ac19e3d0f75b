"""Checks of orders of programs."""

from __future__ import annotations

from collections.abc import Sequence

from spmdir.schedule.mobility import find_conflicts
from spmdir.schedule.program import Program


def check_order(program: Program, order: Sequence[int]) -> None:
    """Check that each task runs once, after what it needs, and begins no transfer that could deadlock."""
    assert sorted(order) == list(range(len(program.tasks)))
    done: set[int] = set()
    in_flight: set[int] = set()
    for at in order:
        task = program.tasks[at]
        assert done.issuperset(task.needs)
        in_flight.discard(-1 if task.waits_for is None else task.waits_for)
        assert not find_conflicts(program, at, in_flight)
        if task.transfer is not None and not task.is_blocking:
            in_flight.add(at)
        done.add(at)
