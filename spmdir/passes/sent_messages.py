"""What an op of a program sends, and what of its time that takes."""

from __future__ import annotations

from functools import cache

import attrs
from xdsl.ir import Operation

from spmdir.core.mesh import Mesh
from spmdir.dialects.collectives import Collective
from spmdir.dialects.halo import HaloExchangeOp
from spmdir.dialects.ring import RotationOp
from spmdir.dialects.sent_states import sent_state
from spmdir.dialects.values import global_type
from spmdir.reshard.bucket_cost import collective_terms, joining_seconds
from spmdir.reshard.collective_spec import Sizes
from spmdir.reshard.cost import NEIGHBOURS, Terms, node_count, sends_anything
from spmdir.reshard.cost import terms as terms_of
from spmdir.reshard.topology import Topology

NEIGHBOURLY = (HaloExchangeOp, RotationOp)
"""The ops that send to neighbours."""


@attrs.frozen
class SentMessage:
    """What an op sends.

    Attributes:
        kind: of collective, or the op without `spmd.`.
        axes: of its groups.
        terms: of its time.
        joining: seconds that a rank works longer if what is sent is part of a message of several tensors.
    """

    kind: str
    axes: tuple[str, ...]
    terms: Terms
    joining: float = 0.0


@cache
def _may_send(kind: type[Operation]) -> bool:
    return issubclass(kind, (Collective, *NEIGHBOURLY))


def sent_message(op: Operation, mesh: Mesh, topology: Topology, sent: set[object]) -> SentMessage | None:
    """Return what an op sends; None if it sends nothing.

    Args:
        sent: the joint states that were sent before, which later results with the same state do not send again; that
            of `op` is added.
    """
    if not _may_send(type(op)):
        return None
    if isinstance(op, NEIGHBOURLY):
        if not op.sent(mesh):
            return None
        sizes = Sizes(mesh.group_size(op.axes), 0, 0, op.sent(mesh))
        spent = terms_of(NEIGHBOURS, sizes, node_count(op.axes, mesh), topology)
        return SentMessage(op.name.removeprefix("spmd."), op.axes, spent)
    assert isinstance(op, Collective)
    metas = [global_type(value, mesh) for value, _ in op.pairs]
    members = [
        (step, meta)
        for step, meta in zip(op.steps(mesh), metas, strict=True)
        if meta is not None and sends_anything(step, meta.shape, mesh)
    ]
    state = sent_state(op, mesh)
    if not members or state in sent:
        return None
    if state is not None:
        sent.add(state)
    steps, types = zip(*members, strict=True)
    may_join = len(steps) == 1 and op.spec.may_be_bucketed and not op.IS_START  # several are packed anyway
    joining = joining_seconds(steps[0], types[0], mesh, topology) if may_join else 0.0
    return SentMessage(op.spec.name, steps[0].axes, collective_terms(steps, types, mesh, topology), joining)
