"""The timeline of a program as text: the ops of the accelerator, its waits, and the transfers in flight."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from spmdir.core.byte_size import size_text
from spmdir.report.op_sums import table
from spmdir.schedule.simulate import Execution

COMPUTE = "compute"
"""The name of the stream of the accelerator."""


@attrs.frozen
class Span:
    """An interval of the timeline: an op, a transfer, or a wait.

    Attributes:
        start, end: seconds from the start of the program.
        stream: `compute`, or the stream of a transfer.
        name: the name that is printed.
        task: the index of its task.
        is_wait: whether the accelerator waits.
    """

    start: float
    end: float
    stream: str
    name: str
    task: int
    is_wait: bool = False


def spans(execution: Execution) -> Iterator[Span]:
    """Yield the intervals of each task in program order: its wait for a transfer, its work, and its own transfer."""
    for index in execution.order:
        task = execution.program.tasks[index]
        start, end = execution.busy_times(index)
        name = f"{task.name} {task.op.removeprefix('spmd.')}"
        if start > execution.begin[index]:
            yield Span(
                execution.begin[index], start, COMPUTE, f"waits for {_awaited_name(execution, index)}", index, True
            )
        if end > start:
            yield Span(start, end, COMPUTE, name, index)
        if index in execution.transfers and task.transfer is not None:
            transfer = execution.transfers[index]
            yield Span(transfer.begin, transfer.end, task.transfer.stream, name, index)
        if execution.end[index] > end:
            yield Span(end, execution.end[index], COMPUTE, f"waits for {task.name}", index, True)


def _awaited_name(execution: Execution, index: int) -> str:
    """Return the name of the task that a task waits for; its own name if it does not wait."""
    start = execution.program.tasks[index].waits_for
    return execution.program.tasks[index if start is None else start].name


def timeline_lines(execution: Execution) -> list[str]:
    """Return a line for each interval: start, end, stream, name, and live memory of intervals of the accelerator."""
    rows = [("start us", "end us", "stream", "op", "live")]
    for span in sorted(spans(execution), key=lambda span: (span.start, span.end)):
        live = size_text(execution.live[span.task]) if span.stream == COMPUTE else ""
        rows.append((f"{span.start * 1e6:.1f}", f"{span.end * 1e6:.1f}", span.stream, span.name, live))
    return table(rows, range(2))
