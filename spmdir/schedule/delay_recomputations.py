"""Delay recomputed tasks until their users can run.

The operands of a recomputed task are held in memory, so the task is ready at any time. If it runs early, its result is
held as long as the original was, and the task is no longer available to hide a later transfer.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from spmdir.schedule.program import Program


def delay_recomputations(program: Program, is_repeated: Sequence[bool]) -> Program:
    """Return the program in which a recomputed task also needs whatever else its first user needs.

    If the first user needs a wait, the recomputed task needs the start instead. Then it can run during the transfer.
    If the first user is recomputed too, the needs of its own first user count. A task without users is unchanged.

    For example, h uses the recomputed f and the wait w of the start s. Then f needs s too, and runs while s transfers.

    Args:
        is_repeated: for each task, whether it is recomputed. False for collectives: they may start early to be hidden.
    """
    tasks = program.tasks
    first_user: dict[int, int] = {}
    for index, task in enumerate(tasks):
        for need in task.needs:
            first_user.setdefault(need, index)
    # for each recomputed task, its additional needs; for each other task, its needs that are not recomputed
    delaying_needs: list[set[int]] = [set() for _ in tasks]
    for index in reversed(range(len(tasks))):
        if not is_repeated[index]:
            delaying_needs[index] = {_start_of(program, need) for need in tasks[index].needs if not is_repeated[need]}
        elif index in first_user:
            # A need that follows the recomputed task is left out, so the given order stays legal.
            delaying_needs[index] = {need for need in delaying_needs[first_user[index]] if need < index}
    delayed_tasks = [
        attrs.evolve(task, needs=tuple(sorted({*task.needs, *delaying_needs[index]}))) if is_repeated[index] else task
        for index, task in enumerate(tasks)
    ]
    return attrs.evolve(program, tasks=tuple(delayed_tasks))


def _start_of(program: Program, task: int) -> int:
    """Return the start that a wait waits for; of any other task, the task."""
    start = program.tasks[task].waits_for
    return task if start is None else start
