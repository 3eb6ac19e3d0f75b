"""Match the calls of profiler traces to the ops of a rank's program, to compare measured with modelled times.

Calls and ops are sequences in the same order. A longest common subsequence of (op name, operand shapes) is
matched; in a trace without shapes, of names. The remaining calls between two matches pack or unpack a message, or are
the torch calls of a local op:

    program              calls
    aten.mul             aten::mul               matched
    spmd.all_gather_start                        \\
                         aten::contiguous        packs the message of all_gather_start
                         _c10d_…::all_gather…    matched
    aten.sin             aten::sin               matched
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

import attrs
from xdsl.ir import Operation

from spmdir.core.errors import SpmdirError
from spmdir.core.html_text import ShownAsText
from spmdir.core.mesh import Mesh
from spmdir.core.placement.literals import print_arguments
from spmdir.core.time_text import milliseconds
from spmdir.dialects.aten import AtenOp
from spmdir.dialects.attributes import meta_of
from spmdir.dialects.collectives import Collective, WaitOp
from spmdir.dialects.ring_ops import RotationOp
from spmdir.dialects.row_exchanges import ExpertExchangeOp
from spmdir.report.profiler_trace import COMMUNICATION, WAIT, Dims, ProfilerTrace, TraceCall
from spmdir.report.rank_step import RankStep
from spmdir.report.schedule import kind_of
from spmdir.reshard.collectives import collectives
from spmdir.reshard.cost import node_count
from spmdir.reshard.measured_times import CostLine, Costs, op_text
from spmdir.schedule.program import Task

_MESSAGE_KEYS = (_START_KEY, _WAIT_KEY) = ("start", "wait")
"""The keys of calls that start a collective, or wait for one."""

_EXCHANGE = "all_to_all"
"""The collective of torch as which other collectives and local steps are emitted."""

_FUNCTIONAL = ("all_gather", "all_reduce", "reduce_scatter", _EXCHANGE)
"""The collectives of torch."""

_NO_CALL = ""
"""The key of a task that has no call of its own in a trace."""

MOST_CALLS = 40
"""The number of calls that a local op, or the packing of a message, makes at most."""

MOST_NAMED = 3
"""How many unmatched calls and missing ops the text lists."""


@attrs.frozen
class MeasuredStep(ShownAsText):
    """The measured times of a step, as medians over all steps and ranks.

    Attributes:
        seconds: for each task, the time of its kernels and of its exposed communication. The time of a wait counts in
            its start.
        transfers: for each task, the time of its transfer: the shortest of all ranks. The last rank to arrive waits for
            no other, so its time is that of the transfer alone.
        step_seconds: from the first call of a step to the end of its last kernel.
        skew: seconds by which transfers are longer than the shortest of all ranks: the wait for ranks that arrive late.
        attributed: the part of the time of all calls that is in `seconds`.
        unmatched: (name of a call that matches no op, its seconds), the longest first.
        missing: the names of torch ops, except views, to which no call belongs.
        ranks: the number of traces.
        steps: the number of steps in all traces together.
        refitted: the measured times as a table for `propagate{costs=…}`. A line is the median over all ops with these
            operands, or over all collectives of this size. Views have no line.
    """

    seconds: tuple[float, ...]
    transfers: tuple[float, ...]
    step_seconds: float
    skew: float
    attributed: float
    unmatched: tuple[tuple[str, float], ...]
    missing: tuple[str, ...]
    ranks: int
    steps: int
    refitted: Costs = attrs.field(repr=False)

    def __str__(self) -> str:
        """Return the measured time in one line, with the calls and ops that match nothing."""
        text = (
            f"measured step of a rank {milliseconds(self.step_seconds)} ms, the median of {self.steps} steps on "
            f"{self.ranks} ranks: {self.attributed:.1%} of the time of calls belongs to ops"
        )
        if self.unmatched:
            calls = ", ".join(f"{name} {milliseconds(spent)} ms" for name, spent in self.unmatched[:MOST_NAMED])
            text += f"; not to ops: {calls}"
        if self.missing:
            text += f"; ops without calls: {len(self.missing)}, such as {', '.join(self.missing[:MOST_NAMED])}"
        return text + (f"; waits for late ranks {milliseconds(self.skew)} ms" if self.ranks > 1 else "")


@attrs.frozen
class _Key:
    """A call that the program of a rank is expected to make.

    Attributes:
        task: the task that makes it.
        name: its name in a trace, one of `_MESSAGE_KEYS`, or `_NO_CALL`.
        detail: the shapes of its operands, or the kind of the collective that it starts.
    """

    task: int
    name: str
    detail: Dims | str | None = None


def measured_step(step: RankStep, traces: Sequence[ProfilerTrace]) -> MeasuredStep:
    """Return the measured times of the tasks of a step.

    The calls of each traced step are matched with the tasks. The time of a task is the median over all traced steps of
    all ranks. The time of its transfer is the shortest of the medians of the ranks.

    Args:
        step: the modelled step, in the order in which the traced program ran.
        traces: one trace for each measured rank.

    Raises:
        SpmdirError: a trace has no call of this program.
    """
    tasks, keys = step.execution.program.tasks, list(_program_keys(step))
    samples_of_ranks = [[_sum_calls(tasks, keys, trace_step.calls) for trace_step in trace.steps] for trace in traces]
    for trace, rank_samples in zip(traces, samples_of_ranks, strict=True):
        if not any(sample.matched_tasks for sample in rank_samples):
            raise SpmdirError(
                f"no call of '{trace.file}' belongs to this program; expected a trace of the program of one rank that "
                "lower_to_fx, parallelize or shard_module runs, and the text that it was lowered from"
            )
    samples = [sample for rank_samples in samples_of_ranks for sample in rank_samples]
    torch_ops = {key.task for key in keys if key.name not in (_NO_CALL, *_MESSAGE_KEYS) and tasks[key.task].seconds}
    missing = torch_ops.difference(*[sample.matched_tasks for sample in samples])
    unmatched: dict[str, float] = {}  # name of a call → its seconds in an average step
    for call in [call for sample in samples for call in sample.unmatched]:
        if call.seconds:
            unmatched[call.name] = unmatched.get(call.name, 0.0) + call.seconds / len(samples)
    total = sum(call.seconds for trace in traces for trace_step in trace.steps for call in trace_step.calls)
    transfers_of_ranks = [_medians([sample.transfers for sample in rank_samples]) for rank_samples in samples_of_ranks]
    shortest = [min(seconds_of_ranks) for seconds_of_ranks in zip(*transfers_of_ranks, strict=True)]
    mean = [statistics.mean(seconds_of_ranks) for seconds_of_ranks in zip(*transfers_of_ranks, strict=True)]
    # A task to which no call belongs in any sample took 0.0 seconds.
    seconds = tuple(
        statistics.median([sample.seconds[task] for sample in samples if task in sample.matched_tasks] or [0.0])
        for task in range(len(tasks))
    )
    return MeasuredStep(
        seconds=seconds,
        transfers=tuple(shortest),
        step_seconds=statistics.median(trace_step.seconds for trace in traces for trace_step in trace.steps),
        skew=sum(mean) - sum(shortest),
        attributed=1 - sum(unmatched.values()) * len(samples) / total if total else 1.0,
        unmatched=tuple(sorted(unmatched.items(), key=lambda entry: -entry[1])),
        missing=tuple(tasks[index].name for index in sorted(missing)),
        ranks=len(traces),
        steps=len(samples),
        refitted=_refit_costs(step, seconds, shortest),
    )


def _medians(rows: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Return the median of each column."""
    return tuple(statistics.median(column) for column in zip(*rows, strict=True))


@attrs.frozen
class _Sample:
    """One measured step of one rank.

    Attributes:
        seconds, transfers: for each task, as in `MeasuredStep`, but of this step and rank alone.
        matched_tasks: the tasks to which a call belongs, and the starts of waits to which a call belongs.
        unmatched: the calls that belong to no task.
    """

    seconds: Sequence[float]
    transfers: Sequence[float]
    matched_tasks: frozenset[int]
    unmatched: Sequence[TraceCall]


def _sum_calls(tasks: Sequence[Task], keys: Sequence[_Key], calls: Sequence[TraceCall]) -> _Sample:
    """Return the measured times of one step of one rank: for each task, the sum over its calls."""
    seconds, transfers = [0.0] * len(tasks), [0.0] * len(tasks)
    matched_tasks: set[int] = set()
    unmatched: list[TraceCall] = []
    for call, owner in zip(calls, _find_owners(keys, calls), strict=True):
        if owner is None:
            unmatched.append(call)
            continue
        transfers[owner] += call.transfer
        matched_tasks.add(owner)
        start = tasks[owner].waits_for
        if start is None:
            seconds[owner] += call.seconds
        else:  # the time of a wait counts in its start
            seconds[start] += call.seconds
            matched_tasks.add(start)
    return _Sample(seconds, transfers, frozenset(matched_tasks), unmatched)


def _program_keys(step: RankStep) -> Iterator[_Key]:
    """Yield the calls that the program makes, in order. A task without calls of its own yields a key without a name."""
    for task, ops in enumerate(step.units):
        task_keys = [_Key(task, *name_and_detail) for op in ops for name_and_detail in _keys_of(op)]
        yield from task_keys or [_Key(task, _NO_CALL)]


def _keys_of(op: Operation) -> Iterator[tuple[str, Dims | str | None]]:
    """Yield (name, detail) of each call that an op makes, in the form of calls in a trace.

    `aten.mm` makes one call, ("aten::mm", the shapes of its operands). An all-reduce makes two: ("start",
    "all_reduce") and ("wait", None).
    """
    if isinstance(op, AtenOp):
        namespace, name, *_ = op.name.split(".")
        metas = [meta_of(operand.type) for operand in op.operands]
        yield f"{namespace}::{name}", tuple(meta.shape for meta in metas if meta is not None and meta.shape)
    elif isinstance(op, WaitOp):
        yield _WAIT_KEY, None
    elif isinstance(op, (Collective, RotationOp, ExpertExchangeOp)):
        kind = op.name.removeprefix("spmd.").removesuffix("_start")
        yield _START_KEY, kind if kind in _FUNCTIONAL else _EXCHANGE
        if not op.IS_START:
            yield _WAIT_KEY, None


def _call_key(call: TraceCall) -> tuple[str, Dims | str | None]:
    """Return the name and detail of a call, as in `_Key`."""
    if call.name == WAIT:
        return _WAIT_KEY, None
    if call.name.startswith(COMMUNICATION):
        function = call.name.removeprefix(COMMUNICATION)
        return _START_KEY, next((kind for kind in _FUNCTIONAL if function.startswith(kind)), _EXCHANGE)
    return call.name, call.dims


def _find_owners(keys: Sequence[_Key], calls: Sequence[TraceCall]) -> list[int | None]:
    """Return for each call the task that it belongs to; None if it belongs to no task.

    If the program makes the calls mm and add, and the trace has mm, view and add, then mm and add match, and view is
    between two matches: it belongs to a local op or a message next to it, if there is one.

    Args:
        keys: the calls that the program makes, in order.
    """
    owners: list[int | None] = [None] * len(calls)
    has_shapes = any(call.dims is not None for call in calls)
    expected = [(key.name, key.detail if has_shapes or key.name in _MESSAGE_KEYS else None) for key in keys]
    traced = [_call_key(call) for call in calls]
    # First match calls in the order of the program, then equal calls at other positions, then the calls between these.
    gaps = list(_match(keys, expected, traced, owners))
    free_keys = [key for key_gap, _ in gaps for key in key_gap]
    _match_elsewhere(keys, expected, traced, owners, free_keys)
    for key_gap, call_gap in gaps:
        _attribute(keys, [name for name, _ in traced], owners, key_gap, call_gap)
    return owners


def _match_elsewhere(
    keys: Sequence[_Key],
    expected: Sequence[object],
    traced: Sequence[object],
    owners: list[int | None],
    free_keys: list[int],
) -> None:
    """Match the remaining keys with equal calls at any position, in order, and remove them from `free_keys`.

    This is needed because `shard_module` runs the forward ops of a program before the backward ops, whatever their
    order in the text.

    Args:
        expected: for each key, the value to compare.
        traced: for each call, the value to compare.
        owners: for each call, its task. Updated.
        free_keys: the indices of the keys without a call. Updated.
    """
    free_calls: dict[object, list[int]] = {}
    # The lists are reversed, so `pop` below returns the first remaining call.
    for call in reversed(range(len(owners))):
        if owners[call] is None:
            free_calls.setdefault(traced[call], []).append(call)
    for index in [*free_keys]:
        candidates = free_calls.get(expected[index], [])
        if candidates and keys[index].name != _NO_CALL:
            owners[candidates.pop()] = keys[index].task
            free_keys.remove(index)


def _match(
    keys: Sequence[_Key],
    expected: Sequence[object],
    traced: Sequence[object],
    owners: list[int | None],
) -> Iterator[tuple[range, range]]:
    """Match keys and calls in order, write the owners of the matched calls, and yield the ranges between the matches.

    Args:
        expected, traced, owners: as for `_match_elsewhere`.

    Yields: (range of keys, range of calls) before, between and after the matches; either may be empty.
    """
    key, call = 0, 0
    for block in SequenceMatcher(None, expected, traced, autojunk=False).get_matching_blocks():
        yield range(key, block.a), range(call, block.b)
        for offset in range(block.size):
            owners[block.b + offset] = keys[block.a + offset].task
        key, call = block.a + block.size, block.b + block.size


def _attribute(
    keys: Sequence[_Key], names: Sequence[str], owners: list[int | None], key_gap: range, call_gap: range
) -> None:
    """Write the owner of the calls between two matches, in this order of preference:

    1. the first local op or collective between the matches;
    2. the collective of the match before: the calls unpack its message;
    3. the collective of the match after: the calls pack its message.

    If there is none of these, the calls belong to no op.

    Args:
        names: the names of the traced calls.
        owners: for each call, its task. Updated.
    """
    if not (call_gap.start > 0 and call_gap.stop < len(owners)):
        return  # calls before and after the program
    near = [keys[index] for index in (*key_gap, key_gap.start - 1, key_gap.stop) if 0 <= index < len(keys)]
    candidates = [key for key in near if key.name in (_NO_CALL, *_MESSAGE_KEYS)]
    if len(call_gap) > MOST_CALLS * len(candidates):
        return  # calls of something else, such as an optimizer
    for call in call_gap:
        if owners[call] is None and names[call] not in _MESSAGE_KEYS:
            owners[call] = candidates[0].task


def _refit_costs(step: RankStep, seconds: Sequence[float], transfers: Sequence[float]) -> Costs:
    """Return the table of measured times: a line for each different op and collective with a measured time.

    Views, and ops of local forms of several ops, have no line.

    Args:
        seconds, transfers: for each task, as in `MeasuredStep`.
    """
    seconds_of_entry: dict[str, list[float]] = {}
    tasks = step.execution.program.tasks
    for task, ops, kernel_seconds, transfer_seconds in zip(tasks, step.units, seconds, transfers, strict=True):
        op = ops[0]
        if isinstance(op, AtenOp):
            is_single_kernel = task.seconds > 0 and len(ops) == 1
            entry, measured = _op_entry(op) if is_single_kernel else None, kernel_seconds
        else:
            entry, measured = _collective_entry(task, step.mesh), transfer_seconds
        if entry is not None and measured > 0:
            seconds_of_entry.setdefault(entry, []).append(measured)
    lines = [CostLine(entry, statistics.median(times)) for entry, times in seconds_of_entry.items()]
    return Costs("", tuple(lines))


def _op_entry(op: AtenOp) -> str:
    """Return the text of an op in a line of costs: its name, the types of its operands and its literals."""
    metas = [meta for meta in map(meta_of, (operand.type for operand in op.operands)) if meta is not None]
    arguments = print_arguments(op.call().arguments)
    return op_text(op.name, metas) + ("" if arguments == "{}" else f" {arguments}")


def _collective_entry(task: Task, mesh: Mesh) -> str | None:
    """Return the text of a collective in a line of costs; None if costs have no lines for its kind."""
    transfer, kind = task.transfer, kind_of(task)
    if transfer is None or not transfer.wire_bytes or kind not in [spec.name for spec in collectives()]:
        return None
    nodes = node_count(transfer.axes, mesh)
    on_nodes = f" on {nodes} nodes" if nodes > 1 else ""
    return f"{kind} {mesh.group_size(transfer.axes)} ranks{on_nodes} {round(transfer.wire_bytes)} bytes"
