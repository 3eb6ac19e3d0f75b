"""A program as it runs, in lines of text: what the accelerator works at, what it waits for, and what is under way."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from spmdir.core.byte_size import size_text
from spmdir.report.shares import table
from spmdir.schedule.simulate import Execution

COMPUTE = "compute"
"""What the accelerator's own stream is called."""


@attrs.frozen
class Span:
    """Something that takes time, in seconds from the start of the program.

    Attributes:
        stream: `compute`, or the stream of a transfer.
        name: what the text calls it.
        task: the number of its task.
        is_wait: whether the accelerator stands still.
    """

    first: float
    last: float
    stream: str
    name: str
    task: int
    is_wait: bool = False


def spans(found: Execution) -> Iterator[Span]:
    """Yield what takes time, task by task in their order: the work of each, what it waits for, what it sends."""
    for at in found.order:
        task = found.program.tasks[at]
        first, last = found.busy_times(at)
        name = f"{task.name} {task.op.removeprefix('spmd.')}"
        if first > found.begin[at]:
            yield Span(found.begin[at], first, COMPUTE, f"waits for {_started(found, at)}", at, True)
        if last > first:
            yield Span(first, last, COMPUTE, name, at)
        if at in found.transfers and task.transfer is not None:
            sent = found.transfers[at]
            yield Span(sent.begin, sent.end, task.transfer.stream, name, at)
        if found.end[at] > last:
            yield Span(last, found.end[at], COMPUTE, f"waits for {task.name}", at, True)


def _started(found: Execution, at: int) -> str:
    start = found.program.tasks[at].waits_for
    return found.program.tasks[at if start is None else start].name


def timeline_lines(found: Execution) -> list[str]:
    """Return a line for each op that takes time and each transfer: from when to when, where, what, and live memory."""
    rows = [("start us", "end us", "stream", "op", "live")]
    for span in sorted(spans(found), key=lambda span: (span.first, span.last)):
        live = size_text(found.live[span.task]) if span.stream == COMPUTE else ""
        rows.append((f"{span.first * 1e6:.1f}", f"{span.last * 1e6:.1f}", span.stream, span.name, live))
    return table(rows, range(2))
