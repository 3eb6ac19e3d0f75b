"""A program of plain values scheduled as the passes schedule one in the IR: buckets, starts and waits, an order."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

import attrs

from spmdir.schedule.buckets import merge_collectives
from spmdir.schedule.list_scheduling import order_tasks
from spmdir.schedule.program import Program, Task, Transfer
from spmdir.schedule.simulate import Execution, simulate

Packing = Callable[[Program, Sequence[int]], tuple[float, float]]
"""(program, the collectives of a bucket) → seconds in which it is packed, and unpacked."""


def scheduled(program: Program, keys: Mapping[str, Hashable], packing: Packing) -> Execution:
    """Return a program of starts and waits as it runs scheduled by spmdir.

    Args:
        keys: name of each task that starts a collective → what those have in common that may be one.
    """
    blocking = synchronous(program)
    named = {at: keys[task.name] for at, task in enumerate(blocking.tasks) if task.name in keys}
    split = asynchronous(blocking, merge_collectives(blocking, named), packing)
    return simulate(split, order_tasks(split))


def synchronous(program: Program) -> Program:
    """Return a program in which each collective is waited for where it starts."""
    waits = {task.waits_for: at for at, task in enumerate(program.tasks) if task.waits_for is not None}
    kept = [at for at, task in enumerate(program.tasks) if task.waits_for is None]
    number = {at: place for place, at in enumerate(kept)}
    number |= {wait: number[start] for start, wait in waits.items() if start is not None}
    tasks = []
    for at in kept:
        task = program.tasks[at]
        both = [task, *(program.tasks[waits[start]] for start in (at,) if start in waits)]
        tasks.append(attrs.evolve(_united(both, number, number[at]), transfer=task.transfer, is_blocking=at in waits))
    return attrs.evolve(program, tasks=tuple(tasks))


def asynchronous(program: Program, items: Sequence[Sequence[int]], packing: Packing) -> Program:
    """Return a program with a start and a wait for each collective, and one of both for each bucket.

    Args:
        items: the tasks in their new order, those of a bucket together.
    """
    number: dict[int, int] = {}
    tasks: list[Task] = []
    for item in items:
        members = [program.tasks[task] for task in item]
        task = _united(members, number, None)
        if members[0].transfer is not None:
            tasks.append(attrs.evolve(task, transfer=joined([m.transfer for m in members if m.transfer is not None])))
            pack, unpack = packing(program, item) if len(item) > 1 else (0.0, 0.0)
            tasks[-1] = attrs.evolve(tasks[-1], seconds=task.seconds + pack, is_blocking=False)
            start = len(tasks) - 1
            task = Task(f"{task.name}.wait", "wait", task.path, unpack, (start,), (), task.allocates, waits_for=start)
        number |= dict.fromkeys(item, len(tasks))
        tasks.append(task)
    return attrs.evolve(program, tasks=tuple(tasks))


def joined(transfers: Sequence[Transfer]) -> Transfer:
    """Return one transfer of what several send: one latency, and the bytes of all."""
    return attrs.evolve(
        transfers[0],
        latency=max(one.latency for one in transfers),
        intra=sum(one.intra for one in transfers),
        inter=sum(one.inter for one in transfers),
        wire_bytes=sum(one.wire_bytes for one in transfers),
    )


def _united(tasks: Sequence[Task], number: Mapping[int, int], own: int | None) -> Task:
    """Return one task that does what several do; it has the number `own`, and others those of `number`."""
    needs = dict.fromkeys(number[need] for task in tasks for need in task.needs)
    makes = tuple(dict.fromkeys(buffer for task in tasks for buffer in task.allocates))
    reads = dict.fromkeys(buffer for task in tasks for buffer in task.reads if buffer not in makes)
    return attrs.evolve(
        tasks[0],
        seconds=sum(task.seconds for task in tasks),
        needs=tuple(need for need in needs if need != own),
        allocates=makes,
        reads=tuple(reads),
    )
