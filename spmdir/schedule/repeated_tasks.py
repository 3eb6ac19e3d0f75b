"""Tasks that run again, and buffers that are copied to the host and back, which need not be held between uses."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal

import attrs

from spmdir.schedule.host_copies import copy_transfer
from spmdir.schedule.program import MemoryStep, Program, Task


@attrs.frozen(order=True)
class Repeat:
    """A task that runs again right before task `before`, or a copy of what it makes: later uses take what that gives.

    Attributes:
        before: the task before which it runs.
        task: the task; of several before one task the first one runs first.
        does: whether the task runs again, or a buffer that it has made is copied to the host, or from there.
        buffer: the one that is copied.
        seconds: that the copy takes.
    """

    before: int
    task: int
    action: Literal["offload", "reload", "run"] = "run"
    buffer: int = -1
    seconds: float = 0.0

    def task_in(self, program: Program) -> Task:
        """Return what runs, as a task whose buffers and needs are those of `program`."""
        task = program.tasks[self.task]
        if self.action == "run":
            return task
        buffer, to_host = program.buffers[self.buffer], self.action == "offload"
        transfer = copy_transfer(to_host, buffer.bytes, self.seconds)
        makes, reads = ((), (self.buffer,)) if to_host else ((self.buffer,), ())
        name, op = f"{buffer.name}.{self.action}", f"spmd.{self.action}"
        return Task(name, op, task.path, 0.0, (self.task,), makes, reads, transfer=transfer, is_blocking=True)


def find_repeats(
    program: Program, cut: int, again: Collection[int], copied: Mapping[int, float] | None = None
) -> list[Repeat]:
    """Return the repeats by which every use after the task `cut` of what the tasks `again` make, and of the buffers
    that are `copied`, is one of a repeat.

    Each is made right before its first use, and views of what is made again are taken again. What is copied to the host
    is so right after its last use before.

    Args:
        copied: buffer → the seconds of a copy.
    """
    found = _Again(program, cut, again, copied or {})
    after = [repeat for user in range(cut + 1, len(program.tasks)) for repeat in found.before(user)]
    return sorted([*found.offloads(), *after])


class _Again:
    """The repeats of a program, found in program order."""

    def __init__(self, program: Program, cut: int, again: Collection[int], copied: Mapping[int, float]):
        self.program, self.copied = program, copied
        made = {*copied, *(buffer for task in again for buffer in program.tasks[task].allocates)}
        self.waiting = set(again)
        self.reloads: dict[int, list[int]] = {}
        self.last: dict[int, int] = {}
        for index, task in enumerate(program.tasks[: cut + 1]):
            if index not in again and (own := [buffer for buffer in task.allocates if buffer in copied]):
                self.reloads[index] = own
                self.waiting.add(index)
            if not made.isdisjoint(task.reads) and not (task.allocates or task.transfer or task.waits_for is not None):
                self.waiting.add(index)  # a view
            for buffer in (*task.allocates, *task.reads) if copied else ():
                if buffer in copied:
                    self.last[buffer] = index
        self.reloaded: set[int] = set()

    def offloads(self) -> list[Repeat]:
        """Return the copies to the host of what was found to be copied back."""
        return [
            Repeat(self.last[buffer] + 1, task, "offload", buffer, self.copied[buffer])
            for task in self.reloaded
            for buffer in self.reloads[task]
        ]

    def before(self, user: int) -> list[Repeat]:
        """Return what has to run again before the task `user`, which comes later than all that was asked before."""
        if self.waiting.isdisjoint(self.program.tasks[user].needs):
            return []
        found: set[int] = set()
        asked = [user]
        while asked:
            for need in self.program.tasks[asked.pop()].needs:
                if need in self.waiting:
                    self.waiting.remove(need)
                    found.add(need)
                    if need not in self.reloads:
                        asked.append(need)
        self.reloaded.update(found & self.reloads.keys())
        return [
            repeat
            for task in sorted(found)
            for repeat in (
                [Repeat(user, task, "reload", buffer, self.copied[buffer]) for buffer in self.reloads[task]]
                if task in self.reloads
                else [Repeat(user, task)]
            )
        ]


def insert_repeats(program: Program, added: Sequence[Repeat]) -> Program:
    """Return `program` with tasks that run again, and with copies.

    Args:
        added: sorted.
    """
    tasks: list[Task] = []
    buffers = list(program.buffers)
    place, held = dict[int, int](), dict[int, int]()
    for index, repeat in tasks_with_repeats(program, added):
        task = repeat.task_in(program) if repeat else program.tasks[index]
        for buffer in _made(task) if repeat else ():
            held[buffer] = len(buffers)
            buffers.append(program.buffers[buffer])
        tasks.append(task if len(tasks) == index and not repeat else _moved(task, place, held))
        place[index] = len(tasks) - 1
    return attrs.evolve(program, tasks=tuple(tasks), buffers=tuple(buffers))


def peak_with_repeats(program: Program, added: Sequence[Repeat]) -> float:
    """Return the most bytes that `with_repeats` of the same holds at once, without making it."""
    size = [buffer.bytes for buffer in program.buffers]
    outputs = {*program.outputs}
    tasks = [
        repeat.task_in(program) if repeat else program.tasks[index]
        for index, repeat in tasks_with_repeats(program, added)
    ]
    gone = [0.0] * len(tasks)
    freed: dict[int, list[int]] = {}
    last: dict[int, int] = {}

    def free(buffer: int) -> None:
        step = last[buffer]
        gone[step] += size[buffer]
        if tasks[step].memory_steps:
            freed.setdefault(step, []).append(buffer)

    for step, task in enumerate(tasks):
        for buffer in task.allocates:
            if buffer in last and buffer not in outputs:
                free(buffer)
            last[buffer] = step
        for buffer in task.reads:
            if buffer in last:
                last[buffer] = step
    for buffer in last.keys() - outputs:
        free(buffer)
    live = peak = sum([size[buffer] for buffer in program.inputs])
    for step, task in enumerate(tasks):
        made = sum([size[buffer] for buffer in task.allocates])
        most = _inside(task, freed.get(step, ()), size) if task.memory_steps else made + task.transient
        peak = max(peak, live + most)
        live += made - gone[step]
    return peak


def _inside(task: Task, freed: Collection[int], size: Sequence[float]) -> float:
    """Return the most bytes by which a task of several stages holds more than there is before, if it frees some."""
    last = {buffer: at for at, stage in enumerate(task.memory_steps) for buffer in (*stage.allocates, *stage.reads)}
    ends = {*freed, *_made(task)}.difference(buffer for buffer in task.allocates if buffer not in freed)
    live = most = 0.0
    for at, stage in enumerate(task.memory_steps):
        live += sum([size[buffer] for buffer in stage.allocates])
        most = max(most, live)
        live -= sum([size[buffer] for buffer in ends if last[buffer] == at])
    return most


def _made(task: Task) -> Iterable[int]:
    return dict.fromkeys((*task.allocates, *(buffer for stage in task.memory_steps for buffer in stage.allocates)))


def _moved(task: Task, place: Mapping[int, int], held: Mapping[int, int]) -> Task:
    """Return a task whose tasks are at other places, and whose buffers are those that hold them."""

    def now(buffers: Sequence[int]) -> tuple[int, ...]:
        return tuple([held.get(buffer, buffer) for buffer in buffers])

    return attrs.evolve(
        task,
        needs=tuple([place[need] for need in task.needs]),
        allocates=now(task.allocates),
        reads=now(task.reads),
        memory_steps=tuple([MemoryStep(now(stage.allocates), now(stage.reads)) for stage in task.memory_steps]),
        waits_for=None if task.waits_for is None else place[task.waits_for],
    )


def tasks_with_repeats(program: Program, added: Sequence[Repeat]) -> Iterator[tuple[int, Repeat | None]]:
    """Yield the tasks in the order in which they run with repeats, and of each of these what it is."""
    repeat = 0
    for index in range(len(program.tasks)):
        while repeat < len(added) and added[repeat].before == index:
            yield added[repeat].task, added[repeat]
            repeat += 1
        yield index, None
