"""Delay tasks that could run much earlier than their users: recomputations, and tasks that compute from arguments.

The operands of a recomputed task are held in memory, so the task is ready at any time. If it runs early, its result is
held as long as the original was, and the task is no longer available to hide a later transfer. The same is true of
tasks that compute from arguments alone, such as the weight decay of AdamW. If they fill the gaps of the forward, a step
holds a second copy of all parameters.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from spmdir.schedule.program import Program

SMALL = 4096
"""The largest number of bytes of a small value, such as a learning rate or a count of steps."""


def delay_recomputations(program: Program, is_repeated: Sequence[bool]) -> Program:
    """Return the program with additional needs of delayed tasks, so that they run shortly before their first user.

    A delayed task also needs the tasks that its first user needs. For example, h uses the recomputed f and the wait w
    of the start s. Then f needs s too, and runs while s transfers: a recomputed task needs the start in place of the
    wait. If the first user is delayed itself, the needs of the user's first user count. If a new need follows the
    delayed task in the given order, the tasks that this need needs replace it. So the given order stays legal. A
    delayed task without users is unchanged.

    Args:
        is_repeated: for each task, whether it is recomputed. False for collectives: they may start early to be hidden.
    """
    tasks = program.tasks
    is_ready = _ready_from_start(program)
    is_delayed = [is_repeated[i] or (is_ready[i] and bool(task.allocates)) for i, task in enumerate(tasks)]
    first_user: dict[int, int] = {}
    for index, task in enumerate(tasks):
        for need in task.needs:
            first_user.setdefault(need, index)
    # for each delayed task, its additional needs; for each other task, its needs that are not delayed
    delaying_needs = [
        set() if is_delayed[index] else {need for need in task.needs if not is_delayed[need]}
        for index, task in enumerate(tasks)
    ]
    for index in reversed(range(len(tasks))):  # users before their producers
        if is_delayed[index] and index in first_user:
            delaying_needs[index] = _earlier_needs(index, delaying_needs[first_user[index]], delaying_needs)
    new_tasks = []
    for index, task in enumerate(tasks):
        if is_delayed[index]:
            added = {_start_of(program, need) if is_repeated[index] else need for need in delaying_needs[index]}
            task = attrs.evolve(task, needs=tuple(sorted({*task.needs, *added})))
        new_tasks.append(task)
    return attrs.evolve(program, tasks=tuple(new_tasks))


def _ready_from_start(program: Program) -> list[bool]:
    """Return for each task whether it only reads arguments and small values computed from them, and is memory-bound.

    A task that is bound by compute may run early, because it can hide a transfer.
    """
    arguments = {*program.inputs}
    is_small = [buffer.bytes <= SMALL for buffer in program.buffers]
    is_ready: list[bool] = []
    for task in program.tasks:
        is_cheap = task.transfer is None and task.waits_for is None and task.kernel_cost.bound != "compute"
        reads_little = all(buffer in arguments or is_small[buffer] for buffer in task.reads)
        is_ready.append(is_cheap and reads_little and all(is_ready[need] for need in task.needs))
    return is_ready


def _earlier_needs(task: int, needs: set[int], needs_of: Sequence[set[int]]) -> set[int]:
    """Return `needs`, in which each task after `task` is replaced by its own needs, until all are before `task`.

    For example, with `task` 4, `needs` {2, 6}, and 6 that needs {1, 5}, and 5 that needs {3}, the result is {1, 2, 3}.

    Args:
        needs_of: for each task, its needs.
    """
    earlier, pending, visited = set(), list(needs), set(needs)
    while pending:
        need = pending.pop()
        if need < task:
            earlier.add(need)
        else:
            pending += needs_of[need] - visited
            visited |= needs_of[need]
    return earlier


def _start_of(program: Program, task: int) -> int:
    """Return the start that a wait waits for; of any other task, the task."""
    start = program.tasks[task].waits_for
    return task if start is None else start
