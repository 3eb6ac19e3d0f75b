"""The check of what is in flight at once: which collectives have been started and not been waited for.

A collective ends once all ranks of its group have come to it. Those of one communicator run one after the other, in
program order, which is the same on all ranks. Two communicators that share more than one rank may run their collectives
in either order on each, and two ranks that choose differently wait for each other for ever. So of two collectives in
flight either both are of one communicator, or their groups share at most one rank: no axis of the mesh is in both.
"""

from __future__ import annotations

import functools

import attrs
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation

from spmdir.core.errors import ShardingError
from spmdir.core.mesh import Mesh
from spmdir.dialects.collectives import Collective, WaitOp
from spmdir.dialects.halo import HaloExchangeOp
from spmdir.dialects.locations import location_of
from spmdir.dialects.names import text_name
from spmdir.dialects.ring import RotationOp
from spmdir.dialects.values import global_type
from spmdir.dialects.verification import mesh_of
from spmdir.reshard.cost import sends_anything


@attrs.frozen
class Communicator:
    """What runs collectives one after the other.

    Attributes:
        axes: the mesh axes of its groups, in mesh order, whole ones where all their parts are there.
        stream: its name; None for the one that all of these axes share that name none.
    """

    axes: tuple[str, ...]
    stream: str | None = None

    @property
    def name(self) -> str:
        """The name of its stream."""
        return self.stream or ", ".join(self.axes)

    def __str__(self) -> str:
        return f"[{', '.join(self.axes)}]" + (f" stream {self.stream}" if self.stream else "")

    def excludes(self, other: Communicator, mesh: Mesh) -> bool:
        """Return whether the two may not both have collectives in flight: they share more than one rank."""
        if self == other:
            return False
        fine = mesh.refine((*self.axes, *other.axes))
        mine, its = ({part for axis in one.axes for part in fine.parts(axis)} for one in (self, other))
        return fine.group_size(mine & its) > 1


def communicator(op: Operation, mesh: Mesh) -> Communicator | None:
    """Return what a collective runs on, also one that rings and halos have; None for other ops, and for a collective
    that sends nothing."""
    if isinstance(op, Collective):
        return communicator_on(op, op.axes or op.step(mesh).axes, mesh) if _sends(op, mesh) else None
    if isinstance(op, (HaloExchangeOp, RotationOp)):
        return communicator_on(op, op.axes, mesh)
    return None


def communicator_on(op: Operation, axes: tuple[str, ...], mesh: Mesh) -> Communicator:
    """Return what an op runs on that sends something on `axes`."""
    return Communicator(_whole(axes, mesh), op.stream if isinstance(op, Collective) else None)


def _sends(op: Collective, mesh: Mesh) -> bool:
    if op.spec.is_local:
        return False
    metas = [global_type(value, mesh) for value, _ in op.pairs]
    return any(
        meta is None or sends_anything(step, meta.shape, mesh) for step, meta in zip(op.steps(mesh), metas, strict=True)
    )


@functools.lru_cache(maxsize=4096)
def _whole(axes: tuple[str, ...], mesh: Mesh) -> tuple[str, ...]:
    """Return `axes` in mesh order, whole ones where all their parts are there."""
    fine = mesh.refine(axes)
    parts = {part for axis in axes for part in fine.parts(axis)}
    return mesh.merge([axis for axis in fine.axis_names if axis in parts])


def _is_start(op: Operation) -> bool:
    return isinstance(op, (Collective, RotationOp)) and op.IS_START


def check_in_flight(function: FuncOp) -> None:
    """Raise ShardingError, located, where a collective begins that could wait for one in flight for ever.

    A stream that is named has one set of axes.
    """
    ops = [op for op in function.body.block.ops if isinstance(op, (Collective, WaitOp, HaloExchangeOp, RotationOp))]
    mesh = mesh_of(function) if any(map(_is_start, ops)) else None
    if mesh is None:
        return
    flying: dict[Operation, Communicator] = {}
    streams: dict[str, Communicator] = {}
    for op in ops:
        if isinstance(op, WaitOp):
            flying.pop(op.start, None)
            continue
        own = communicator(op, mesh)
        if own is None:
            continue
        if own.stream is not None and streams.setdefault(own.stream, own) != own:
            raise ShardingError(
                f"'{op.name}' is on {own}, a stream that has run on {streams[own.stream]}; expected another name: "
                "a stream is a communicator, and has one group",
                location_of(op),
            )
        for other, its in flying.items():
            if own.excludes(its, mesh):
                raise ShardingError(
                    f"'{op.name}' on {own} begins while {text_name(other.results[0])} on {its} is in flight, and their "
                    "groups share ranks, which may run them in different orders and wait for each other for ever; "
                    "wait for the other first, or run both on one stream",
                    location_of(op),
                )
        if _is_start(op):
            flying[op] = own
