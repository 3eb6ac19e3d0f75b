"""The cost of each op of a local program in its order: time, exposed communication, bytes sent, live memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import attrs
from xdsl.dialects.func import FuncOp
from xdsl.ir import BlockArgument, Operation

from spmdir.core.mesh import Mesh
from spmdir.dialects.locations import location_of
from spmdir.dialects.names import text_name
from spmdir.report.op_costs import INPUTS, OpCost
from spmdir.report.op_sums import Share
from spmdir.report.rank_step import RankStep
from spmdir.report.schedule import kind_of
from spmdir.report.send_bounds import send_bounds
from spmdir.schedule.memory import find_peak
from spmdir.schedule.program import Task, Transfer
from spmdir.schedule.simulate import Execution

_BytesByKind = Mapping[str, float]
"""Kind of memory → bytes."""


def rank_ops(
    step: RankStep, phases: Mapping[Operation, str], measured_seconds: Sequence[float] | None = None
) -> list[OpCost]:
    """Return the cost of each task of a step of a rank, and the memory of each input.

    A wait has a record, but only its start counts as an op. A task with memory of several kinds has one more record for
    each further kind. These records do not count as ops either.

    Args:
        measured_seconds: for each task, its time in a measured step.
    """
    execution, memory, mesh = step.execution, step.memory, step.mesh
    tasks = execution.program.tasks
    task_of = {op: index for index, ops in enumerate(step.units) for op in ops}
    # Task or argument → kind of memory → the bytes that it holds at the peak.
    held_by: dict[int | BlockArgument, dict[str, float]] = {}
    for buffer in find_peak(execution.program)[2]:
        value, live = memory.values[buffer], memory.buffers[buffer]
        holder = value if isinstance(value, BlockArgument) else task_of[value.owner]  # type: ignore  # an op
        classes = held_by.setdefault(holder, {})
        classes[live.kind] = classes.get(live.kind, 0.0) + live.bytes
    needed = _needed_bytes(step.function, mesh, tasks, task_of)
    records: list[OpCost] = []
    for index, (task, ops) in enumerate(zip(tasks, step.units, strict=True)):
        record = _record(task, ops[0], execution, index, needed.get(index, 0.0), mesh, phases[ops[0]])
        if measured_seconds is not None:
            record = attrs.evolve(record, measured=measured_seconds[index])
        records += _with_memory(record, held_by.get(index, {}))
    for argument in step.function.args:
        module = step.paths[argument]
        input_ = OpCost(text_name(argument), INPUTS, None, Share(1), 0.0, 0.0, "memory", module=module)
        records += _with_memory(input_, held_by.get(argument, {}))
    return records


def _record(
    task: Task, op: Operation, execution: Execution, index: int, needed: float, mesh: Mesh, phase: str
) -> OpCost:
    """Return the cost of a task, without its memory.

    A wait has the kind and the axes of the transfer that it waits for, and counts 0 ops. The exposed time counts in the
    record of the start.

    Args:
        op: the first op of the task.
        index: the index of the task.
        needed: the lower bound of the bytes that the task sends.
    """
    start_task = task if task.waits_for is None else execution.program.tasks[task.waits_for]
    transfer = task.transfer
    exposed = execution.transfers[index].exposed if transfer else 0.0
    share = Share(int(task.waits_for is None), transfer.wire_bytes if transfer else 0.0, task.seconds + exposed)
    least_transfer_seconds = 0.0 if transfer is None else _minimum_seconds(transfer, needed)
    return OpCost(
        name=task.name,
        kind=kind_of(start_task),
        location=location_of(op),
        share=share,
        flops=task.kernel_cost.flops,
        traffic=task.kernel_cost.traffic,
        bound="network" if start_task.transfer and not task.kernel_cost.flops else task.kernel_cost.bound,
        axes=_root_axes(start_task.transfer.axes, mesh) if start_task.transfer else (),
        module=task.path,
        phase=phase,
        exposed=exposed,
        transfer=transfer.seconds if transfer else 0.0,
        least=task.kernel_cost.ideal_seconds + least_transfer_seconds,
    )


def _minimum_seconds(transfer: Transfer, needed: float) -> float:
    """Return the seconds of a transfer of only `needed` bytes at full bandwidth."""
    return max(transfer.intra, transfer.inter) * min(1.0, needed / transfer.wire_bytes) if transfer.wire_bytes else 0.0


def _root_axes(axes: Sequence[str], mesh: Mesh) -> tuple[str, ...]:
    """Return axes in mesh order, with sub-axes replaced by their axes."""
    roots = {mesh.root_axis(axis) for axis in axes}
    return tuple(axis for axis in mesh.axis_names if axis in roots)


def _needed_bytes(
    function: FuncOp, mesh: Mesh, tasks: Sequence[Task], task_of: Mapping[Operation, int]
) -> dict[int, float]:
    """Return task → the lower bound of the bytes that it sends.

    The bound of a value is divided among the collectives that reshard it, in proportion to the bytes that they send. A
    bound of 30 MB for two collectives that send 10 MB and 50 MB counts as 5 MB and 25 MB.
    """
    bytes_of_task: dict[int, float] = {}
    for ops, bound in send_bounds(function, mesh):
        sent: dict[int, float] = {}
        for op in ops:
            transfer = tasks[task_of[op]].transfer
            if transfer is not None:
                sent[task_of[op]] = transfer.wire_bytes
        total = sum(sent.values())
        if not total:
            continue
        for task_index, wire_bytes in sent.items():
            needed = wire_bytes if bound is None else bound * wire_bytes / total
            bytes_of_task[task_index] = bytes_of_task.get(task_index, 0.0) + needed
    return bytes_of_task


def _with_memory(record: OpCost, bytes_by_kind: _BytesByKind) -> Iterator[OpCost]:
    """Yield a record with its memory, and one more record for each further kind of memory."""
    kinds = sorted(bytes_by_kind.items(), key=lambda entry: -entry[1])
    kind, size = kinds[0] if kinds else ("", 0.0)
    yield attrs.evolve(record, held_bytes=size, memory_class=kind)
    for kind, size in kinds[1:]:
        yield OpCost(
            record.name, record.kind, record.location, Share(), 0.0, 0.0, record.bound, record.axes, record.module,
            record.phase, held_bytes=size, memory_class=kind,
        )  # fmt: skip
