"""The ops of rings as graph nodes: rotations, states of packed placements, and what a rank chooses.

A rotation is one all_to_all in which each rank sends to one other.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterable, Sequence

import torch
from torch.fx import Graph, Node

from spmdir.core.mesh import Mesh
from spmdir.dialects.ring import AssembleOp, RotationOp, StateOp
from spmdir.lowering.inline import Kind, StateCode, inline_all, require_kinds
from spmdir.lowering.process_groups import GroupName
from spmdir.lowering.ranges import Emit, aten
from spmdir.lowering.site import WAIT, functional
from spmdir.lowering.wire import packed

Arrive = Callable[[], Node]
"""Emits the wait for a tensor that is on its way, and returns it."""


def rotate(
    emit: Emit, mesh: Mesh, rank: int, group_name: GroupName, x: Node, dtype: torch.dtype, op: RotationOp
) -> Arrive:
    """Send `x` to the rank `op.steps` on from `rank` in its ring; return what gives the tensor of the one before."""
    axes = tuple(axis for axis in op.axes if mesh.sizes.get(axis) != 1)
    order = mesh.group(rank, axes)
    at, steps = order.index(rank), op.steps % len(order)
    if not steps:
        return lambda: x
    members, fine = sorted(order), mesh.refine(axes)
    parts = {part for axis in axes for part in fine.parts(axis)}
    group = group_name(fine.merge(axis for axis in fine.axis_names if axis in parts))
    target, source = order[(at + steps) % len(order)], order[at - steps]
    sends, receives = ([int(member == other) for member in members] for other in (target, source))
    sent, unpack = packed(emit, emit(aten.unsqueeze.default, x, 0), dtype)
    started = emit(functional.all_to_all_single.default, emit(aten.contiguous.default, sent), receives, sends, group)
    return lambda: emit(aten.squeeze.dim, unpack(emit(WAIT, started)), 0)


def assemble(emit: Emit, mesh: Mesh, rank: int, blocks: Sequence[Node], op: AssembleOp) -> Node:
    """Return the blocks of all ranks in the order of the ring: the first of `blocks` is that of `rank` itself."""
    count, at = len(blocks), mesh.group(rank, op.axes).index(rank)
    return emit(aten.cat.default, [blocks[(at - place) % count] for place in range(count)], op.dim)


def state(
    emit: Emit, op: StateOp, values: Sequence[Node], given: Sequence[Kind], told: Sequence[Kind | None]
) -> list[Node]:
    """Return the results of `op` on `values`, which are of the kinds `given`.

    Args:
        told: the kinds of the results; None where the IR does not tell, as these are those of the first operands.

    Raises:
        SpmdirError: the method fails, or gives other tensors; at its place in the plug-in.
    """
    code = StateCode(op.placement, op.METHOD)
    results = inline_all(emit, code, values, given)
    kinds = [kind for _, kind in results]
    known = kinds if op.METHOD in ("finish", "pack") else given
    require_kinds(code, kinds, [kind or like for kind, like in itertools.zip_longest(told, known[: len(told)])])
    return [node for node, _ in results]


def erase_unused(graph: Graph, nodes: Iterable[Node], kept: Container[Node]) -> None:
    """Erase those of `nodes` that nothing uses, and what is used for them alone.

    Collectives, which all ranks issue, inputs and `kept`, which draws random numbers on all ranks, stay.
    """
    pending, erased = [*nodes], set[Node]()
    while pending:
        node = pending.pop()
        if node in erased or node in kept or node.users or node.op != "call_function" or _is_collective(node):
            continue
        pending += node.all_input_nodes
        graph.erase_node(node)
        erased.add(node)


def _is_collective(node: Node) -> bool:
    return getattr(node.target, "namespace", None) == functional.name
