"""Decide which values of a block are recomputed or copied, for a given price of memory, by a minimum cut.

A buffer that is used after the cut of the program must be available there. It is held, which costs its bytes; or its
task runs again, which costs seconds and requires the operands of the task; or it is copied to the host and back. With
a price of memory in seconds per byte, the cheapest choice is a minimum cut of a network.

For example, f makes a (4 bytes) from x in 2 s, and g makes b (8 bytes) from a in 1 s. x is held anyway, and b is used
after the cut:

    price 0.1   hold b: 0.8 s                      g again needs a: 1 + 0.4 s       f and g again: 3 s
    price 0.3   hold b: 2.4 s                      g again, hold a: 1 + 1.2 s (*)   f and g again: 3 s
    price 1     hold b: 8 s                        g again, hold a: 1 + 4 s         f and g again: 3 s (*)

(*) marks the cheapest choice, and at price 0.1 it is to hold b. So the decisions of the block hold 8, 4 and 0 bytes,
and take 0, 1 and 3 seconds. In the network, an edge from a buffer to its task has the price of holding the buffer, an
edge from a task to the sink has its seconds, and an edge from a task to its operand has infinite capacity.

Sources: the min-cut partitioner of PyTorch (`torch._functorch.partitioners`) for recomputation as a minimum cut, and
M. J. Eisner and D. G. Severance, "Mathematical techniques for efficient record segmentation in large shared databases",
1976, for the search for the prices at which the decision changes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import attrs

from spmdir.schedule.min_cut import INFINITE, minimum_cut
from spmdir.schedule.program import Program, Task

HALVINGS = 4
"""The depth of the search for decisions between two decisions. It finds at most 2^HALVINGS − 1 of them."""

WEIGHT_CLASSES = 8
"""The number of classes to which the weights of the buffers of a block are rounded."""

CAPACITY_UNIT = 1e-12
"""The seconds that are one unit of capacity."""


def task_seconds(task: Task) -> float:
    """Return the time of a task alone, including its transfer."""
    return task.seconds + (task.transfer.seconds if task.transfer else 0.0)


@attrs.frozen(order=True)
class Restored:
    """One thing that is restored after the cut of the program: a task that runs again, or a buffer copied back.

    Attributes:
        task: the task, counted from the first task of the block.
        copied: the index in `allocates` of the buffer that is copied; None if the task runs again.
    """

    task: int
    copied: int | None = None


@attrs.frozen
class BlockDecision:
    """The tasks of a block that run again, and the buffers that are copied.

    Attributes:
        restored: the tasks and the copies.
        held_bytes: weighted bytes that are held across the cut of the program.
        seconds: the time of the tasks, and the price of the copies.
    """

    restored: frozenset[Restored]
    held_bytes: float
    seconds: float


@attrs.frozen
class Block:
    """A range of tasks whose recomputation is decided separately.

    Buffers are numbered in the order of their first use, so blocks of equal layers are equal.

    Attributes:
        seconds: for each task, its time; None if it must not run again.
        allocates, reads: for each task, its buffers.
        sizes: for each buffer, its weighted bytes; None if it is held in any case.
        needed: the buffers that the block allocates and that are used after the cut of the program.
        copies: for each buffer, the price of a copy to the host and back in seconds; None if it must not be copied.
    """

    seconds: tuple[float | None, ...]
    allocates: tuple[tuple[int, ...], ...]
    reads: tuple[tuple[int, ...], ...]
    sizes: tuple[float | None, ...]
    needed: tuple[int, ...]
    copies: tuple[float | None, ...] = ()

    def decisions(self) -> list[BlockDecision]:
        """Return decisions that hold fewer and fewer bytes. Each is the cheapest one at some price of memory."""
        hold_all = self._cheapest(0.0)
        sizes = [size for size in map(self.sizes.__getitem__, self.needed) if size]
        if not sizes:
            return [hold_all]
        # At this price, to hold even the smallest buffer costs more than all repeats and copies together.
        total_seconds = sum(filter(None, self.seconds)) + sum(filter(None, self.copies))
        hold_least = self._cheapest(2 * (total_seconds + CAPACITY_UNIT) / min(sizes))
        if hold_least.held_bytes >= hold_all.held_bytes:
            return [hold_all]
        return [hold_all, *self._between(hold_all, hold_least, HALVINGS), hold_least]

    def _between(self, more_held: BlockDecision, less_held: BlockDecision, depth: int) -> list[BlockDecision]:
        """Return decisions that hold less than `more_held` and more than `less_held`, in decreasing order of bytes.

        At some price, the two given decisions cost the same. The cheapest decision at this price is between them, and
        the search continues on both sides.
        """
        if not depth:
            return []
        price = (less_held.seconds - more_held.seconds) / (more_held.held_bytes - less_held.held_bytes)
        middle = self._cheapest(price)
        if not less_held.held_bytes < middle.held_bytes < more_held.held_bytes:
            return []
        before, after = self._between(more_held, middle, depth - 1), self._between(middle, less_held, depth - 1)
        return [*before, middle, *after]

    def _cheapest(self, price: float) -> BlockDecision:
        """Return the cheapest decision if one held byte costs `price` seconds, by a minimum cut.

        The buffers on the source's side of the cut are available after the cut of the program, and the tasks on that
        side run again. An available buffer is held or copied if its task does not run again.
        """
        copy_price = self._prices_of_cheaper_copies(price)
        buffer_count, source = len(self.sizes), len(self.sizes) + len(self.seconds)
        sink = source + 1
        source_side = minimum_cut(sink + 1, self._network(price, copy_price, source, sink), source, sink)
        repeated = {task for task in range(len(self.seconds)) if buffer_count + task in source_side}
        producer = self._producers()
        held_or_copied = [
            buffer for buffer in source_side if buffer < buffer_count and producer.get(buffer) not in repeated
        ]
        held_bytes = sum(self.sizes[buffer] or 0.0 for buffer in held_or_copied if buffer not in copy_price)
        copied = [buffer for buffer in held_or_copied if buffer in copy_price]
        copies = [Restored(producer[buffer], self.allocates[producer[buffer]].index(buffer)) for buffer in copied]
        seconds = sum(self.seconds[task] or 0.0 for task in repeated) + sum(copy_price[buffer] for buffer in copied)
        return BlockDecision(frozenset([*map(Restored, repeated), *copies]), held_bytes, seconds)

    def _producers(self) -> dict[int, int]:
        """Return buffer → the task of the block that allocates it."""
        return {buffer: task for task, buffers in enumerate(self.allocates) for buffer in buffers}

    def _prices_of_cheaper_copies(self, price: float) -> dict[int, float]:
        """Return buffer → the price of its copy, for the buffers that cost less to copy than to hold.

        Args:
            price: seconds for one held byte.
        """
        sizes_and_copies = zip(self.sizes, self.copies or [None] * len(self.sizes), strict=True)
        return {
            buffer: copy_price
            for buffer, (size, copy_price) in enumerate(sizes_and_copies)
            if size is not None and copy_price is not None and copy_price < price * size
        }

    def _network(
        self, price: float, copy_price: Mapping[int, float], source: int, sink: int
    ) -> list[tuple[int, int, int]]:
        """Return the edges (from, to, capacity) of the network whose minimum cut is the cheapest decision.

        The nodes are the buffers, then the tasks, then the source and the sink. For example, task f makes buffer a,
        which is used after the cut of the program. The edges are source → a (infinite), a → f (the price of holding or
        copying a), f → sink (the seconds of f), and f → each buffer that f reads (infinite).

        Args:
            price: seconds for one held byte.
            copy_price: buffer that is cheaper to copy than to hold → the price of its copy in seconds.
        """
        producer = self._producers()
        task_node = range(len(self.sizes), len(self.sizes) + len(self.seconds))
        edges = [(source, buffer, INFINITE) for buffer in self.needed]
        for buffer, size in enumerate(self.sizes):
            if size is not None:
                available_price = copy_price.get(buffer, price * size)
                producer_node = task_node[producer[buffer]] if buffer in producer else sink
                edges.append((buffer, producer_node, round(available_price / CAPACITY_UNIT)))
        for task, (seconds, reads) in enumerate(zip(self.seconds, self.reads, strict=True)):
            # Even a free task costs one unit, so it runs again only if this holds fewer bytes.
            capacity = INFINITE if seconds is None else 1 + round(seconds / CAPACITY_UNIT)
            edges.append((task_node[task], sink, capacity))
            edges += [(task_node[task], buffer, INFINITE) for buffer in reads]
        return edges


def make_block(
    program: Program,
    part: range,
    may_repeat: Sequence[bool],
    always_held: Collection[int],
    weights: Mapping[int, float],
    copy_prices: Mapping[int, float],
) -> Block:
    """Return the tasks `part` of a program as a block.

    Args:
        part: the numbers of the tasks of the block.
        may_repeat: for each task of the block, whether it may run again.
        always_held: the buffers that are held in any case.
        weights: buffer that is used after the cut of the program → the weight of one byte of it.
        copy_prices: buffer that may be copied → the price of a copy to the host and back in seconds.
    """
    block_number: dict[int, int] = {}  # buffer of the program → its number in the block

    def numbers_of(buffers: Sequence[int]) -> tuple[int, ...]:
        """Return the numbers in the block of buffers of the program. New buffers get the next numbers."""
        return tuple([block_number.setdefault(buffer, len(block_number)) for buffer in buffers])

    tasks = program.tasks[part.start : part.stop]
    reads = tuple([numbers_of(task.reads) for task in tasks])
    allocates = tuple([numbers_of(task.allocates) for task in tasks])
    allocated = {buffer for task in tasks for buffer in task.allocates}
    buffers = list(block_number)  # the buffers of the program, in the order of their numbers in the block
    # Buffers that are used after the cut and allocated by another block are held too.
    held = {buffer for buffer in buffers if buffer in always_held or (buffer in weights and buffer not in allocated)}
    needed = [buffer for buffer in buffers if buffer in weights and buffer not in held]
    largest_weight = max((weights[buffer] for buffer in needed), default=0.0)

    def weighted_bytes(buffer: int) -> float:
        """Return the bytes of a buffer times its weight. Weights are rounded to classes, so equal layers stay equal.

        For example, weights of 0.3 and 0.35 of the largest weight are both rounded up to 3/8.
        """
        size = program.buffers[buffer].bytes
        if not largest_weight:
            return size
        # A buffer that is not used after the cut has no weight. The largest one is assumed.
        fraction = weights.get(buffer, largest_weight) / largest_weight
        return math.ceil(WEIGHT_CLASSES * fraction) / WEIGHT_CLASSES * size

    copies = [copy_prices.get(buffer) if buffer in allocated else None for buffer in buffers] if copy_prices else []
    return Block(
        seconds=tuple([task_seconds(task) if may else None for task, may in zip(tasks, may_repeat, strict=True)]),
        allocates=allocates,
        reads=reads,
        sizes=tuple([None if buffer in held else weighted_bytes(buffer) for buffer in buffers]),
        needed=tuple([block_number[buffer] for buffer in needed]),
        copies=tuple(copies),
    )
