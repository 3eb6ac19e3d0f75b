"""Delay recomputed tasks until their users can run.

The operands of a recomputed task are held in memory, so the task is ready at any time. If it runs early, its result is
held as long as the original was, and the task is no longer available to hide a later transfer.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from spmdir.schedule.program import Program


def delay_recomputations(program: Program, is_repeated: Sequence[bool]) -> Program:
    """Add the other needs of its first user to the needs of each recomputed task.

    If such a need is a wait, the recomputed task needs the start instead. Then it can run during the transfer.

    For example, h uses the recomputed f and the wait w of the start s. Then f needs s too, and runs while s transfers.

    Args:
        is_repeated: for each task, whether it is recomputed. False for collectives: they may start early to be hidden.
    """
    tasks = program.tasks
    first_user: dict[int, int] = {}
    for index, task in enumerate(tasks):
        for need in task.needs:
            first_user.setdefault(need, index)
    # for each recomputed task, the tasks to wait for; for each other task, its needs that are not recomputed
    needs_of_user: list[set[int]] = [set() for _ in tasks]
    for index in reversed(range(len(tasks))):
        if not is_repeated[index]:
            needs_of_user[index] = {_start_of(program, need) for need in tasks[index].needs if not is_repeated[need]}
        elif index in first_user:
            needs_of_user[index] = {need for need in needs_of_user[first_user[index]] if need < index}
    delayed_tasks = [
        attrs.evolve(task, needs=tuple(sorted({*task.needs, *needs_of_user[index]}))) if is_repeated[index] else task
        for index, task in enumerate(tasks)
    ]
    return attrs.evolve(program, tasks=tuple(delayed_tasks))


def _start_of(program: Program, task: int) -> int:
    """Return the start that a wait waits for; of any other task, the task."""
    start = program.tasks[task].waits_for
    return task if start is None else start
