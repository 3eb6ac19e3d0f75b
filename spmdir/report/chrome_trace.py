"""A program as it runs, as the JSON that Perfetto and chrome://tracing show.

Track 0 is the accelerator, and each stream has one. Arrows lead from a transfer to the wait for it, and a counter is
the live memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from spmdir.report.timeline_text import COMPUTE, spans
from spmdir.schedule.simulate import Execution


def chrome_trace(found: Execution) -> str:
    """Return the JSON text; times are microseconds."""
    tracks = {COMPUTE: 0}
    for task in found.program.tasks:
        if task.transfer is not None:
            tracks.setdefault(task.transfer.stream, len(tracks))
    named = [_event("M", "thread_name", track, args={"name": name}) for name, track in tracks.items()]
    events = [*named, *_slices(found, tracks), *_arrows(found, tracks), *_memory(found)]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, separators=(",", ":")) + "\n"


def _slices(found: Execution, tracks: dict[str, int]) -> Iterator[dict[str, Any]]:
    for span in spans(found):
        task = found.program.tasks[span.task]
        told: dict[str, Any] = {"op": task.op, "module": task.path}
        if span.stream != COMPUTE and task.transfer is not None:
            told |= {"axes": ", ".join(task.transfer.axes), "bytes": task.transfer.wire_bytes}
            told["exposed us"] = found.transfers[span.task].exposed * 1e6
        kind = "wait" if span.is_wait else "compute" if span.stream == COMPUTE else "transfer"
        times = {"ts": span.first * 1e6, "dur": (span.last - span.first) * 1e6}
        yield _event("X", span.name, tracks[span.stream], cat=kind, **times, args=told)


def _arrows(found: Execution, tracks: dict[str, int]) -> Iterator[dict[str, Any]]:
    """Yield the two ends of each arrow: it leaves at the start of a transfer and arrives where the wait for it ends."""
    for at, task in enumerate(found.program.tasks):
        started = None if task.waits_for is None else found.program.tasks[task.waits_for].transfer
        if task.waits_for is not None and started is not None:
            given = {"cat": "transfer", "id": task.waits_for}
            yield _event(
                "s", task.name, tracks[started.stream], ts=found.transfers[task.waits_for].begin * 1e6, **given
            )
            yield _event("f", task.name, 0, ts=found.busy_times(at)[0] * 1e6, bp="e", **given)


def _memory(found: Execution) -> Iterator[dict[str, Any]]:
    for at in found.order:
        yield _event("C", "memory", 0, ts=found.begin[at] * 1e6, args={"live bytes": found.live[at]})


def _event(phase: str, name: str, track: int, **given: Any) -> dict[str, Any]:
    return {"ph": phase, "name": name, "pid": 0, "tid": track, **given}
