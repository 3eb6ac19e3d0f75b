"""Check that the collectives in flight cannot deadlock.

A collective completes when all ranks of its group run it. One communicator runs its collectives in program order, which
is the same on all ranks. Two communicators may run their collectives in any order. If two ranks are in groups of both,
the ranks can choose different orders, and then wait for each other forever. Therefore two collectives in flight must
use one communicator, or groups that share at most one rank. Groups share more ranks only if they have a mesh axis in
common.
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
from spmdir.dialects.ring_ops import RotationOp
from spmdir.dialects.row_exchanges import ExpertExchangeOp
from spmdir.dialects.sharding_checks import mesh_of
from spmdir.dialects.values import global_type
from spmdir.reshard.cost import sends_anything

LOCAL_MESSAGES = (HaloExchangeOp, RotationOp, ExpertExchangeOp)
"""The ops of local forms that send."""


@attrs.frozen
class Communicator:
    """A queue that runs collectives one after the other, as a process group does.

    Attributes:
        axes: the mesh axes of its groups, in mesh order. All sub-axes of an axis are merged to the axis.
        stream: its name; None for the default communicator of these axes.
    """

    axes: tuple[str, ...]
    stream: str | None = None

    @property
    def name(self) -> str:
        """The name of its stream."""
        return self.stream or ", ".join(self.axes)

    def __str__(self) -> str:
        return f"[{', '.join(self.axes)}]" + (f" stream {self.stream}" if self.stream else "")

    def excludes(self, running: Communicator, mesh: Mesh) -> bool:
        """Return whether this and a `running` communicator share more than one rank, and may therefore deadlock."""
        if self == running:
            return False
        refined_mesh = mesh.refine((*self.axes, *running.axes))
        axes = {part for axis in self.axes for part in refined_mesh.parts(axis)}
        running_axes = {part for axis in running.axes for part in refined_mesh.parts(axis)}
        return refined_mesh.group_size(axes & running_axes) > 1


def communicator(op: Operation, mesh: Mesh) -> Communicator | None:
    """Return the communicator of a collective, a halo exchange or a rotation.

    Returns None for other ops, and for collectives that send nothing.
    """
    if isinstance(op, Collective):
        return communicator_on(op, op.axes or op.step(mesh).axes, mesh) if _sends(op, mesh) else None
    if isinstance(op, LOCAL_MESSAGES):
        return communicator_on(op, op.axes, mesh)
    return None


def communicator_on(op: Operation, axes: tuple[str, ...], mesh: Mesh) -> Communicator:
    """Return the communicator of an op that communicates over `axes`."""
    return Communicator(_merge_axes(axes, mesh), op.stream if isinstance(op, Collective) else None)


def _sends(op: Collective, mesh: Mesh) -> bool:
    """Return whether a collective sends elements between ranks, for at least one of its members."""
    if op.spec.is_local:
        return False
    metas = [global_type(value, mesh) for value, _ in op.pairs]
    return any(
        meta is None or sends_anything(step, meta.shape, mesh) for step, meta in zip(op.steps(mesh), metas, strict=True)
    )


@functools.lru_cache(maxsize=4096)
def _merge_axes(axes: tuple[str, ...], mesh: Mesh) -> tuple[str, ...]:
    """Return `axes` in mesh order, with the sub-axes of an axis merged if all are present."""
    refined_mesh = mesh.refine(axes)
    parts = {part for axis in axes for part in refined_mesh.parts(axis)}
    return mesh.merge([axis for axis in refined_mesh.axis_names if axis in parts])


def _is_start(op: Operation) -> bool:
    """Return whether an op only starts a collective, a rotation or an exchange of rows."""
    return isinstance(op, (Collective, RotationOp, ExpertExchangeOp)) and op.IS_START


def check_in_flight(function: FuncOp) -> None:
    """Raise a located ShardingError for a collective that may deadlock with one in flight.

    Each named stream must also be used with one set of axes only.
    """
    communicating = (Collective, WaitOp, *LOCAL_MESSAGES)
    ops = [op for op in function.body.block.ops if isinstance(op, communicating)]
    mesh = mesh_of(function) if any(map(_is_start, ops)) else None
    if mesh is None:
        return
    in_flight: dict[Operation, Communicator] = {}
    streams: dict[str, Communicator] = {}
    for op in ops:
        if isinstance(op, WaitOp):
            in_flight.pop(op.start, None)
            continue
        current = communicator(op, mesh)
        if current is None:
            continue
        if current.stream is not None and streams.setdefault(current.stream, current) != current:
            raise ShardingError(
                f"'{op.name}' uses stream '{current.stream}' over [{', '.join(current.axes)}], and an "
                f"earlier collective uses it over [{', '.join(streams[current.stream].axes)}]; expected one "
                "group for each stream: give one of them another stream",
                location_of(op),
            )
        for start, running in in_flight.items():
            if current.excludes(running, mesh):
                raise ShardingError(
                    f"'{op.name}' on {current} starts while {text_name(start.results[0])} on {running} is "
                    "in flight; their groups share ranks, so they may deadlock; expected them one after "
                    f"the other: wait for {text_name(start.results[0])} first, or run both on one stream",
                    location_of(op),
                )
        if _is_start(op):
            in_flight[op] = current
