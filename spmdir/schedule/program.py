"""The input of a scheduler: the program of one rank as tasks with times, transfers and buffers.

A task is identified by its index in `Program.tasks`, and a buffer by its index in `Program.buffers`. Times are in
seconds on one rank.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import attrs

MEMORY_CLASSES = (
    "parameters",
    "caches",
    "gradients",
    "optimizer state",
    "inputs",
    "activations",
    "gathered weights",
    "communication buffers",
)
"""The uses of memory, in the order of reports."""


@attrs.frozen
class KernelCost:
    """The work of the kernels of a task, without the kernels that pack and unpack messages.

    Attributes:
        flops: floating-point operations.
        traffic: bytes read from and written to memory.
        ideal_seconds: time at the peak rate of the machine, without kernel launches.
        bound: what limits the kernels: "compute", "memory" or "launch"; "measured" if their time was measured.
    """

    flops: float = 0.0
    traffic: float = 0.0
    ideal_seconds: float = 0.0
    bound: str = "launch"

    def plus(self, other: KernelCost) -> KernelCost:
        """Return the sum of both costs. The bound is that of the longer one."""
        bound = self.bound if self.ideal_seconds >= other.ideal_seconds else other.bound
        return KernelCost(
            self.flops + other.flops, self.traffic + other.traffic, self.ideal_seconds + other.ideal_seconds, bound
        )


@attrs.frozen
class Transfer:
    """The transfer of a collective, which runs in parallel to the accelerator.

    Attributes:
        stream: the communicator. Transfers of one stream run one after the other, in program order.
        axes: the mesh axes of the collective.
        latency: seconds of latency and rounds, while links are idle.
        intra, inter: busy seconds, at full bandwidth, of the links within nodes and of the links between nodes.
        wire_bytes: bytes that a rank sends.
        excludes: the streams that must have nothing in flight during this transfer. Their groups share ranks with
            this group, and ranks that run two such transfers in different orders wait for each other forever.
        packing_seconds: accelerator time of the copies into and out of a bucket, if the tensor is a member of one.
    """

    stream: str
    axes: tuple[str, ...]
    latency: float
    intra: float
    inter: float
    wire_bytes: float
    excludes: frozenset[str] = frozenset()
    packing_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """The time of the transfer alone, without sharing links."""
        return self.latency + max(self.intra, self.inter)


@attrs.frozen
class Buffer:
    """The memory of one tensor, or of several tensors that share it.

    Attributes:
        name: the value that the buffer is allocated for.
        bytes: the size on the rank that holds the most of the value.
        kind: one of `MEMORY_CLASSES`.
    """

    name: str
    bytes: float
    kind: str


@attrs.frozen
class MemoryStep:
    """One step in the memory use of a task: the buffers that the step allocates, and those that it reads."""

    allocates: tuple[int, ...] = ()
    reads: tuple[int, ...] = ()


@attrs.frozen
class Task:
    """A unit of the program of one rank: one op, or several ops that are moved together.

    Attributes:
        name: the name of the first result.
        op: the name of the op, such as `aten.mm` or `spmd.all_gather_start`.
        path: the module of the op, such as `layers.0.attention`; empty if unknown.
        seconds: for how long the task keeps the accelerator busy: the kernels of an op, the packing of a start, the
            unpacking of a wait.
        needs: the tasks that must run before this task: producers of its operands, and earlier side effects.
        allocates: the buffers that the task allocates and other tasks read.
        reads: the buffers that other tasks allocate and this task reads. A view reads the buffer that it views.
        transient: the largest number of bytes that the task holds in addition while it runs.
        memory_steps: the memory use in several steps, including buffers that only this task uses. It is empty if
            `allocates`, `reads` and `transient` describe the memory use completely. Several steps describe, for
            example, an operand that is freed before the result is allocated.
        transfer: the transfer that the task starts when it has run.
        waits_for: the start whose transfer the task waits for, if the task is a wait.
        is_blocking: whether the task waits for its own transfer, as a collective without a separate wait does.
        overlap: seconds of the task's kernels that run during its own transfer, if `is_blocking`.
        kernel_cost: the work of its kernels.
    """

    name: str
    op: str
    path: str
    seconds: float
    needs: tuple[int, ...] = ()
    allocates: tuple[int, ...] = ()
    reads: tuple[int, ...] = ()
    transient: float = 0.0
    memory_steps: tuple[MemoryStep, ...] = ()
    transfer: Transfer | None = None
    waits_for: int | None = None
    is_blocking: bool = False
    overlap: float = 0.0
    kernel_cost: KernelCost = attrs.field(default=KernelCost(), eq=False, repr=False)

    @functools.cached_property
    def memory_changes(self) -> tuple[tuple[tuple[int, ...], tuple[tuple[int, bool], ...]], ...]:
        """For each memory step: the buffers that it allocates, and the buffers that it is the last step to use.

        Each of the latter is a pair: (buffer, whether the buffer is in `reads`, because another task allocates it). For
        example, a task without steps that reads buffer 0 and allocates buffer 1 has one step: ((1,), ((1, False),
        (0, True))).
        """
        steps = self.memory_steps or (MemoryStep(self.allocates, self.reads),)
        last_step = {buffer: index for index, step in enumerate(steps) for buffer in (*step.allocates, *step.reads)}
        last_uses: list[list[tuple[int, bool]]] = [[] for _ in steps]
        reads = set(self.reads)
        for buffer, index in last_step.items():
            last_uses[index].append((buffer, buffer in reads))
        return tuple([(step.allocates, tuple(buffers)) for step, buffers in zip(steps, last_uses, strict=True)])


@attrs.frozen
class Program:
    """The tasks and buffers of one rank.

    Attributes:
        tasks: the tasks in a legal order.
        buffers: the buffers of the inputs and of the tasks. A buffer is freed after the last task that reads it.
        inputs: the buffers of the arguments. They are live from start to end, because the caller holds them.
        outputs: the buffers of the results. They are live until the end.
    """

    tasks: tuple[Task, ...]
    buffers: tuple[Buffer, ...]
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()


def reorder_tasks(program: Program, order: Sequence[int]) -> Program:
    """Return the program with its tasks in the given order, numbered by their new positions.

    Args:
        order: all tasks, by their old numbers, each after the tasks that it needs.
    """
    if all(position == task for position, task in enumerate(order)):
        return program
    new_position = [0] * len(order)
    for position, task in enumerate(order):
        new_position[task] = position
    tasks = []
    for number in order:
        task = program.tasks[number]
        needs = tuple(sorted([new_position[need] for need in task.needs]))
        start = None if task.waits_for is None else new_position[task.waits_for]
        tasks.append(attrs.evolve(task, needs=needs, waits_for=start))
    return attrs.evolve(program, tasks=tuple(tasks))
