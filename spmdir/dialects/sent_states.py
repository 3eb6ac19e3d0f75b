"""Find collectives that send the same state of a packed placement. Such a state needs to be sent only once.

The decision depends only on the program, so all ranks decide alike. If ranks compared their values, they could issue
different collectives.
"""

from __future__ import annotations

import attrs
from xdsl.ir import SSAValue

from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Placement, edge_between
from spmdir.core.placement.packed import PackedPlacement
from spmdir.dialects.aten import AtenOp
from spmdir.dialects.collectives import Collective
from spmdir.dialects.ring_ops import PackOp
from spmdir.dialects.values import global_shape


def sent_state(op: Collective, mesh: Mesh) -> object | None:
    """Return a key that is equal for collectives that send the same state; None if `op` sends no state.

    The key consists of the state, the shardings before and after, and the size of the sharded dimension. Two packs of
    the same tensors are the same state. Before localize, all results of an op are the same state. For an edge that a
    plug-in declares, the result is None.
    """
    if op.spec.moves != "edge":
        return None
    step = op.step(mesh)
    source, target = step.source[step.axes[0]], step.target[step.axes[0]]
    edge = edge_between(source, target)
    if not isinstance(source, PackedPlacement) or edge is None or not source.sends_state(edge):
        return None
    packed = op.operands[0]
    size = None if target.dim is None else global_shape(packed, mesh)[target.dim]
    return _state_key(packed), _parts_as_one(step.source.entries), step.target.entries, size


def _state_key(packed: SSAValue) -> object:
    """Return a key for the state that the tensor `packed` contains: the packed tensors, or the op that returns it."""
    owner = packed.owner
    if isinstance(owner, PackOp):
        return tuple(owner.operands), owner.argument["by"]
    return owner if isinstance(owner, AtenOp) else packed


def _parts_as_one(entries: tuple[tuple[str, Placement], ...]) -> tuple[tuple[str, Placement], ...]:
    """Return `entries` with part 0 of each packed placement in place of its other parts, which have the same state."""
    return tuple(
        (axis, attrs.evolve(placement, part=0) if getattr(placement, "part", 0) else placement)  # type: ignore
        for axis, placement in entries
    )
