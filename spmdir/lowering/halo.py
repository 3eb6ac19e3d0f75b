"""Emitters of halo exchanges: one all_to_all in which ranks send only to their neighbours."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import attrs
import torch
from torch.fx import Node

from spmdir.core.mesh import Mesh
from spmdir.dialects.halo import FILLS, HaloExchangeOp
from spmdir.lowering.process_groups import GroupName
from spmdir.lowering.ranges import Emit, aten
from spmdir.lowering.site import WAIT, functional
from spmdir.lowering.wire_types import view_as_sendable


@attrs.frozen
class Line:
    """The ranks that shard one dimension, as seen by one of them.

    Attributes:
        members: the ranks in ascending order, as in process groups.
        previous, following: the ranks with the neighbouring chunks; None at an end.
        group: the process group.
    """

    members: tuple[int, ...]
    previous: int | None
    following: int | None
    group: str


def line_of(mesh: Mesh, rank: int, axes: tuple[str, ...], group_name: GroupName) -> Line:
    """Return the ranks that hold the chunks of one dimension, with the two neighbours of `rank` among them.

    Args:
        axes: the axes that shard the dimension, outermost first.
    """
    axes = tuple(axis for axis in axes if mesh.sizes[axis] > 1)
    ranks_in_line, refined_mesh = mesh.group(rank, axes), mesh.refine(axes)
    parts = {part for axis in axes for part in refined_mesh.parts(axis)}
    position = ranks_in_line.index(rank)
    return Line(
        tuple(sorted(ranks_in_line)),
        ranks_in_line[position - 1] if position else None,
        ranks_in_line[position + 1] if position + 1 < len(ranks_in_line) else None,
        group_name(refined_mesh.merge(axis for axis in refined_mesh.axis_names if axis in parts)) if axes else "",
    )


def halo(emit: Emit, line: Line, x: Node, dtype: torch.dtype, op: HaloExchangeOp) -> Node:
    """Return `x` with the halos of both neighbours. A missing neighbour's halo has the fill value of `op`.

    For example, two ranks have [1, 2] and [3, 4]. With one element before and one after, and zero as the fill value,
    they get [0, 1, 2, 3] and [2, 3, 4, 0].
    """
    front = _swap(emit, x, op.dim)  # `x` with the sharded dimension at the front
    # The previous rank needs `op.after` elements after its chunk: the first ones of this chunk.
    sent = {line.previous: _head(emit, front, op.after), line.following: _tail(emit, front, op.before)}
    received = _exchange(emit, line, front, dtype, sent, (op.after, op.before))
    parts = [received[line.previous], front, received[line.following]]
    joined = emit(aten.cat.default, [part for part in parts if part is not None])
    missing_sizes = [
        op.before if received[line.previous] is None else 0,
        op.after if received[line.following] is None else 0,
    ]
    x = _swap(emit, joined, op.dim)
    if any(missing_sizes):
        transposed = emit(aten.transpose.int, x, op.dim, -1)
        padded = emit(aten.constant_pad_nd.default, transposed, missing_sizes, FILLS[op.fill])
        x = emit(aten.transpose.int, padded, op.dim, -1)
    return emit(aten.contiguous.default, x)


def halo_reduce(emit: Emit, line: Line, x: Node, dtype: torch.dtype, op: HaloExchangeOp) -> Node:
    """Return `x` without its halos, and add the halos of the neighbours to the elements that they are copies of.

    For example, two ranks have [1, 2, 3, 4] and [5, 6, 7, 8], with one element before and one after. The 4 belongs to
    the first element of rank 1, and the 5 to the last of rank 0. The ranks get [2, 3 + 5] and [6 + 4, 7].
    """
    front = _swap(emit, x, op.dim)
    sent = {line.previous: _head(emit, front, op.before), line.following: _tail(emit, front, op.after)}
    received = _exchange(emit, line, front, dtype, sent, (op.before, op.after))
    # -0 would be an empty slice, so sys.maxsize means "to the end".
    front = emit(aten.slice.Tensor, front, 0, op.before, -op.after or sys.maxsize)
    halo_before, halo_after = received[line.previous], received[line.following]
    if halo_before is not None:
        head = emit(aten.add.Tensor, _head(emit, front, op.after), halo_before)
        front = emit(aten.cat.default, [head, emit(aten.slice.Tensor, front, 0, op.after, sys.maxsize)])
    if halo_after is not None:
        tail = emit(aten.add.Tensor, _tail(emit, front, op.before), halo_after)
        front = emit(aten.cat.default, [emit(aten.slice.Tensor, front, 0, 0, -op.before), tail])
    return emit(aten.contiguous.default, _swap(emit, front, op.dim))


EMITTERS = {"spmd.halo": halo, "spmd.halo_reduce": halo_reduce}
"""Name of an op → its emitter: (emit, line, operand, element type, op) → result."""


def _swap(emit: Emit, x: Node, dim: int) -> Node:
    """Return `x` with dimensions 0 and `dim` swapped."""
    return emit(aten.transpose.int, x, 0, dim) if dim else x


def _head(emit: Emit, front: Node, count: int) -> Node | None:
    """Return the first `count` elements along dimension 0; None if `count` is 0."""
    return emit(aten.slice.Tensor, front, 0, 0, count) if count else None


def _tail(emit: Emit, front: Node, count: int) -> Node | None:
    """Return the last `count` elements along dimension 0; None if `count` is 0."""
    return emit(aten.slice.Tensor, front, 0, -count, sys.maxsize) if count else None


def _exchange(
    emit: Emit,
    line: Line,
    front: Node,
    dtype: torch.dtype,
    sent: Mapping[int | None, Node | None],
    counts: tuple[int, int],
) -> dict[int | None, Node | None]:
    """Return the tensor from each neighbour, along dimension 0; None if there is no neighbour or it sends nothing.

    Args:
        sent: neighbour → the tensor to send to it; None to send nothing.
        counts: the lengths along dimension 0 sent to the previous and to the following rank. All ranks send the same
            lengths, so this rank receives the second from the previous rank, and the first from the following rank.
    """
    received_from: dict[int | None, Node | None] = {line.previous: None, line.following: None}
    if len(line.members) == 1:
        return received_from
    to_previous, to_following = counts
    sent_sizes = {line.previous: to_previous, line.following: to_following}
    received_sizes = {line.previous: to_following, line.following: to_previous}
    sends = [sent_sizes.get(member, 0) for member in line.members]
    receives = [received_sizes.get(member, 0) for member in line.members]
    parts = [part for part in map(sent.get, line.members) if part is not None]
    joined = emit(aten.cat.default, parts) if parts else emit(aten.slice.Tensor, front, 0, 0, 0)
    joined, unpack = view_as_sendable(emit, joined, dtype)
    contiguous = emit(aten.contiguous.default, joined)
    started = emit(functional.all_to_all_single.default, contiguous, receives, sends, line.group)
    received, offset = unpack(emit(WAIT, started)), 0
    for member, size in zip(line.members, receives, strict=True):
        if size:
            received_from[member] = emit(aten.slice.Tensor, received, 0, offset, offset + size)
            offset += size
    return received_from
