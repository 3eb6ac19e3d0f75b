"""Tasks that run again, so that what they make need not be held from one use to the next."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import attrs

from spmdir.schedule.program import Program, Stage, Task


@attrs.frozen(order=True)
class Repeat:
    """A task that runs again: this one right before task `before`, whose results all later uses take.

    Attributes:
        before: the task before which it runs again.
        task: the task; of several before one task the first one runs first.
    """

    before: int
    task: int


def repeats(program: Program, cut: int, again: Collection[int]) -> list[Repeat]:
    """Return the repeats by which every use after the task `cut` of what the tasks `again` make is one of a repeat.

    Each is made right before its first use, and views of what is made again are taken again.
    """
    found = _Again(program, cut, again)
    return list(itertools.chain.from_iterable(map(found.before, range(cut + 1, len(program.tasks)))))


class _Again:
    """The repeats of a program, found in program order."""

    def __init__(self, program: Program, cut: int, again: Collection[int]):
        self.program = program
        made = {buffer for task in again for buffer in program.tasks[task].makes}
        self.waiting = set(again)
        for index, task in enumerate(program.tasks[: cut + 1]):
            if not task.makes and not made.isdisjoint(task.reads):
                self.waiting.add(index)  # a view

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
                    asked.append(need)
        return [Repeat(user, task) for task in sorted(found)]


def with_repeats(program: Program, added: Sequence[Repeat]) -> Program:
    """Return `program` with tasks that run again.

    Args:
        added: sorted.
    """
    tasks: list[Task] = []
    buffers = list(program.buffers)
    place, held = dict[int, int](), dict[int, int]()
    for index, is_repeat in order(program, added):
        task = program.tasks[index]
        for buffer in _made(task) if is_repeat else ():
            held[buffer] = len(buffers)
            buffers.append(program.buffers[buffer])
        tasks.append(task if len(tasks) == index and not is_repeat else _moved(task, place, held))
        place[index] = len(tasks) - 1
    return attrs.evolve(program, tasks=tuple(tasks), buffers=tuple(buffers))


def peak_with_repeats(program: Program, added: Sequence[Repeat]) -> float:
    """Return the most bytes that `with_repeats` of the same holds at once, without making it."""
    size = [buffer.bytes for buffer in program.buffers]
    outputs = {*program.outputs}
    tasks = [program.tasks[index] for index, _ in order(program, added)]
    gone = [0.0] * len(tasks)
    freed: dict[int, list[int]] = {}
    last: dict[int, int] = {}

    def free(buffer: int) -> None:
        step = last[buffer]
        gone[step] += size[buffer]
        if tasks[step].stages:
            freed.setdefault(step, []).append(buffer)

    for step, task in enumerate(tasks):
        for buffer in task.makes:
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
        made = sum([size[buffer] for buffer in task.makes])
        most = _inside(task, freed.get(step, ()), size) if task.stages else made + task.transient
        peak = max(peak, live + most)
        live += made - gone[step]
    return peak


def _inside(task: Task, freed: Collection[int], size: Sequence[float]) -> float:
    """Return the most bytes by which a task of several stages holds more than there is before, if it frees some."""
    last = {buffer: at for at, stage in enumerate(task.stages) for buffer in (*stage.makes, *stage.reads)}
    ends = {*freed, *_made(task)}.difference(buffer for buffer in task.makes if buffer not in freed)
    live = most = 0.0
    for at, stage in enumerate(task.stages):
        live += sum([size[buffer] for buffer in stage.makes])
        most = max(most, live)
        live -= sum([size[buffer] for buffer in ends if last[buffer] == at])
    return most


def _made(task: Task) -> Iterable[int]:
    return dict.fromkeys((*task.makes, *(buffer for stage in task.stages for buffer in stage.makes)))


def _moved(task: Task, place: Mapping[int, int], held: Mapping[int, int]) -> Task:
    """Return a task whose tasks are at other places, and whose buffers are those that hold them."""

    def now(buffers: Sequence[int]) -> tuple[int, ...]:
        return tuple([held.get(buffer, buffer) for buffer in buffers])

    return attrs.evolve(
        task,
        needs=tuple([place[need] for need in task.needs]),
        makes=now(task.makes),
        reads=now(task.reads),
        stages=tuple([Stage(now(stage.makes), now(stage.reads)) for stage in task.stages]),
        waits=None if task.waits is None else place[task.waits],
    )


def order(program: Program, added: Sequence[Repeat]) -> Iterator[tuple[int, bool]]:
    """Yield the tasks in the order in which they run with repeats, and whether each is one."""
    repeat = 0
    for index in range(len(program.tasks)):
        while repeat < len(added) and added[repeat].before == index:
            yield added[repeat].task, True
            repeat += 1
        yield index, False
