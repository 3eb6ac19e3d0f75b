"""How long one step of a rank takes as it is scheduled: what is exposed of its communication, and what hides it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import attrs

from spmdir.core.arguments import accepts
from spmdir.core.byte_size import size_text
from spmdir.core.html_text import ShownAsText
from spmdir.core.time_text import milliseconds
from spmdir.dialects.arguments import MODULE
from spmdir.pipeline.pipeline import PIPELINE, Pipeline, as_pipeline
from spmdir.report.memory import holder_lines
from spmdir.report.shares import table
from spmdir.report.timeline_text import timeline_lines
from spmdir.reshard.topology import Topology
from spmdir.schedule.memory import find_peak
from spmdir.schedule.program import Buffer, Task
from spmdir.schedule.simulate import Execution

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from spmdir.report.rank_step import RankStep

HIDERS = 3
"""How many kinds of ops the report names that hide collectives of one kind."""

BUCKETS = 12
"""How many buckets the printed report shows."""


@attrs.frozen
class CollectiveShare:
    """What some of the collectives of a program take, beside what they pack and unpack.

    Attributes:
        kind: of collective; the op, for one that sends inside its local form.
        axes: mesh axes of their groups; none of copies to the host and back.
        count: how many messages there are.
        wire_bytes: bytes a rank sends.
        seconds: their times alone, one after the other.
        exposed: seconds that the accelerator stands still for them.
        hidden_by: op → seconds that it works while one of them is under way, longest first.
    """

    kind: str
    axes: tuple[str, ...]
    count: int
    wire_bytes: float
    seconds: float
    exposed: float
    hidden_by: dict[str, float] = attrs.field(factory=dict, eq=False)


@attrs.frozen
class Bucket:
    """A collective of several tensors.

    Attributes:
        name: of its first result.
        members: how many tensors.
        wire_bytes: bytes a rank sends.
    """

    name: str
    kind: str
    axes: tuple[str, ...]
    members: int
    wire_bytes: float


@attrs.frozen
class ScheduleReport(ShownAsText):
    """One step of a rank in the order of its program, by the model of a machine.

    Attributes:
        seconds: the time of the step.
        compute_seconds: for how long the accelerator is busy.
        exposed_seconds: for how long it stands still for communication.
        collectives: by kind and axes, the most exposed first.
        buckets: the collectives of several tensors, the largest first.
        peak_bytes, at, holders: as in MemoryReport.
        host_bytes: the most that the rank has in the memory of its host at once.
        execution: when each op runs and each transfer is under way.
    """

    seconds: float
    compute_seconds: float
    exposed_seconds: float
    collectives: tuple[CollectiveShare, ...]
    buckets: tuple[Bucket, ...]
    peak_bytes: float
    at: str
    holders: tuple[Buffer, ...]
    host_bytes: float
    execution: Execution = attrs.field(eq=False, repr=False)

    def __str__(self) -> str:
        sent = sum(one.seconds for one in self.collectives)
        lines = [
            f"step of a rank {milliseconds(self.seconds)} ms: compute {milliseconds(self.compute_seconds)} ms, "
            f"exposed communication {milliseconds(self.exposed_seconds)} ms of {milliseconds(sent)} ms"
        ]
        rows = [("collective", "axes", "count", "sent", "ms", "exposed", "hidden by")]
        rows += [
            (one.kind, ", ".join(one.axes), str(one.count), size_text(one.wire_bytes), milliseconds(one.seconds),
             milliseconds(one.exposed), _listed(one.hidden_by))
            for one in self.collectives
        ]  # fmt: skip
        lines += table(rows, range(2, 6)) if self.collectives else []
        if self.buckets:
            rows = [("bucket", "collective", "axes", "tensors", "sent")]
            rows += [
                (one.name, one.kind, ", ".join(one.axes), str(one.members), size_text(one.wire_bytes))
                for one in self.buckets[:BUCKETS]
            ]
            lines += table(rows, range(3, 5))
            left = len(self.buckets) - BUCKETS
            lines += [f"and {left} smaller ones"] if left > 0 else []
        lines.append(f"peak of live memory {size_text(self.peak_bytes)}, at {self.at or 'the arguments'}")
        lines += [f"host memory {size_text(self.host_bytes)}"] if self.host_bytes else []
        return "\n".join([*lines, *holder_lines(self.holders)])

    def timeline(self) -> str:
        """Return a line for each op that takes time and each transfer, in the order in which they begin."""
        return "\n".join(timeline_lines(self.execution))


@accepts(module=MODULE, pipeline=PIPELINE)
def schedule_report(
    module: ModuleOp, topology: Topology | str | None = None, *, pipeline: Pipeline | str | None = None
) -> ScheduleReport:
    """Return how long a rank takes for `module` in its order; with symbolic sizes, at the examples of these.

    The passes that the module still needs are run on a copy.

    Args:
        module: at any stage after import.
        topology: what the mesh runs on, as in `comm_report`.
        pipeline: whose remaining passes are run; the standard one if None.

    Raises:
        UnsupportedError, ParseError: there is no such topology.
        SpmdirError: the module cannot be partitioned.

    Example:
        >>> print(spmdir.report.schedule_report(module, "h100x8"))
    """
    from spmdir.report.rank_step import rank_step

    return report_of_step(rank_step(module, topology, as_pipeline(pipeline)))


def report_of_step(step: RankStep) -> ScheduleReport:
    """Return the report of a step of a rank."""
    from spmdir.dialects.collectives import Collective

    found, program = step.execution, step.execution.program
    members = [len(ops[0].pairs) if isinstance(ops[0], Collective) else 1 for ops in step.units]
    most, at, held = find_peak(program)
    holders = (program.buffers[buffer] for buffer in sorted(held))
    return ScheduleReport(
        found.seconds,
        found.compute_seconds,
        found.exposed_seconds,
        tuple(_collectives(found)),
        tuple(_buckets(program.tasks, members)),
        most,
        "" if at is None else program.tasks[at].name,
        tuple(sorted((buffer for buffer in holders if buffer.bytes), key=lambda buffer: -buffer.bytes)),
        step.memory.host_bytes,
        found,
    )


def kind_of(task: Task) -> str:
    """Return the kind of collective that a task is or starts; else its op."""
    return task.op.removeprefix("spmd.").removesuffix("_start")


def _collectives(found: Execution) -> list[CollectiveShare]:
    """Return what the collectives take, by kind and axes."""
    groups: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    tasks = found.program.tasks
    for at in found.transfers:
        transfer = tasks[at].transfer
        if transfer is not None:
            groups.setdefault((kind_of(tasks[at]), transfer.axes), []).append(at)
    shares = [_share(found, kind, axes, members) for (kind, axes), members in groups.items()]
    return sorted(shares, key=lambda share: -share.exposed)


def _share(found: Execution, kind: str, axes: tuple[str, ...], members: Sequence[int]) -> CollectiveShare:
    hidden: dict[str, float] = {}
    for at in members:
        for other, seconds in found.hidden_by(at):
            op = found.program.tasks[other].op
            hidden[op] = hidden.get(op, 0.0) + seconds
    transfers = [transfer for at in members if (transfer := found.program.tasks[at].transfer) is not None]
    return CollectiveShare(
        kind,
        axes,
        len(members),
        sum(transfer.wire_bytes for transfer in transfers),
        sum(transfer.seconds for transfer in transfers),
        sum(found.transfers[at].exposed for at in members),
        dict(sorted(hidden.items(), key=lambda entry: -entry[1])),
    )


def _buckets(tasks: Iterable[Task], members: Sequence[int]) -> list[Bucket]:
    found = [
        Bucket(task.name, kind_of(task), task.transfer.axes, count, task.transfer.wire_bytes)
        for task, count in zip(tasks, members, strict=True)
        if task.transfer is not None and count > 1
    ]
    return sorted(found, key=lambda bucket: -bucket.wire_bytes)


def _listed(hidden_by: dict[str, float]) -> str:
    return ", ".join(f"{op} {milliseconds(seconds)}" for op, seconds in list(hidden_by.items())[:HIDERS])
