"""What each collective of a program costs; those that send nothing, such as slice, are among what computes."""

from __future__ import annotations

import math
from collections.abc import Iterator

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation

from spmdir.core.mesh import Mesh
from spmdir.core.tensor import TensorMeta
from spmdir.dialects.collectives import Collective
from spmdir.dialects.halo import HaloExchangeOp
from spmdir.dialects.names import text_name
from spmdir.dialects.ring import RotationOp
from spmdir.dialects.sent_states import sent_state
from spmdir.dialects.syntax.context import location_of
from spmdir.dialects.values import global_type
from spmdir.report.op_costs import MEASURED, OpCost
from spmdir.report.shares import Share
from spmdir.reshard.collective_spec import Sizes
from spmdir.reshard.cost import NEIGHBOURS, Cost, cost, node_count, sends_anything, step_cost
from spmdir.reshard.steps import Step
from spmdir.reshard.topology import Topology

NEIGHBOURLY = (HaloExchangeOp, RotationOp)
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
            state, members = sent_state(op, mesh), list(_members(op, mesh))
            if not members or state in sent:
                continue
            if state is not None:
                sent.add(state)
            costs = [step_cost(step, meta.shape, meta.dtype.itemsize, mesh, topology) for step, meta in members]
            wire, seconds = math.fsum(one.wire_bytes for one in costs), math.fsum(one.seconds for one in costs)
            measured = " ".join(dict.fromkeys(one.measured for one in costs if one.measured))
            yield _sent(op, op.spec.name, members[0][0].axes, Cost(wire, seconds, measured), topology)


def _members(op: Collective, mesh: Mesh) -> Iterator[tuple[Step, TensorMeta]]:
    """Yield each step of a collective that sends anything, with the global type of what it is done to."""
    for (value, _), step in zip(op.pairs, op.steps(mesh), strict=True):
        meta = global_type(value, mesh)
        if meta is not None and sends_anything(step, meta.shape, mesh):
            yield step, meta


def _sent(op: Operation, kind: str, axes: tuple[str, ...], spent: Cost, topology: Topology) -> OpCost:
    share = Share(1, spent.wire_bytes, spent.seconds, (spent.measured or topology.name,))
    bound = MEASURED if spent.measured else "network"
    return OpCost(text_name(op.results[0]), kind, location_of(op), share, 0.0, 0.0, bound, axes)
