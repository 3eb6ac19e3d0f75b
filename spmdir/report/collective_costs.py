"""What each collective of a program costs; those that send nothing, such as slice, are among what computes."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation

from spmdir.core.mesh import Mesh
from spmdir.dialects.collectives import Collective
from spmdir.dialects.halo import HaloExchangeOp
from spmdir.dialects.names import text_name
from spmdir.dialects.ring import RotateOp
from spmdir.dialects.sent_states import sent_state
from spmdir.dialects.syntax.context import location_of
from spmdir.dialects.values import global_type
from spmdir.report.op_costs import MEASURED, OpCost
from spmdir.report.shares import Share
from spmdir.reshard.collective_spec import Sizes
from spmdir.reshard.cost import NEIGHBOURS, Cost, cost, node_count, sends_anything, step_cost
from spmdir.reshard.topology import Topology

NEIGHBOURLY = (HaloExchangeOp, RotateOp)
"""The ops that send to neighbours."""


def collective_costs(function: FuncOp, mesh: Mesh, topology: Topology, sent: set[object]) -> Iterator[OpCost]:
    """Yield what each collective of a function costs that sends anything.

    Args:
        sent: the joint states that were sent before, which later results with the same state do not send again; those
            of this function are added.
    """
    for op in function.body.block.ops:
        if isinstance(op, NEIGHBOURLY):
            if op.sent(mesh):
                sizes = Sizes(mesh.group_size(op.axes), 0, 0, op.sent(mesh))
                spent = cost(NEIGHBOURS, sizes, node_count(op.axes, mesh), topology)
                yield _sent(op, op.name.removeprefix("spmd."), op.axes, spent, topology)
        elif isinstance(op, Collective):
            step, meta = op.step(mesh), global_type(op.operands[0], mesh)
            state = sent_state(op, mesh)
            if meta is None or state in sent or not sends_anything(step, meta.shape, mesh):
                continue
            if state is not None:
                sent.add(state)
            spent = step_cost(step, meta.shape, meta.dtype.itemsize, mesh, topology)
            yield _sent(op, step.kind, step.axes, spent, topology)


def _sent(op: Operation, kind: str, axes: tuple[str, ...], spent: Cost, topology: Topology) -> OpCost:
    share = Share(1, spent.wire_bytes, spent.seconds, (spent.measured or topology.name,))
    bound = MEASURED if spent.measured else "network"
    return OpCost(text_name(op.results[0]), kind, location_of(op), share, 0.0, 0.0, bound, axes)
