"""The memory that a program holds while its tasks run in some order."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import attrs

from spmdir.schedule.program import Buffer, MemoryStep, Program, Task

Change = tuple[tuple[int, ...], list[int]]
"""The buffers that are allocated as a stage begins, and those that are freed as it ends."""


class Memory:
    """What is live before the next task of a program: it is told task by task which one that is.

    Attributes:
        live: the numbers of the buffers, in the order in which they were allocated.
        bytes: of these together.
    """

    def __init__(self, program: Program):
        self.program = program
        self.live: dict[int, None] = dict.fromkeys(program.inputs)
        self._sizes = [buffer.bytes for buffer in program.buffers]
        self.bytes = sum([self._sizes[buffer] for buffer in self.live])
        self._readers = [0] * len(program.buffers)
        for task in program.tasks:
            for buffer in _read(task):
                self._readers[buffer] += 1
        for buffer in (*program.inputs, *program.outputs):
            self._readers[buffer] += 1  # whoever called the program

    def peak(self, task: int) -> float:
        """Return the most bytes that are live while `task` runs, if it is the next."""
        found, sizes = self.program.tasks[task], self._sizes
        live, most = self.bytes, 0.0
        for makes, frees in self._changes(found):
            for buffer in makes:
                live += sizes[buffer]
            most = max(most, live)
            for buffer in frees:
                live -= sizes[buffer]
        return most + (0.0 if found.memory_steps else found.transient)

    def run(self, task: int) -> None:
        """Run `task` next."""
        for _ in self.moments(task):
            pass

    def moments(self, task: int) -> Iterator[float]:
        """Run `task` next, and yield the bytes that are live in each of its stages, while `live` says which."""
        found, sizes = self.program.tasks[task], self._sizes
        changes, transient = self._changes(found), 0.0 if found.memory_steps else found.transient
        for buffer in _read(found):
            self._readers[buffer] -= 1
        for makes, frees in changes:
            for buffer in makes:
                self.live[buffer] = None
                self.bytes += sizes[buffer]
            yield self.bytes + transient
            for buffer in frees:
                del self.live[buffer]
                self.bytes -= sizes[buffer]

    def _changes(self, task: Task) -> list[Change]:
        """Return what each stage of a task allocates and frees, if it is the next."""
        readers = self._readers
        return [
            (makes, [buffer for buffer, is_read in touched if readers[buffer] == is_read])
            for makes, touched in task.memory_changes
        ]


def _read(task: Task) -> Iterable[int]:
    """Return the buffers of others that a task reads, each once."""
    return dict.fromkeys(task.reads)


@attrs.frozen
class TaskMemory:
    """What a task allocates and needs, as in Task."""

    allocates: tuple[int, ...]
    reads: tuple[int, ...]
    transient: float = 0.0
    memory_steps: tuple[MemoryStep, ...] = ()


def memory_of_tasks(
    tasks: Sequence[Sequence[MemoryStep]], buffers: Sequence[Buffer], outputs: Sequence[int]
) -> list[TaskMemory]:
    """Return what each of the tasks of a program allocates and needs that have these stages."""
    wanted = set(outputs)
    for stages in tasks:
        if len(stages) == 1:
            wanted.update(stages[0].reads)
        else:
            made = {buffer for stage in stages for buffer in stage.allocates}
            wanted.update(buffer for stage in stages for buffer in stage.reads if buffer not in made)
    return [
        TaskMemory(stages[0].allocates, stages[0].reads) if len(stages) == 1 else _held(stages, buffers, wanted)
        for stages in tasks
    ]


def _held(stages: Sequence[MemoryStep], buffers: Sequence[Buffer], wanted: Collection[int]) -> TaskMemory:
    """Return what several stages allocate and need; other tasks need the buffers that are `wanted`."""
    made = [buffer for stage in stages for buffer in stage.allocates]
    read = dict.fromkeys(buffer for stage in stages for buffer in stage.reads)
    makes = tuple([buffer for buffer in made if buffer in wanted or buffer not in read])
    reads = tuple([buffer for buffer in read if buffer not in made])
    last = {buffer: at for at, stage in enumerate(stages) for buffer in (*stage.allocates, *stage.reads)}
    inside = set(made).difference(makes)
    live = most = 0.0
    for at, stage in enumerate(stages):
        live += sum(buffers[buffer].bytes for buffer in stage.allocates)
        most = max(most, live)
        live -= sum(buffers[buffer].bytes for buffer in inside if last[buffer] == at)
    return TaskMemory(makes, reads, most - live, tuple(stages))


def program_of_steps(
    tasks: Sequence[tuple[Task, Sequence[MemoryStep]]],
    buffers: Sequence[Buffer],
    inputs: Sequence[int],
    outputs: Sequence[int],
) -> Program:
    """Return the program of tasks that allocate and need what their stages say.

    Args:
        inputs, outputs: as in Program.
    """
    found = memory_of_tasks([stages for _, stages in tasks], buffers, outputs)
    told = tuple(
        attrs.evolve(task, **attrs.asdict(held, recurse=False)) for (task, _), held in zip(tasks, found, strict=True)
    )
    return Program(told, tuple(buffers), tuple(inputs), tuple(outputs))


def live_bytes(program: Program, order: Sequence[int] | None = None) -> list[float]:
    """Return the most bytes that are live while each task runs, by task.

    Args:
        order: of the tasks; as they are numbered if None.
    """
    memory, found = Memory(program), [0.0] * len(program.tasks)
    for task in range(len(program.tasks)) if order is None else order:
        found[task] = max(memory.moments(task))
    return found


def find_peak(program: Program) -> tuple[float, int | None, tuple[int, ...]]:
    """Return the most bytes that are live at once, the task that runs first then, None before any, and what is live."""
    most = peak_bytes(program)
    memory = Memory(program)
    for task in range(len(program.tasks) if memory.bytes < most else 0):
        for size in memory.moments(task):
            if size == most:
                return most, task, tuple(memory.live)
    return most, None, tuple(memory.live)


def peak_bytes(program: Program, order: Sequence[int] | None = None) -> float:
    """Return the most bytes that are live at once; inputs are before the first task."""
    return max([sum(program.buffers[buffer].bytes for buffer in program.inputs), *live_bytes(program, order)])
