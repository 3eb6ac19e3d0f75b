"""Read traces of torch.profiler: the calls of a rank's program in order, with their measured times.

`torch.profiler.profile(activities=…, record_shapes=True)` and `export_chrome_trace(path)` write such a file. Each
`ProfilerStep#N` of it is one step; a trace without them is one step.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard

import attrs

from spmdir.core.errors import ParseError, printable, shown
from spmdir.core.limits import Limit

COMMUNICATION = "_c10d_functional::"
"""The prefix of calls that start collectives, and of `wait_tensor`."""

WAIT = f"{COMMUNICATION}wait_tensor"
"""The call that waits for a collective."""

KERNELS_WITHOUT_A_CALL = "kernels of no call"
"""The name of a call that stands for the kernels of a step that no call of the trace launched, as in a CUDA graph."""

BYTES = Limit("bytes of a trace", 1 << 30)
"""The largest size of a trace, after decompression."""

_GZIP = b"\x1f\x8b"
_STEP = "ProfilerStep#"
_MOST_MICROSECONDS = 1e18
"""The largest time in a trace. The times of real traces are below 1e16."""

_MOST_NAME = 100
"""The number of characters of a name that are kept."""

_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
"""The categories of events of an accelerator."""

Dims = tuple[tuple[int, ...], ...]
"""The shapes of tensors with at least one dimension."""


@attrs.frozen
class TraceCall:
    """A call of a torch op that no other op makes.

    Attributes:
        name: such as `aten::mm`.
        dims: the shapes of its operands with dimensions; None if shapes were not recorded.
        seconds: the time of its kernels, and of its collective while no kernel runs. On CPU, its duration.
        transfer: the time of its collective, with the wait for other ranks; 0 if there is none.
    """

    name: str
    dims: Dims | None
    seconds: float
    transfer: float = 0.0


@attrs.frozen
class TraceStep:
    """One step: its calls in order, and its seconds from begin to end."""

    calls: tuple[TraceCall, ...]
    seconds: float


@attrs.frozen
class ProfilerTrace:
    """The trace of one rank."""

    file: str
    steps: tuple[TraceStep, ...]


@attrs.frozen
class _Event:
    """A complete event of a trace: one with a begin and a duration.

    Attributes:
        category: such as `cpu_op` or `kernel`.
        thread: the process and the thread or stream that it ran on.
        begin, end: microseconds.
        arguments: its fields, such as `External id` and `Input Dims`.
    """

    category: str
    name: str
    thread: tuple[str, str]
    begin: float
    end: float
    arguments: Mapping[str, Any]

    @property
    def id(self) -> Any:
        """The id that an op shares with the kernels that it launches; None if there is none."""
        id = self.arguments.get("External id")
        return id if isinstance(id, (int, str)) else None

    @property
    def dims(self) -> Dims | None:
        """The shapes of its tensors with dimensions; None if shapes were not recorded."""
        dims = self.arguments.get("Input Dims")
        return None if dims is None else tuple(_shapes(dims))


def read_trace(path: str | os.PathLike[str]) -> ProfilerTrace:
    """Read the trace that `torch.profiler` exported, as JSON, plain or compressed with gzip.

    If the trace has events of an accelerator, the times of calls are those of the kernels that they launch. A
    `ProfilerStep#N` without calls is left out.

    Raises:
        ParseError: the file cannot be read, is not such a trace, or contains no calls of torch ops.
        LimitError: the file is larger than 1 GiB.
    """
    file = os.fspath(path)
    events = list(_read_events(file))
    annotations = [event for event in events if event.category == "user_annotation"]
    communicators = {event.thread for event in annotations if _is_transfer(event.name)}
    ops = [event for event in events if event.category == "cpu_op" and _is_op(event.name)]
    ops = [event for event in ops if event.thread not in communicators]
    if not ops:
        raise ParseError(
            f"'{file}' contains no calls of torch ops; expected a trace of torch.profiler with "
            "activities=[ProfilerActivity.CPU, …], exported during or after a step"
        )
    outermost, caller_of = _find_outermost(ops)
    device_events = [event for event in events if event.category in _DEVICE]
    if device_events:
        calls = _device_calls(outermost, caller_of, device_events)
    else:
        calls = _host_calls(outermost, [event for event in annotations if _is_transfer(event.name)])
    bounds = sorted((event.begin, event.end) for event in annotations if event.name.startswith(_STEP))
    steps: list[TraceStep] = []
    for begin, end in bounds or [(-math.inf, math.inf)]:
        inside = [index for index, event in enumerate(outermost) if begin <= event.begin < end]
        if not inside:
            continue
        step_calls = [calls[index] for index in inside]
        without_call = [event for event in device_events if event.id not in caller_of and begin <= event.begin < end]
        if without_call:
            seconds = sum(event.end - event.begin for event in without_call) / 1e6
            step_calls.append(TraceCall(KERNELS_WITHOUT_A_CALL, None, seconds))
        first_begin = max(begin, outermost[inside[0]].begin)
        ends = [outermost[index].end for index in inside]
        ends += [event.end for event in device_events if first_begin <= event.begin < end]
        steps.append(TraceStep(tuple(step_calls), (max(ends) - first_begin) / 1e6))
    if not steps:
        raise ParseError(f"'{file}' contains no calls of torch ops in its steps; expected a trace of at least one step")
    return ProfilerTrace(file, tuple(steps))


def _read_events(file: str) -> Iterator[_Event]:
    """Yield the complete events of a file, in the order of the file.

    Raises:
        ParseError: the file cannot be read, or is not a trace in the format of Chrome.
        LimitError: the file is too large.
    """
    try:
        with open(file, "rb") as stream:
            is_compressed = stream.read(2) == _GZIP
        with gzip.open(file) if is_compressed else open(file, "rb") as stream:
            data = stream.read(BYTES.most + 1)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise ParseError(f"cannot read the trace '{file}': {reason}; expected JSON, plain or gzip") from None
    BYTES.check(len(data))
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ParseError(f"'{file}' is not JSON: {error}; expected a trace that torch.profiler exported") from None
    events = content.get("traceEvents") if isinstance(content, dict) else None
    if not isinstance(events, list):
        raise ParseError(f"'{file}' has no list `traceEvents`; expected a trace that torch.profiler exported")
    for number, event in enumerate(events):
        if not isinstance(event, dict) or event.get("ph") != "X":
            continue
        begin, duration, arguments = event.get("ts"), event.get("dur", 0), event.get("args")
        if not (_is_number(begin) and _is_number(duration) and duration >= 0):
            raise ParseError(
                f"event {number} of '{file}' has ts = {shown(begin)} and dur = {shown(duration)}; expected numbers of "
                "microseconds"
            )
        thread = (str(event.get("pid")), str(event.get("tid")))
        category, name = str(event.get("cat")), str(event.get("name"))
        yield _Event(
            category,
            printable(name)[:_MOST_NAME],
            thread,
            float(begin),
            float(begin) + float(duration),
            arguments if isinstance(arguments, dict) else {},
        )


def _is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is a finite int or float."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= _MOST_MICROSECONDS


def _is_op(name: str) -> bool:
    """Return whether an event is an op or a generated kernel, and not a region of the program around them."""
    return ("::" in name and not name.startswith("autograd::")) or name.startswith("triton_")


def _is_transfer(name: str) -> bool:
    """Return whether an annotation is a collective of a backend, such as `gloo:all_reduce`."""
    return name.startswith(("gloo:", "nccl:", "mpi:", "ucc:"))


def _shapes(dims: Any) -> Iterator[tuple[int, ...]]:
    """Yield the shapes of tensors with dimensions in `Input Dims`.

    For each argument, `Input Dims` has a shape, or a list of shapes for a list of tensors: [[4, 8], [[2], [3]], []].
    """
    if isinstance(dims, list):
        if dims and all(isinstance(size, int) for size in dims):
            yield tuple(dims)
        else:
            for entry in dims:
                yield from _shapes(entry)


def _find_outermost(ops: Iterable[_Event]) -> tuple[list[_Event], dict[Any, int]]:
    """Return (ops that no other op calls, in order; id of each op → the index of its outermost caller).

    An op that begins before the end of another op of its thread is called by that op. For example, `aten::linear` from
    0 to 9 µs calls `aten::addmm` from 2 to 8 µs. Both ids map to the index of `aten::linear`.
    """
    outermost: list[_Event] = []
    caller_of: dict[Any, int] = {}
    latest: dict[tuple[str, str], int] = {}  # thread → the index of its last outermost op
    for event in sorted(ops, key=lambda event: (event.begin, -event.end)):
        if event.thread not in latest or event.begin >= outermost[latest[event.thread]].end:
            latest[event.thread] = len(outermost)
            outermost.append(event)
        if event.id is not None:
            caller_of[event.id] = latest[event.thread]
    return outermost, caller_of


def _host_calls(ops: Sequence[_Event], annotations: Iterable[_Event]) -> list[TraceCall]:
    """Return the calls of a program on CPU. The time of a call is its duration.

    A transfer is an annotation such as `gloo:all_reduce` of another thread. It belongs to the last collective of the
    same shape that was called before the transfer began and has no transfer yet.
    """
    transfers: dict[Dims | None, list[_Event]] = {}  # shape → its transfers, the earliest one last
    for event in sorted(annotations, key=lambda event: -event.begin):
        transfers.setdefault(_first_shape(event), []).append(event)
    calls = []
    for op in ops:
        transfer = 0.0
        if op.name.startswith(COMMUNICATION) and op.name != WAIT:
            candidates = transfers.get(_first_shape(op), [])
            while candidates and candidates[-1].begin < op.begin:
                candidates.pop()
            if candidates:
                event = candidates.pop()
                transfer = event.end - event.begin
        calls.append(TraceCall(op.name, op.dims, (op.end - op.begin) / 1e6, transfer / 1e6))
    return calls


def _first_shape(event: _Event) -> Dims | None:
    """Return the shape of the first tensor of an event, which is the sent one; None if shapes were not recorded."""
    return event.dims[:1] if event.dims else event.dims


def _device_calls(
    ops: Sequence[_Event], caller_of: Mapping[Any, int], device_events: Iterable[_Event]
) -> list[TraceCall]:
    """Return the calls of a program on an accelerator, with the times of the kernels that they launch.

    The time of a message counts only while no other kernel runs.
    """
    seconds, transfer = [0.0] * len(ops), [0.0] * len(ops)
    kernels, messages = [], []
    for event in sorted(device_events, key=lambda event: event.begin):
        is_message = "nccl" in event.name.lower()
        (messages if is_message else kernels).append(event)
        caller = caller_of.get(event.id)
        if caller is not None and not is_message:
            seconds[caller] += event.end - event.begin
    busy = _busy_intervals(kernels)
    for event in messages:
        caller = caller_of.get(event.id)
        if caller is not None:
            hidden = sum(max(0.0, min(end, event.end) - max(begin, event.begin)) for begin, end in busy)
            transfer[caller] += event.end - event.begin
            seconds[caller] += event.end - event.begin - hidden
    return [TraceCall(op.name, op.dims, seconds[index] / 1e6, transfer[index] / 1e6) for index, op in enumerate(ops)]


def _busy_intervals(events: Iterable[_Event]) -> list[tuple[float, float]]:
    """Return the disjoint intervals (begin, end) in which at least one of the events, sorted by begin, runs."""
    intervals: list[tuple[float, float]] = []
    for event in events:
        if intervals and event.begin <= intervals[-1][1]:
            intervals[-1] = (intervals[-1][0], max(intervals[-1][1], event.end))
        else:
            intervals.append((event.begin, event.end))
    return intervals
