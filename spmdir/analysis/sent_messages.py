"""Compute the message that each op of a localized program sends, and the time of the message."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache

import attrs
from xdsl.ir import Operation

from spmdir.core.mesh import Mesh
from spmdir.dialects.collectives import Collective
from spmdir.dialects.deadlock_check import LOCAL_MESSAGES
from spmdir.dialects.halo import HaloExchangeOp
from spmdir.dialects.ring_ops import RotationOp
from spmdir.dialects.row_exchanges import ExpertExchangeOp
from spmdir.dialects.sent_states import sent_state
from spmdir.dialects.values import global_type
from spmdir.reshard.bucket_cost import added_bucket_seconds, collective_terms
from spmdir.reshard.clause import START
from spmdir.reshard.cost import Terms, inner_terms, node_count, sends_anything
from spmdir.reshard.topology import Topology


@attrs.frozen
class SentMessage:
    """The message of an op.

    Attributes:
        kind: the kind of the collective, or the name of the op without `spmd.`.
        axes: the mesh axes of its groups.
        terms: the terms of its time.
        packing_seconds: accelerator time of the copies into and out of a bucket, if the tensor is a member of one.
    """

    kind: str
    axes: tuple[str, ...]
    terms: Terms
    packing_seconds: float = 0.0


@cache
def _may_send(kind: type[Operation]) -> bool:
    """Return whether ops of this class may send a message: collectives, and some ops of local forms."""
    return issubclass(kind, (Collective, *LOCAL_MESSAGES))


class SentMessages:
    """The messages of the ops of a program.

    A packed state is sent once. Later collectives with the same state send nothing. So `of` must be called once for
    each op, in program order.
    """

    def __init__(self, mesh: Mesh, topology: Topology):
        self.mesh, self.topology = mesh, topology
        self._sent: set[object] = set()
        self._messages: dict[Hashable, SentMessage | None] = {}

    def of(self, op: Operation) -> SentMessage | None:
        """Return the message of an op; None if it sends nothing.

        Ops must be passed in program order: of the collectives that send one state of a packed placement, only the
        first sends it.
        """
        if not _may_send(type(op)):
            return None
        if isinstance(op, LOCAL_MESSAGES):
            return self._in_local_form(op)
        assert isinstance(op, Collective)
        key = op.likeness(self.mesh)
        if key not in self._messages:
            self._messages[key] = self._message(op)
        message, state = self._messages[key], sent_state(op, self.mesh)
        if message is None or state in self._sent:
            return None
        if state is not None:
            self._sent.add(state)
        return message

    def _in_local_form(self, op: HaloExchangeOp | RotationOp | ExpertExchangeOp) -> SentMessage | None:
        """Return the message of an op of a local form; None if it sends nothing."""
        if not op.sent(self.mesh):
            return None
        ranks, nodes = self.mesh.group_size(op.axes), node_count(op.axes, self.mesh)
        name = op.name.removesuffix(START)
        terms = inner_terms(name, op.sent(self.mesh), ranks, nodes, self.topology)
        return SentMessage(name.removeprefix("spmd."), op.axes, terms)

    def _message(self, op: Collective) -> SentMessage | None:
        """Return the message of a collective, as if its packed state was not sent before; None if it sends nothing.

        A bucket contains only the members that send something.
        """
        metas = [global_type(value, self.mesh) for value, _ in op.pairs]
        members = [
            (step, meta)
            for step, meta in zip(op.steps(self.mesh), metas, strict=True)
            if meta is not None and sends_anything(step, meta.shape, self.mesh)
        ]
        if not members:
            return None
        steps, member_metas = zip(*members, strict=True)
        terms = collective_terms(steps, member_metas, self.mesh, self.topology)
        packing_seconds = 0.0
        if len(steps) == 1 and op.spec.may_be_bucketed and not op.IS_START:  # several members are packed anyway
            packing_seconds = added_bucket_seconds(steps[0], member_metas[0], self.mesh, self.topology)
        return SentMessage(op.spec.name, steps[0].axes, terms, packing_seconds)
