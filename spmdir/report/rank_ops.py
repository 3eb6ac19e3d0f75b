"""What each op of the program of a rank costs in its order: time, what is exposed, what is sent, what is held."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import attrs
from xdsl.dialects.func import FuncOp
from xdsl.ir import BlockArgument, Operation

from spmdir.core.mesh import Mesh
from spmdir.dialects.locations import location_of
from spmdir.dialects.names import text_name
from spmdir.report.op_costs import INPUTS, OpCost
from spmdir.report.rank_step import RankStep
from spmdir.report.schedule import kind_of
from spmdir.report.send_bounds import send_bounds
from spmdir.report.shares import Share
from spmdir.schedule.memory import find_peak
from spmdir.schedule.program import Task, Transfer
from spmdir.schedule.simulate import Execution

_Held = Mapping[str, float]
"""What memory is held for → bytes."""


def rank_ops(step: RankStep, phases: Mapping[Operation, str]) -> list[OpCost]:
    """Return what each task of a step of a rank costs, and what each of its inputs holds.

    A wait is a record beside that of its start, but does not count. What holds memory for several purposes has a record
    more for each further one, which does not count either.
    """
    found, memory, mesh = step.execution, step.memory, step.mesh
    tasks = found.program.tasks
    at_of = {op: at for at, ops in enumerate(step.units) for op in ops}
    held: dict[int | BlockArgument, dict[str, float]] = {}
    for buffer in find_peak(found.program)[2]:
        value, told = memory.values[buffer], memory.buffers[buffer]
        holder = value if isinstance(value, BlockArgument) else at_of[value.owner]  # type: ignore  # an op
        classes = held.setdefault(holder, {})
        classes[told.kind] = classes.get(told.kind, 0.0) + told.bytes
    needed = _needed_bytes(step.function, mesh, tasks, at_of)
    records: list[OpCost] = []
    for at, (task, ops) in enumerate(zip(tasks, step.units, strict=True)):
        record = _record(task, ops[0], found, at, needed.get(at, 0.0), mesh, phases[ops[0]])
        records += _holding(record, held.get(at, {}))
    for argument in step.function.args:
        module = step.paths[argument]
        input_ = OpCost(text_name(argument), INPUTS, None, Share(1), 0.0, 0.0, "memory", module=module)
        records += _holding(input_, held.get(argument, {}))
    return records


def _record(task: Task, op: Operation, found: Execution, at: int, needed: float, mesh: Mesh, phase: str) -> OpCost:
    """Return what a task costs; of what it sends, `needed` bytes are the lower bound."""
    started = task if task.waits_for is None else found.program.tasks[task.waits_for]
    transfer = task.transfer
    exposed = found.transfers[at].exposed if transfer else 0.0
    share = Share(int(task.waits_for is None), transfer.wire_bytes if transfer else 0.0, task.seconds + exposed)
    sending = 0.0 if transfer is None else _least(transfer, needed)
    return OpCost(
        task.name,
        kind_of(started),
        location_of(op),
        share,
        task.kernel_cost.flops,
        task.kernel_cost.traffic,
        "network" if started.transfer and not task.kernel_cost.flops else task.kernel_cost.bound,
        _whole(started.transfer.axes, mesh) if started.transfer else (),
        task.path,
        phase,
        exposed,
        transfer.seconds if transfer else 0.0,
        task.kernel_cost.ideal_seconds + sending,
    )


def _least(transfer: Transfer, needed: float) -> float:
    """Return how long a transfer would take that sent `needed` bytes at full bandwidth."""
    return max(transfer.intra, transfer.inter) * min(1.0, needed / transfer.wire_bytes) if transfer.wire_bytes else 0.0


def _whole(axes: Sequence[str], mesh: Mesh) -> tuple[str, ...]:
    """Return axes in mesh order, sub-axes as their axes."""
    roots = {mesh.root_axis(axis) for axis in axes}
    return tuple(axis for axis in mesh.axis_names if axis in roots)


def _needed_bytes(
    function: FuncOp, mesh: Mesh, tasks: Sequence[Task], at_of: Mapping[Operation, int]
) -> dict[int, float]:
    """Return task → the lower bound of what it sends: that of a value is for all that reshard it, by what they send."""
    found: dict[int, float] = {}
    for ops, bound in send_bounds(function, mesh):
        sent = {at_of[op]: task.transfer.wire_bytes for op in ops if (task := tasks[at_of[op]]).transfer}
        every = sum(sent.values())
        for at, wire in sent.items() if every else ():
            found[at] = found.get(at, 0.0) + (wire if bound is None else bound * wire / every)
    return found


def _holding(record: OpCost, held: _Held) -> Iterator[OpCost]:
    """Yield a record with what it holds, one for each purpose."""
    purposes = sorted(held.items(), key=lambda entry: -entry[1])
    kind, size = purposes[0] if purposes else ("", 0.0)
    yield attrs.evolve(record, held=size, held_for=kind)
    for kind, size in purposes[1:]:
        yield OpCost(
            record.name, record.kind, record.location, Share(), 0.0, 0.0, record.bound, record.axes, record.module,
            record.phase, held=size, held_for=kind,
        )  # fmt: skip
