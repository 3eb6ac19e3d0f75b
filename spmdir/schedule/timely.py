"""What runs again runs when what uses it is about to, although it could run at any time.

Its operands are held, so all that a schedule knows of it is that it is ready. Early, its result would be held as long
as the one that it takes the place of, and the work would be missing where little else hides a transfer.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from spmdir.schedule.program import Program


def delay_recomputations(program: Program, again: Sequence[bool]) -> Program:
    """Return `program`, in which a task that runs again also needs what else its first user needs: that has run, or at
    least is under way.

    Args:
        again: by task, whether it runs again; not of collectives, which start as early as it takes to hide them.
    """
    tasks = program.tasks
    first_user: dict[int, int] = {}
    for at, task in enumerate(tasks):
        for need in task.needs:
            first_user.setdefault(need, at)
    waits_for: list[set[int]] = [set() for _ in tasks]
    for at in reversed(range(len(tasks))):
        if not again[at]:
            waits_for[at] = {_begun(program, need) for need in tasks[at].needs if not again[need]}
        elif at in first_user:
            waits_for[at] = {other for other in waits_for[first_user[at]] if other < at}
    return attrs.evolve(
        program,
        tasks=tuple(
            attrs.evolve(task, needs=tuple(sorted({*task.needs, *waits_for[at]}))) if again[at] else task
            for at, task in enumerate(tasks)
        ),
    )


def _begun(program: Program, task: int) -> int:
    """Return the task after which the result of a task is under way: of a wait, the start."""
    start = program.tasks[task].waits_for
    return task if start is None else start
