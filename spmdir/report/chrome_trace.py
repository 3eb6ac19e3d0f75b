"""Export the timeline of a program as JSON for Perfetto and chrome://tracing.

Track 0 is the accelerator, and each stream has one more track. Arrows lead from a transfer to the wait for it. A
counter shows the live memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from spmdir.report.timeline_text import COMPUTE, spans
from spmdir.schedule.simulate import Execution


def chrome_trace(execution: Execution) -> str:
    """Return the JSON text; times are microseconds."""
    tracks = {COMPUTE: 0}
    for task in execution.program.tasks:
        if task.transfer is not None:
            tracks.setdefault(task.transfer.stream, len(tracks))
    track_names = [_event("M", "thread_name", track, args={"name": name}) for name, track in tracks.items()]
    events = [*track_names, *_slices(execution, tracks), *_arrows(execution, tracks), *_memory(execution)]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, separators=(",", ":")) + "\n"


def _slices(execution: Execution, tracks: dict[str, int]) -> Iterator[dict[str, Any]]:
    """Yield the events of computations, transfers and waits."""
    for span in spans(execution):
        task = execution.program.tasks[span.task]
        arguments: dict[str, Any] = {"op": task.op, "module": task.path}
        if span.stream != COMPUTE and task.transfer is not None:
            arguments |= {"axes": ", ".join(task.transfer.axes), "bytes": task.transfer.wire_bytes}
            arguments["exposed us"] = execution.transfers[span.task].exposed * 1e6
        kind = "wait" if span.is_wait else "compute" if span.stream == COMPUTE else "transfer"
        times = {"ts": span.start * 1e6, "dur": (span.end - span.start) * 1e6}
        yield _event("X", span.name, tracks[span.stream], cat=kind, **times, args=arguments)


def _arrows(execution: Execution, tracks: dict[str, int]) -> Iterator[dict[str, Any]]:
    """Yield the two ends of each arrow: it leaves at the start of a transfer and arrives where the wait for it ends."""
    for index, task in enumerate(execution.program.tasks):
        if task.waits_for is None:
            continue
        transfer = execution.program.tasks[task.waits_for].transfer
        if transfer is not None:
            fields = {"cat": "transfer", "id": task.waits_for}
            departure, arrival = execution.transfers[task.waits_for].begin, execution.busy_times(index)[0]
            yield _event("s", task.name, tracks[transfer.stream], ts=departure * 1e6, **fields)
            yield _event("f", task.name, 0, ts=arrival * 1e6, bp="e", **fields)


def _memory(execution: Execution) -> Iterator[dict[str, Any]]:
    """Yield the events of the live bytes, one as each task begins."""
    for index in execution.order:
        yield _event("C", "memory", 0, ts=execution.begin[index] * 1e6, args={"live bytes": execution.live[index]})


def _event(phase: str, name: str, track: int, **fields: Any) -> dict[str, Any]:
    """Return an event in the format of Chrome traces.

    Args:
        phase: "M" metadata, "X" an interval, "s" and "f" the two ends of an arrow, "C" a counter.
    """
    return {"ph": phase, "name": name, "pid": 0, "tid": track, **fields}
