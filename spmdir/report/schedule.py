"""The time of one step of a rank in its schedule: exposed communication, and the ops that hide the rest."""

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
from spmdir.report.op_sums import table
from spmdir.report.timeline_text import timeline_lines
from spmdir.reshard.topology import Topology
from spmdir.schedule.memory import find_peak
from spmdir.schedule.program import Buffer, Task
from spmdir.schedule.simulate import Execution

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from spmdir.report.rank_step import RankStep

MAX_HIDERS = 3
"""The number of kinds of ops that are listed as hiding the collectives of one row."""

MAX_BUCKETS = 12
"""The number of buckets that the printed report lists."""


@attrs.frozen
class CollectiveShare:
    """The messages of all collectives of one kind and axes. Packing and unpacking do not count.

    Attributes:
        kind: the kind of the collectives, or the op whose local form sends the messages.
        axes: the mesh axes of their groups; empty for copies to the host and back.
        count: the number of messages.
        wire_bytes: the bytes that a rank sends.
        seconds: the sum of their transfer times.
        exposed: seconds that the accelerator waits for them.
        hidden_by: op → seconds that it computes while one of them is in flight, longest first.
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
        name: its first result.
        kind: the kind of the collective.
        axes: the mesh axes of its groups.
        members: the number of tensors.
        wire_bytes: the bytes that a rank sends.
    """

    name: str
    kind: str
    axes: tuple[str, ...]
    members: int
    wire_bytes: float


@attrs.frozen
class ScheduleReport(ShownAsText):
    """The modelled time of one step of a rank, in the order of its program.

    Attributes:
        seconds: the time of the step.
        compute_seconds: the seconds that the accelerator computes.
        exposed_seconds: the seconds that it waits for communication.
        collectives: the collectives of each kind and axes, the most exposed first.
        buckets: the collectives of several tensors, the largest first.
        peak_bytes, peak_value, holders: as in `MemoryReport`.
        host_bytes: the peak of the bytes that the rank has in the memory of its host.
        execution: the times of each op and each transfer.
    """

    seconds: float
    compute_seconds: float
    exposed_seconds: float
    collectives: tuple[CollectiveShare, ...]
    buckets: tuple[Bucket, ...]
    peak_bytes: float
    peak_value: str
    holders: tuple[Buffer, ...]
    host_bytes: float
    execution: Execution = attrs.field(eq=False, repr=False)

    def __str__(self) -> str:
        """Return the time of the step, the tables of collectives and of buckets, and the peak of live memory."""
        transfer_seconds = sum(share.seconds for share in self.collectives)
        lines = [
            f"step of a rank {milliseconds(self.seconds)} ms: compute {milliseconds(self.compute_seconds)} ms, "
            f"exposed communication {milliseconds(self.exposed_seconds)} ms of {milliseconds(transfer_seconds)} ms"
        ]
        rows = [("collective", "axes", "count", "sent", "ms", "exposed", "hidden by")]
        for share in self.collectives:
            amounts = (str(share.count), size_text(share.wire_bytes))
            times = (milliseconds(share.seconds), milliseconds(share.exposed), _list_hiding_kinds(share.hidden_by))
            rows.append((share.kind, ", ".join(share.axes), *amounts, *times))
        lines += table(rows, range(2, 6)) if self.collectives else []
        if self.buckets:
            rows = [("bucket", "collective", "axes", "tensors", "sent")]
            rows += [
                (bucket.name, bucket.kind, ", ".join(bucket.axes), str(bucket.members), size_text(bucket.wire_bytes))
                for bucket in self.buckets[:MAX_BUCKETS]
            ]
            lines += table(rows, range(3, 5))
            remaining = len(self.buckets) - MAX_BUCKETS
            lines += [f"and {remaining} smaller buckets"] if remaining > 0 else []
        lines.append(f"peak of live memory {size_text(self.peak_bytes)}, at {self.peak_value or 'the arguments'}")
        lines += [f"host memory {size_text(self.host_bytes)}"] if self.host_bytes else []
        return "\n".join([*lines, *holder_lines(self.holders)])

    def timeline(self) -> str:
        """Return a line for each op that takes time and each transfer, in the order of their starts."""
        return "\n".join(timeline_lines(self.execution))


@accepts(module=MODULE, pipeline=PIPELINE)
def schedule_report(
    module: ModuleOp, topology: Topology | str | None = None, *, pipeline: Pipeline | str | None = None
) -> ScheduleReport:
    """Report the modelled time of a step of a rank, in program order.

    The remaining passes run on a copy of the module. Symbolic sizes have the values of their examples.

    Args:
        module: a program at any stage after import.
        topology: the hardware, as in `comm_report`.
        pipeline: the pipeline whose remaining passes run; the standard one if None.

    Raises:
        UnsupportedError, ParseError: the topology does not exist or is invalid.
        SpmdirError: the module cannot be partitioned.

    Example:
        >>> print(spmdir.report.schedule_report(module, "h100x8"))
    """
    from spmdir.report.rank_step import rank_step

    return report_of_step(rank_step(module, topology, as_pipeline(pipeline)))


def report_of_step(step: RankStep) -> ScheduleReport:
    """Return the report on a modelled step of a rank."""
    from spmdir.dialects.collectives import Collective

    execution, program = step.execution, step.execution.program
    member_counts = [len(ops[0].pairs) if isinstance(ops[0], Collective) else 1 for ops in step.units]
    peak_bytes, peak_index, live_buffers = find_peak(program)
    holders = (program.buffers[buffer] for buffer in sorted(live_buffers))
    return ScheduleReport(
        seconds=execution.seconds,
        compute_seconds=execution.compute_seconds,
        exposed_seconds=execution.exposed_seconds,
        collectives=tuple(_collectives(execution)),
        buckets=tuple(_buckets(program.tasks, member_counts)),
        peak_bytes=peak_bytes,
        peak_value="" if peak_index is None else program.tasks[peak_index].name,
        holders=tuple(sorted((buffer for buffer in holders if buffer.bytes), key=lambda buffer: -buffer.bytes)),
        host_bytes=step.memory.host_bytes,
        execution=execution,
    )


def kind_of(task: Task) -> str:
    """Return the kind of the collective that a task runs or starts, else its op."""
    return task.op.removeprefix("spmd.").removesuffix("_start")


def _collectives(execution: Execution) -> list[CollectiveShare]:
    """Return the collectives of each kind and axes, the most exposed first."""
    groups: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    tasks = execution.program.tasks
    for index in execution.transfers:
        transfer = tasks[index].transfer
        if transfer is not None:
            groups.setdefault((kind_of(tasks[index]), transfer.axes), []).append(index)
    shares = [_share(execution, kind, axes, members) for (kind, axes), members in groups.items()]
    return sorted(shares, key=lambda share: -share.exposed)


def _share(execution: Execution, kind: str, axes: tuple[str, ...], members: Sequence[int]) -> CollectiveShare:
    """Return the totals of the transfers of the tasks `members`, and the ops that hide them."""
    hidden: dict[str, float] = {}
    for index in members:
        for hiding_task, seconds in execution.hidden_by(index):
            op = execution.program.tasks[hiding_task].op
            hidden[op] = hidden.get(op, 0.0) + seconds
    transfers_or_none = [execution.program.tasks[index].transfer for index in members]
    transfers = [transfer for transfer in transfers_or_none if transfer is not None]
    return CollectiveShare(
        kind=kind,
        axes=axes,
        count=len(members),
        wire_bytes=sum(transfer.wire_bytes for transfer in transfers),
        seconds=sum(transfer.seconds for transfer in transfers),
        exposed=sum(execution.transfers[index].exposed for index in members),
        hidden_by=dict(sorted(hidden.items(), key=lambda entry: -entry[1])),
    )


def _buckets(tasks: Iterable[Task], member_counts: Sequence[int]) -> list[Bucket]:
    """Return the collectives that send several tensors, the largest first.

    Args:
        member_counts: for each task, the number of tensors that it sends; 1 for other tasks.
    """
    buckets = [
        Bucket(task.name, kind_of(task), task.transfer.axes, count, task.transfer.wire_bytes)
        for task, count in zip(tasks, member_counts, strict=True)
        if task.transfer is not None and count > 1
    ]
    return sorted(buckets, key=lambda bucket: -bucket.wire_bytes)


def _list_hiding_kinds(hidden_by: dict[str, float]) -> str:
    """Return `aten.mm 0.3, aten.add.Tensor 0.1`: the ops that hide most, with their milliseconds."""
    return ", ".join(f"{op} {milliseconds(seconds)}" for op, seconds in list(hidden_by.items())[:MAX_HIDERS])
