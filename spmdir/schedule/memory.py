"""Compute the live memory of a program while its tasks run in some order.

A buffer is live from the task that allocates it to the last task that reads it. For example, f allocates a (4 bytes), g
reads a and allocates b (8 bytes), and h reads b. Then 4 bytes are live during f, 12 during g, and 8 during h.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import attrs

from spmdir.schedule.program import Buffer, MemoryStep, Program, Task

Change = tuple[tuple[int, ...], list[int]]
"""The buffers that a memory step allocates as it begins, and those that it frees as it ends."""


class Memory:
    """The live buffers of a program, updated task by task with `run` or `moments`.

    Attributes:
        live: the live buffers, in the order of their allocation.
        bytes: the sum of their sizes.
    """

    def __init__(self, program: Program):
        self.program = program
        self.live: dict[int, None] = dict.fromkeys(program.inputs)
        self._sizes = [buffer.bytes for buffer in program.buffers]
        self.bytes = sum([self._sizes[buffer] for buffer in self.live])
        self._readers = [0] * len(program.buffers)  # for each buffer, the number of its readers that have not run
        for task in program.tasks:
            for buffer in _unique_reads(task):
                self._readers[buffer] += 1
        for buffer in (*program.inputs, *program.outputs):
            self._readers[buffer] += 1  # the caller of the program

    def peak_of(self, number: int) -> float:
        """Return the largest number of live bytes while a task runs, if it runs next. The state does not change.

        Args:
            number: the index of the task in the program.
        """
        task, sizes = self.program.tasks[number], self._sizes
        live, peak = self.bytes, 0.0
        for allocates, frees in self._changes(task):
            for buffer in allocates:
                live += sizes[buffer]
            peak = max(peak, live)
            for buffer in frees:
                live -= sizes[buffer]
        return peak + (0.0 if task.memory_steps else task.transient)

    def run(self, task: int) -> None:
        """Run `task` next."""
        for _ in self.moments(task):
            pass

    def moments(self, number: int) -> Iterator[float]:
        """Run a task next, and yield the live bytes at each of its memory steps, including transient bytes.

        At each yield, `live` contains the buffers of that step. The task has run when the iterator is exhausted.

        Args:
            number: the index of the task in the program.
        """
        task, sizes = self.program.tasks[number], self._sizes
        # `_changes` requires that this task still counts as a reader.
        changes, transient = self._changes(task), 0.0 if task.memory_steps else task.transient
        for buffer in _unique_reads(task):
            self._readers[buffer] -= 1
        for allocates, frees in changes:
            for buffer in allocates:
                self.live[buffer] = None
                self.bytes += sizes[buffer]
            yield self.bytes + transient
            for buffer in frees:
                del self.live[buffer]
                self.bytes -= sizes[buffer]

    def _changes(self, task: Task) -> list[Change]:
        """Return the buffers that each memory step of a task allocates and frees, if the task runs next.

        A buffer is freed after the last step of the task that uses it, if no later task reads it. The number of
        readers that have not run is then 1 if the task itself reads the buffer from another task, or else 0.
        """
        readers = self._readers
        return [
            (allocates, [buffer for buffer, task_is_reader in last_uses if readers[buffer] == int(task_is_reader)])
            for allocates, last_uses in task.memory_changes
        ]


def _unique_reads(task: Task) -> Iterable[int]:
    """Return the buffers that a task reads, each once."""
    return dict.fromkeys(task.reads)


@attrs.frozen
class TaskMemory:
    """The memory use of a task: the attributes of `Task` with the same names."""

    allocates: tuple[int, ...]
    reads: tuple[int, ...]
    transient: float = 0.0
    memory_steps: tuple[MemoryStep, ...] = ()


def memory_of_tasks(
    tasks: Sequence[Sequence[MemoryStep]], buffers: Sequence[Buffer], outputs: Sequence[int]
) -> list[TaskMemory]:
    """Return the memory use of each task of a program.

    Args:
        tasks: for each task, its memory steps, at least one.
        outputs: the buffers of the results of the program.
    """
    external = set(outputs)  # the buffers that are used by another task than the one that allocates them
    for steps in tasks:
        if len(steps) == 1:
            external.update(steps[0].reads)
        else:
            allocated = {buffer for step in steps for buffer in step.allocates}
            external.update(buffer for step in steps for buffer in step.reads if buffer not in allocated)
    return [
        TaskMemory(steps[0].allocates, steps[0].reads)
        if len(steps) == 1
        else _memory_of_steps(steps, buffers, external)
        for steps in tasks
    ]


def _memory_of_steps(steps: Sequence[MemoryStep], buffers: Sequence[Buffer], external: Collection[int]) -> TaskMemory:
    """Return the memory use of several steps as one task.

    The task allocates the external buffers, and those that none of its steps reads. Its other buffers are temporaries:
    the steps list them, and `transient` has their bytes at the peak.

    For example, the first step allocates a temporary of 8 bytes, and the second reads it and allocates a result of 4
    bytes. The task allocates the result. At its peak of 12 bytes, 8 are transient.

    Args:
        external: the buffers that other tasks use, or that the program returns.
    """
    allocated = [buffer for step in steps for buffer in step.allocates]
    all_reads = dict.fromkeys(buffer for step in steps for buffer in step.reads)
    results = tuple([buffer for buffer in allocated if buffer in external or buffer not in all_reads])
    operands = tuple([buffer for buffer in all_reads if buffer not in allocated])
    last_step = {buffer: index for index, step in enumerate(steps) for buffer in (*step.allocates, *step.reads)}
    temporaries = set(allocated).difference(results)
    live = peak = 0.0
    for index, step in enumerate(steps):
        live += sum(buffers[buffer].bytes for buffer in step.allocates)
        peak = max(peak, live)
        live -= sum(buffers[buffer].bytes for buffer in temporaries if last_step[buffer] == index)
    # Temporaries are freed, so `live` has the bytes of the results.
    return TaskMemory(results, operands, peak - live, tuple(steps))


def program_of_steps(
    tasks: Sequence[tuple[Task, Sequence[MemoryStep]]],
    buffers: Sequence[Buffer],
    inputs: Sequence[int],
    outputs: Sequence[int],
) -> Program:
    """Return a program with the given tasks, each with the memory use of its steps.

    Args:
        tasks: pairs of a task and its memory steps.
        inputs, outputs: as in `Program`.
    """
    memory = memory_of_tasks([steps for _, steps in tasks], buffers, outputs)
    with_memory = tuple(
        attrs.evolve(task, **attrs.asdict(task_memory, recurse=False))
        for (task, _), task_memory in zip(tasks, memory, strict=True)
    )
    return Program(with_memory, tuple(buffers), tuple(inputs), tuple(outputs))


def live_bytes(program: Program, order: Sequence[int] | None = None) -> list[float]:
    """Return for each task the largest number of live bytes while it runs.

    Args:
        order: the tasks, each after the tasks that it needs. None: in the order of their numbers.
    """
    memory, peaks = Memory(program), [0.0] * len(program.tasks)
    for task in range(len(program.tasks)) if order is None else order:
        peaks[task] = max(memory.moments(task))
    return peaks


def find_peak(program: Program) -> tuple[float, int | None, tuple[int, ...]]:
    """Return the peak in bytes, the first task at the peak, and the buffers that are live there.

    The task is None if the inputs alone are the peak.
    """
    peak = peak_bytes(program)
    memory = Memory(program)
    for task in range(len(program.tasks) if memory.bytes < peak else 0):
        for size in memory.moments(task):
            if size == peak:
                return peak, task, tuple(memory.live)
    return peak, None, tuple(memory.live)


def peak_bytes(program: Program, order: Sequence[int] | None = None) -> float:
    """Return the largest number of bytes that are live at once, including the inputs before the first task."""
    return max([sum(program.buffers[buffer].bytes for buffer in program.inputs), *live_bytes(program, order)])
