"""What of a block of a program runs again or is copied where holding a byte costs so many seconds, as a minimum cut.

A buffer that is used after the cut of the program is available there, and so is all that a task which runs again reads.
What is available is either held, which costs its bytes, or made again, which costs the seconds of its task, or copied
to the host and back, which costs the seconds of that which are not hidden.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import attrs

from spmdir.schedule.min_cut import INFINITE, minimum_cut
from spmdir.schedule.program import Program, Task

HALVINGS = 4
"""How often the prices between two answers are halved."""

CLASSES = 8
"""How many classes of worth there are in a block."""

UNIT = 1e-12
"""The seconds that capacities of cuts are counted in."""


def task_seconds(task: Task) -> float:
    """Return how long a task takes alone, with what it sends."""
    return task.seconds + (task.transfer.seconds if task.transfer else 0.0)


@attrs.frozen(order=True)
class Restored:
    """How something comes back after the cut of the program.

    Attributes:
        task: the task that makes it, counted from the block's first.
        copied: the place, among what the task makes, of the buffer that is copied to the host and back; None if the
            task runs again.
    """

    task: int
    copied: int | None = None


@attrs.frozen
class BlockDecision:
    """What of a block runs again or is copied.

    Attributes:
        again: what is not held.
        held: bytes that are held across the cut of the program, weighed.
        seconds: of the tasks, and of copies as they are priced.
    """

    again: frozenset[Restored]
    held: float
    seconds: float


@attrs.frozen
class Block:
    """Tasks that may run again by themselves; buffers are numbered by their order in it, so that equal ones are equal.

    Attributes:
        seconds: by task; None of one that may not run again.
        makes, reads: by task.
        sizes: by buffer, its bytes, weighed by what holding them is worth; None of one that is held in any case.
        needed: the buffers of tasks of the block that are used after the cut of the program.
        copies: by buffer, the seconds that a copy to the host and back is priced as; None of one that may not be.
    """

    seconds: tuple[float | None, ...]
    allocates: tuple[tuple[int, ...], ...]
    reads: tuple[tuple[int, ...], ...]
    sizes: tuple[float | None, ...]
    needed: tuple[int, ...]
    copies: tuple[float | None, ...] = ()

    def decisions(self) -> list[BlockDecision]:
        """Return what to make again, from nothing to all that frees memory, each the best where a byte costs more."""
        nothing = self._best(0.0)
        sizes = [size for size in map(self.sizes.__getitem__, self.needed) if size]
        if not sizes:
            return [nothing]
        spent = sum(filter(None, self.seconds)) + sum(filter(None, self.copies))
        most = self._best(2 * (spent + UNIT) / min(sizes))
        return [nothing, *self._between(nothing, most, HALVINGS), most] if most.held < nothing.held else [nothing]

    def _between(self, less: BlockDecision, more: BlockDecision, depth: int) -> list[BlockDecision]:
        """Return the answers that are best between the prices of two."""
        if not depth:
            return []
        found = self._best((more.seconds - less.seconds) / (less.held - more.held))
        if not more.held < found.held < less.held:
            return []
        return [*self._between(less, found, depth - 1), found, *self._between(found, more, depth - 1)]

    def _best(self, price: float) -> BlockDecision:
        """Return the best answer where holding a byte costs `price` seconds."""
        tasks = len(self.sizes)
        source, sink = tasks + len(self.seconds), tasks + len(self.seconds) + 1
        maker = {buffer: task for task, makes in enumerate(self.allocates) for buffer in makes}
        edges = [(source, buffer, INFINITE) for buffer in self.needed]
        copied: dict[int, float] = {}
        for buffer, size in enumerate(self.sizes):
            if size is not None:
                kept, copy = price * size, self.copies[buffer] if self.copies else None
                if copy is not None and copy < kept:
                    kept = copied[buffer] = copy
                edges.append((buffer, tasks + maker[buffer] if buffer in maker else sink, round(kept / UNIT)))
        for task, (seconds, reads) in enumerate(zip(self.seconds, self.reads, strict=True)):
            edges.append((tasks + task, sink, INFINITE if seconds is None else 1 + round(seconds / UNIT)))
            edges += [(tasks + task, buffer, INFINITE) for buffer in reads]
        available = minimum_cut(sink + 1, edges, source, sink)
        again = {task for task in range(len(self.seconds)) if tasks + task in available}
        kept = [buffer for buffer in available if buffer < tasks and maker.get(buffer) not in again]
        held = sum(filter(None, [self.sizes[buffer] for buffer in kept if buffer not in copied]))
        taken = [buffer for buffer in kept if buffer in copied]
        ways = [Restored(maker[buffer], self.allocates[maker[buffer]].index(buffer)) for buffer in taken]
        seconds = sum(self.seconds[task] or 0.0 for task in again) + sum(copied[buffer] for buffer in taken)
        return BlockDecision(frozenset([*map(Restored, again), *ways]), held, seconds)


def make_block(
    program: Program,
    part: range,
    may_repeat: Sequence[bool],
    kept: Collection[int],
    worth: Mapping[int, float],
    copies: Mapping[int, float],
) -> Block:
    """Return some tasks of a program as a block.

    Args:
        may_repeat: by task of the block, whether it may run again.
        kept: the buffers that are held in any case.
        worth: buffer that is used after the cut of the program → what a byte of it is worth.
        copies: buffer → what a copy to the host and back is priced as.
    """
    number: dict[int, int] = {}

    def numbered(buffers: Sequence[int]) -> tuple[int, ...]:
        return tuple([number.setdefault(buffer, len(number)) for buffer in buffers])

    tasks = program.tasks[part.start : part.stop]
    reads = tuple([numbered(task.reads) for task in tasks])
    makes = tuple([numbered(task.allocates) for task in tasks])
    own = {buffer for task in tasks for buffer in task.allocates}
    held = {buffer for buffer in number if buffer in kept or (buffer in worth and buffer not in own)}
    most = max((worth[buffer] for buffer in number if buffer in worth and buffer not in held), default=0.0)

    def weighed(buffer: int) -> float:
        """Return the bytes of a buffer, by its worth in a few classes, so that blocks of equal layers are equal."""
        part = math.ceil(CLASSES * worth.get(buffer, most) / most) / CLASSES if most else 1.0
        return part * program.buffers[buffer].bytes

    return Block(
        tuple([task_seconds(task) if may else None for task, may in zip(tasks, may_repeat, strict=True)]),
        makes,
        reads,
        tuple([None if buffer in held else weighed(buffer) for buffer in number]),
        tuple([place for buffer, place in number.items() if buffer in worth and buffer not in held]),
        tuple([copies.get(buffer) if buffer in own else None for buffer in number]) if copies else (),
    )
