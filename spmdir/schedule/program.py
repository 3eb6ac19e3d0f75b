"""The program of one rank as a scheduler sees it: tasks that keep the accelerator busy, what they send and hold.

Tasks and buffers are numbered by their places in `Program.tasks` and `Program.buffers`. Times are seconds on the rank.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import attrs

MEMORY_CLASSES = (
    "parameters",
    "gradients",
    "optimizer state",
    "inputs",
    "activations",
    "gathered weights",
    "communication buffers",
)
"""What memory is held for, in the order of reports."""


@attrs.frozen
class KernelCost:
    """What the kernels of a task compute, other than those that pack and unpack messages.

    Attributes:
        flops: floating-point operations.
        traffic: bytes that they read and write in memory.
        least: seconds that they would take at the full rate of the machine, without launches.
        bound: what most of their time goes to: "compute", "memory", "launch", or "measured".
    """

    flops: float = 0.0
    traffic: float = 0.0
    ideal_seconds: float = 0.0
    bound: str = "launch"

    def plus(self, other: KernelCost) -> KernelCost:
        """Return what this and `other` compute together; most of the time goes to what bounds the longer one."""
        bound = self.bound if self.ideal_seconds >= other.ideal_seconds else other.bound
        return KernelCost(
            self.flops + other.flops, self.traffic + other.traffic, self.ideal_seconds + other.ideal_seconds, bound
        )


@attrs.frozen
class Transfer:
    """What a collective sends, beside the accelerator's own work.

    Attributes:
        stream: its communicator: transfers of one stream run one after the other, in program order.
        axes: the mesh axes of its groups.
        fixed: seconds of latency and rounds, in which no link is busy.
        intra, inter: seconds that the links within nodes, and those between nodes, are busy at full bandwidth.
        wire: bytes that a rank sends.
        excludes: the streams that may have nothing in flight when it is sent: their groups share ranks with its own,
            and ranks that ran the two in different orders would wait for each other.
        joining: seconds by which the accelerator is busier if it is one of the tensors of a message, with the copies
            into and out of that.
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
        """The time that it takes alone."""
        return self.latency + max(self.intra, self.inter)


@attrs.frozen
class Buffer:
    """Memory of one tensor, or of several that share it.

    Attributes:
        name: of the value that it is allocated for.
        bytes: on the rank that holds most.
        kind: one of `MEMORY_CLASSES`.
    """

    name: str
    bytes: float
    kind: str


@attrs.frozen
class MemoryStep:
    """A part of a task: the buffers that it allocates, and those that it needs."""

    allocates: tuple[int, ...] = ()
    reads: tuple[int, ...] = ()


@attrs.frozen
class Task:
    """An op of the program of one rank, or several that are moved together.

    Attributes:
        name: of its first result.
        op: the op that it is, as `aten.mm` or `spmd.all_gather_start`.
        path: of the module that it is of, as `layers.0.attention`; empty if that is not known.
        seconds: that it keeps the accelerator busy: the kernels of an op, packing at a start, unpacking at a wait.
        needs: the tasks whose results it reads, or that have to run before it for their effects.
        makes: the buffers that it allocates for others.
        reads: the buffers of others that it needs; a view needs the buffer that it views.
        transient: bytes that it holds beside these while it runs, at most.
        stages: what it allocates and needs step by step, buffers of its own included, where that says more than
            `makes`, `reads` and `transient`: an operand may be freed before the result is made.
        transfer: of a collective that it starts, which is sent once the task itself has run.
        waits: the task that started what it waits for.
        is_blocking: whether it waits for its own transfer: whether it is a collective that starts and waits in one.
        overlap: of one that is, seconds of its own work that it does while the transfer is under way.
        computed: what its kernels compute.
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
        """By stage, the buffers that it allocates, and those that no later stage needs, each with whether it is one of
        `reads`."""
        stages = self.memory_steps or (MemoryStep(self.allocates, self.reads),)
        last = {buffer: at for at, stage in enumerate(stages) for buffer in (*stage.allocates, *stage.reads)}
        found: list[list[tuple[int, bool]]] = [[] for _ in stages]
        reads = set(self.reads)
        for buffer, at in last.items():
            found[at].append((buffer, buffer in reads))
        return tuple([(stage.allocates, tuple(touched)) for stage, touched in zip(stages, found, strict=True)])


@attrs.frozen
class Program:
    """What one rank runs.

    Attributes:
        tasks: in an order in which they may run.
        buffers: those of inputs, and those that tasks allocate; one is freed after the last task that reads it.
        inputs: the buffers that are live from the start to the end, as callers hold arguments.
        outputs: the buffers that are live to the end.
    """

    tasks: tuple[Task, ...]
    buffers: tuple[Buffer, ...]
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()


def reorder_tasks(program: Program, order: Sequence[int]) -> Program:
    """Return a program whose tasks are numbered by their places in an order."""
    if all(at == task for at, task in enumerate(order)):
        return program
    place = [0] * len(order)
    for at, task in enumerate(order):
        place[task] = at
    tasks = []
    for at in order:
        task = program.tasks[at]
        waits = None if task.waits_for is None else place[task.waits_for]
        tasks.append(attrs.evolve(task, needs=tuple(sorted([place[need] for need in task.needs])), waits_for=waits))
    return attrs.evolve(program, tasks=tuple(tasks))
