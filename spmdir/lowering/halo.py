"""Exchanges of borders as graph nodes: one all_to_all in which ranks send to their neighbours alone."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import attrs
import torch
from torch.fx import Node

from spmdir.core.mesh import Mesh
from spmdir.dialects.halo import FILLS
from spmdir.lowering.process_groups import GroupName
from spmdir.lowering.ranges import Emit, aten
from spmdir.lowering.site import WAIT, functional
from spmdir.lowering.wire import packed


@attrs.frozen
class Line:
    """The ranks that hold one dimension together, as one of them sees it.

    Attributes:
        members: their ranks, ascending, as process groups list them.
        previous, following: the ranks with the blocks beside this rank's; None at an end.
        group: the process group.
    """

    members: tuple[int, ...]
    previous: int | None
    following: int | None
    group: str


def line_of(mesh: Mesh, rank: int, axes: tuple[str, ...], group_name: GroupName) -> Line:
    """The line of `rank` where `axes`, major first, divide a dimension."""
    axes = tuple(axis for axis in axes if mesh.sizes[axis] > 1)
    order, fine = mesh.group(rank, axes), mesh.refine(axes)
    parts = {part for axis in axes for part in fine.parts(axis)}
    at = order.index(rank)
    return Line(
        tuple(sorted(order)),
        order[at - 1] if at else None,
        order[at + 1] if at + 1 < len(order) else None,
        group_name(fine.merge(axis for axis in fine.axis_names if axis in parts)) if axes else "",
    )


def halo(emit: Emit, line: Line, x: Node, dtype: torch.dtype, argument: Mapping[str, Any]) -> Node:
    """`x` between the borders of its neighbours."""
    dim, before, after = argument["dim"], argument["before"], argument["after"]
    rows = _swap(emit, x, dim)
    sent = {line.previous: _head(emit, rows, after), line.following: _tail(emit, rows, before)}
    got = _exchange(emit, line, rows, dtype, sent, (after, before))
    parts = [got[line.previous], rows, got[line.following]]
    rows = emit(aten.cat.default, [part for part in parts if part is not None])
    missing = [before if got[line.previous] is None else 0, after if got[line.following] is None else 0]
    x = _swap(emit, rows, dim)
    if any(missing):
        last = emit(aten.transpose.int, x, dim, -1)
        padded = emit(aten.constant_pad_nd.default, last, missing, FILLS[argument.get("fill", "zero")])
        x = emit(aten.transpose.int, padded, dim, -1)
    return emit(aten.contiguous.default, x)


def fold(emit: Emit, line: Line, x: Node, dtype: torch.dtype, argument: Mapping[str, Any]) -> Node:
    """`x` without its borders, which are added to what the neighbours have there."""
    dim, before, after = argument["dim"], argument["before"], argument["after"]
    rows = _swap(emit, x, dim)
    sent = {line.previous: _head(emit, rows, before), line.following: _tail(emit, rows, after)}
    got = _exchange(emit, line, rows, dtype, sent, (before, after))
    rows = emit(aten.slice.Tensor, rows, 0, before, -after or sys.maxsize)
    if (first := got[line.previous]) is not None:
        own = emit(aten.add.Tensor, _head(emit, rows, after), first)
        rows = emit(aten.cat.default, [own, emit(aten.slice.Tensor, rows, 0, after, sys.maxsize)])
    if (last := got[line.following]) is not None:
        own = emit(aten.add.Tensor, _tail(emit, rows, before), last)
        rows = emit(aten.cat.default, [emit(aten.slice.Tensor, rows, 0, 0, -before), own])
    return emit(aten.contiguous.default, _swap(emit, rows, dim))


EMITTERS = {"spmd.halo": halo, "spmd.fold": fold}
"""Op → (emit, line, operand, its element type, arguments) → its value."""


def _swap(emit: Emit, x: Node, dim: int) -> Node:
    """`x` with `dim` in front, or back from there."""
    return emit(aten.transpose.int, x, 0, dim) if dim else x


def _head(emit: Emit, rows: Node, count: int) -> Node | None:
    return emit(aten.slice.Tensor, rows, 0, 0, count) if count else None


def _tail(emit: Emit, rows: Node, count: int) -> Node | None:
    return emit(aten.slice.Tensor, rows, 0, -count, sys.maxsize) if count else None


def _exchange(
    emit: Emit,
    line: Line,
    rows: Node,
    dtype: torch.dtype,
    sent: Mapping[int | None, Node | None],
    counts: tuple[int, int],
) -> dict[int | None, Node | None]:
    """What comes from each neighbour; None where there is none, or nothing comes.

    `counts` are the rows that go to the previous and to the following rank; as many come from the other side.
    """
    got: dict[int | None, Node | None] = {line.previous: None, line.following: None}
    if len(line.members) == 1:
        return got
    sizes = dict(zip((line.previous, line.following), counts, strict=True))
    sends = [sizes.get(member, 0) for member in line.members]
    sizes = dict(zip((line.previous, line.following), reversed(counts), strict=True))
    receives = [sizes.get(member, 0) for member in line.members]
    parts = [part for member in line.members if (part := sent.get(member)) is not None]
    joined = emit(aten.cat.default, parts) if parts else emit(aten.slice.Tensor, rows, 0, 0, 0)
    joined, unpack = packed(emit, joined, dtype)
    contiguous = emit(aten.contiguous.default, joined)
    started = emit(functional.all_to_all_single.default, contiguous, receives, sends, line.group)
    received, at = unpack(emit(WAIT, started)), 0
    for member, size in zip(line.members, receives, strict=True):
        if size:
            got[member] = emit(aten.slice.Tensor, received, 0, at, at + size)
            at += size
    return got
