"""Insert recomputations and copies into a program. Their buffers need not be held between uses.

For example, f makes a, g uses a, and h uses a after the task c. If f is recomputed, the program is f, g, c, f, h, and a
is freed after g. If a is copied, the program is f, g, offload, c, reload, h.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal

import attrs

from spmdir.schedule.host_copies import copy_transfer
from spmdir.schedule.program import MemoryStep, Program, Task


@attrs.frozen(order=True)
class Repeat:
    """A recomputation of a task, or a copy of one of its buffers. Later tasks use the result in place of the original.

    Repeats are sorted by the task that they run before, then by the repeated task.

    Attributes:
        before: it runs right before this task.
        task: the task that runs again, or that allocates the copied buffer.
        action: "run" to run the task again, "offload" to copy a buffer to the host, "reload" to copy it back.
        buffer: the copied buffer; −1 if the task runs again.
        seconds: the time of the copy; 0 if the task runs again.
    """

    before: int
    task: int
    action: Literal["offload", "reload", "run"] = "run"
    buffer: int = -1
    seconds: float = 0.0

    def task_in(self, program: Program) -> Task:
        """Return the repeat as a task, with the buffers and needs of the original in `program`.

        A copy is a task that needs the original, takes no accelerator time and waits for its own transfer.
        """
        task = program.tasks[self.task]
        if self.action == "run":
            return task
        buffer, to_host = program.buffers[self.buffer], self.action == "offload"
        transfer = copy_transfer(to_host, buffer.bytes, self.seconds)
        allocates, reads = ((), (self.buffer,)) if to_host else ((self.buffer,), ())
        name, op = f"{buffer.name}.{self.action}", f"spmd.{self.action}"
        return Task(name, op, task.path, 0.0, (self.task,), allocates, reads, transfer=transfer, is_blocking=True)


def find_repeats(
    program: Program, cut: int, repeated: Collection[int], copied: Mapping[int, float] | None = None
) -> list[Repeat]:
    """Return the repeats that replace all uses after the cut of the given tasks' results and of the copied buffers.

    A repeat runs right before its first use. Views of repeated values are repeated too. A copy to the host runs right
    after the last use up to the cut.

    Args:
        cut: the task after which values are restored.
        repeated: the tasks that run again.
        copied: buffer that is copied to the host and back → the seconds of a copy.
    """
    finder = _RepeatFinder(program, cut, repeated, copied or {})
    after = [repeat for user in range(cut + 1, len(program.tasks)) for repeat in finder.before(user)]
    return sorted([*finder.offloads(), *after])


class _RepeatFinder:
    """Find the repeats of a program, in program order.

    Attributes:
        missing: the tasks up to the cut whose results are not available after it, until they are restored.
        reloads_of: task → its buffers that are copied.
        last_use: copied buffer → its last use up to the cut.
        reloaded: the tasks with buffers that have been copied back.
    """

    def __init__(self, program: Program, cut: int, repeated: Collection[int], copied: Mapping[int, float]):
        self.program, self.copied = program, copied  # buffer → the seconds of a copy
        restored_buffers = {*copied, *(buffer for task in repeated for buffer in program.tasks[task].allocates)}
        self.missing = set(repeated)
        self.reloads_of: dict[int, list[int]] = {}
        self.last_use: dict[int, int] = {}
        for index, task in enumerate(program.tasks[: cut + 1]):
            copied_buffers = [buffer for buffer in task.allocates if buffer in copied]
            if copied_buffers and index not in repeated:
                self.reloads_of[index] = copied_buffers
                self.missing.add(index)  # until its buffers are copied back
            is_view = not (task.allocates or task.transfer or task.waits_for is not None)
            if is_view and not restored_buffers.isdisjoint(task.reads):
                self.missing.add(index)  # the view must be of the restored buffer
            if copied:
                used_buffers = (*task.allocates, *task.reads)
                self.last_use.update({buffer: index for buffer in used_buffers if buffer in copied})
        self.reloaded: set[int] = set()

    def offloads(self) -> list[Repeat]:
        """Return the copies to the host of all buffers that are copied back."""
        return [
            Repeat(self.last_use[buffer] + 1, task, "offload", buffer, self.copied[buffer])
            for task in self.reloaded
            for buffer in self.reloads_of[task]
        ]

    def before(self, user: int) -> list[Repeat]:
        """Return the repeats that the task `user` requires and that no earlier call has returned.

        A recomputed task requires the repeats of its own missing operands too; a copied buffer requires only its
        reload. Calls must be in program order.
        """
        if self.missing.isdisjoint(self.program.tasks[user].needs):
            return []
        needed: set[int] = set()
        stack = [user]
        while stack:
            for need in self.program.tasks[stack.pop()].needs:
                if need in self.missing:
                    self.missing.remove(need)
                    needed.add(need)
                    if need not in self.reloads_of:
                        stack.append(need)
        repeats: list[Repeat] = []
        for task in sorted(needed):
            if task in self.reloads_of:
                self.reloaded.add(task)
                repeats += [
                    Repeat(user, task, "reload", buffer, self.copied[buffer]) for buffer in self.reloads_of[task]
                ]
            else:
                repeats.append(Repeat(user, task))
        return repeats


def insert_repeats(program: Program, added: Sequence[Repeat]) -> Program:
    """Return the program with recomputations and copies.

    Tasks are renumbered. Each repeat allocates new buffers, which are added at the end of `buffers`. Later tasks read
    the buffers of the last repeat before them.

    Args:
        added: the repeats, sorted.
    """
    tasks: list[Task] = []
    buffers = list(program.buffers)
    new_number: dict[int, int] = {}  # task of `program` → the number of its last repeat, or of the task itself
    current_buffer: dict[int, int] = {}  # buffer of a repeated task → the buffer of its last repeat
    for index, repeat in tasks_with_repeats(program, added):
        task = repeat.task_in(program) if repeat else program.tasks[index]
        for buffer in _all_allocated(task) if repeat else ():
            current_buffer[buffer] = len(buffers)
            buffers.append(program.buffers[buffer])
        is_unchanged = len(tasks) == index and not repeat  # no repeat precedes it
        tasks.append(task if is_unchanged else _renumber(task, new_number, current_buffer))
        new_number[index] = len(tasks) - 1
    return attrs.evolve(program, tasks=tuple(tasks), buffers=tuple(buffers))


def peak_with_repeats(program: Program, added: Sequence[Repeat]) -> float:
    """Return the peak in bytes of the result of `insert_repeats`, without building it.

    For example, f allocates a of 4 bytes, g uses a, c allocates 8 bytes, f runs again, and h uses a. Then a is freed
    after g and after h, and the peak is 4 + 8 bytes, when f runs again.
    """
    size = [buffer.bytes for buffer in program.buffers]
    tasks = [
        repeat.task_in(program) if repeat else program.tasks[index]
        for index, repeat in tasks_with_repeats(program, added)
    ]
    freed_buffers = _freed_buffers(tasks, {*program.outputs})
    live = peak = sum([size[buffer] for buffer in program.inputs])
    for task, freed in zip(tasks, freed_buffers, strict=True):
        allocated_bytes = sum([size[buffer] for buffer in task.allocates])
        if task.memory_steps:
            task_peak = _peak_of_steps(task, freed, size)
        else:
            task_peak = allocated_bytes + task.transient
        peak = max(peak, live + task_peak)
        live += allocated_bytes - sum([size[buffer] for buffer in freed])
    return peak


def _freed_buffers(tasks: Sequence[Task], outputs: Collection[int]) -> list[list[int]]:
    """Return, for each task, the buffers that are freed after it. A buffer may be allocated and freed several times.

    Args:
        outputs: the buffers that are not freed.
    """
    freed_buffers: list[list[int]] = [[] for _ in tasks]
    last_use: dict[int, int] = {}
    for position, task in enumerate(tasks):
        for buffer in task.allocates:
            if buffer in last_use and buffer not in outputs:
                freed_buffers[last_use[buffer]].append(buffer)  # a repeat allocates it again
            last_use[buffer] = position
        for buffer in task.reads:
            if buffer in last_use:  # inputs, which no task allocates, are not freed
                last_use[buffer] = position
    for buffer in last_use.keys() - outputs:
        freed_buffers[last_use[buffer]].append(buffer)
    return freed_buffers


def _peak_of_steps(task: Task, freed: Collection[int], size: Sequence[float]) -> float:
    """Return the peak of a task with several memory steps, in bytes above the bytes that are live before it.

    For example, step 0 allocates 8 bytes, which step 1 reads last, and step 1 allocates 4: the peak is 12 bytes. If
    step 0 also reads a freed operand of 6 bytes last, the peak is max(8, 8 − 6 + 4) = 8.

    Args:
        freed: the buffers that other tasks allocate or use, and whose last use is the task.
        size: for each buffer, its bytes.
    """
    last_step = {
        buffer: index for index, step in enumerate(task.memory_steps) for buffer in (*step.allocates, *step.reads)
    }
    outlive_task = {buffer for buffer in task.allocates if buffer not in freed}
    freed_in_task = {*freed, *_all_allocated(task)} - outlive_task
    live = peak = 0.0
    for index, step in enumerate(task.memory_steps):
        live += sum([size[buffer] for buffer in step.allocates])
        peak = max(peak, live)
        live -= sum([size[buffer] for buffer in freed_in_task if last_step[buffer] == index])
    return peak


def _all_allocated(task: Task) -> Iterable[int]:
    """Return the buffers that a task allocates, including those that only its memory steps use."""
    return dict.fromkeys((*task.allocates, *(buffer for step in task.memory_steps for buffer in step.allocates)))


def _renumber(task: Task, position: Mapping[int, int], current_buffer: Mapping[int, int]) -> Task:
    """Return a task with new numbers for the tasks and buffers that it refers to.

    Args:
        position: old number of a task → its new number.
        current_buffer: buffer → the buffer of its last repeat.
    """

    def current(buffers: Sequence[int]) -> tuple[int, ...]:
        """Return the buffers of the last repeats."""
        return tuple([current_buffer.get(buffer, buffer) for buffer in buffers])

    return attrs.evolve(
        task,
        needs=tuple([position[need] for need in task.needs]),
        allocates=current(task.allocates),
        reads=current(task.reads),
        memory_steps=tuple([MemoryStep(current(step.allocates), current(step.reads)) for step in task.memory_steps]),
        waits_for=None if task.waits_for is None else position[task.waits_for],
    )


def tasks_with_repeats(program: Program, added: Sequence[Repeat]) -> Iterator[tuple[int, Repeat | None]]:
    """Yield (task, None) for each task and (repeated task, repeat) for each repeat, in order of execution."""
    next_repeat = 0
    for index in range(len(program.tasks)):
        while next_repeat < len(added) and added[next_repeat].before == index:
            yield added[next_repeat].task, added[next_repeat]
            next_repeat += 1
        yield index, None
