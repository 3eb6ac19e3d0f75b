"""What an op of a program sends, and what of its time that takes."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache

import attrs
from xdsl.ir import Operation

from spmdir.core.mesh import Mesh
from spmdir.dialects.collectives import Collective
from spmdir.dialects.halo import HaloExchangeOp
from spmdir.dialects.ring import RotationOp
from spmdir.dialects.sent_states import sent_state
from spmdir.dialects.values import global_type
from spmdir.reshard.bucket_cost import added_bucket_seconds, collective_terms
from spmdir.reshard.cost import NEIGHBOURS, Terms, node_count, sends_anything
from spmdir.reshard.cost import terms as terms_of
from spmdir.reshard.topology import Topology
from spmdir.reshard.traffic import Sizes

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


class SentMessages:
    """What the ops of a program send, asked in its order: a packed state is sent once, and later results with the same
    state do not send it again."""

    def __init__(self, mesh: Mesh, topology: Topology):
        self.mesh, self.topology = mesh, topology
        self._sent: set[object] = set()
        self._known: dict[Hashable, SentMessage | None] = {}

    def of(self, op: Operation) -> SentMessage | None:
        """Return what an op sends; None if it sends nothing."""
        if not _may_send(type(op)):
            return None
        if isinstance(op, NEIGHBOURLY):
            return self._to_neighbours(op)
        assert isinstance(op, Collective)
        likeness = op.likeness(self.mesh)
        if likeness not in self._known:
            self._known[likeness] = self._message(op)
        message, state = self._known[likeness], sent_state(op, self.mesh)
        if message is None or state in self._sent:
            return None
        if state is not None:
            self._sent.add(state)
        return message

    def _to_neighbours(self, op: HaloExchangeOp | RotationOp) -> SentMessage | None:
        if not op.sent(self.mesh):
            return None
        sizes = Sizes(self.mesh.group_size(op.axes), 0, 0, op.sent(self.mesh))
        spent = terms_of(NEIGHBOURS, sizes, node_count(op.axes, self.mesh), self.topology)
        return SentMessage(op.name.removeprefix("spmd."), op.axes, spent)

    def _message(self, op: Collective) -> SentMessage | None:
        metas = [global_type(value, self.mesh) for value, _ in op.pairs]
        members = [
            (step, meta)
            for step, meta in zip(op.steps(self.mesh), metas, strict=True)
            if meta is not None and sends_anything(step, meta.shape, self.mesh)
        ]
        if not members:
            return None
        steps, types = zip(*members, strict=True)
        may_join = len(steps) == 1 and op.spec.may_be_bucketed and not op.IS_START  # several are packed anyway
        joining = added_bucket_seconds(steps[0], types[0], self.mesh, self.topology) if may_join else 0.0
        spent = collective_terms(steps, types, self.mesh, self.topology)
        return SentMessage(op.spec.name, steps[0].axes, spent, joining)
