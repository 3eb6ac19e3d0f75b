"""Emitters of the ops of rings: rotations, states of packed placements, and assembled blocks.

A rotation is one all_to_all in which each rank sends to one peer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterable, Sequence

import torch
from torch.fx import Graph, Node

from spmdir.core.mesh import Mesh
from spmdir.dialects.ring_ops import AssembleOp, RotationOp, StateOp
from spmdir.lowering.inline_code import Kind, StateCode, inline_all, require_kinds
from spmdir.lowering.process_groups import GroupName
from spmdir.lowering.ranges import Emit, aten
from spmdir.lowering.site import WAIT, functional
from spmdir.lowering.wire_types import view_as_sendable

Arrive = Callable[[], Node]
"""Emits the wait for an in-flight tensor, and returns the tensor."""


def rotate(
    emit: Emit, mesh: Mesh, rank: int, group_name: GroupName, x: Node, dtype: torch.dtype, op: RotationOp
) -> Arrive:
    """Send `x` to the rank that is `op.steps` places after `rank` in its ring.

    Returns: a function that emits the wait for the tensor from the rank `op.steps` places before. After a whole number
    of turns, nothing is sent, and the function returns `x`.
    """
    axes = tuple(axis for axis in op.axes if mesh.sizes.get(axis) != 1)
    ranks_in_ring = mesh.group(rank, axes)
    position, steps = ranks_in_ring.index(rank), op.steps % len(ranks_in_ring)
    if not steps:
        return lambda: x
    members, refined_mesh = sorted(ranks_in_ring), mesh.refine(axes)
    parts = {part for axis in axes for part in refined_mesh.parts(axis)}
    group = group_name(refined_mesh.merge(axis for axis in refined_mesh.axis_names if axis in parts))
    target, source = ranks_in_ring[(position + steps) % len(ranks_in_ring)], ranks_in_ring[position - steps]
    sends, receives = ([int(member == peer) for member in members] for peer in (target, source))
    sent, unpack = view_as_sendable(emit, emit(aten.unsqueeze.default, x, 0), dtype)
    started = emit(functional.all_to_all_single.default, emit(aten.contiguous.default, sent), receives, sends, group)
    return lambda: emit(aten.squeeze.dim, unpack(emit(WAIT, started)), 0)


def assemble(emit: Emit, mesh: Mesh, rank: int, blocks: Sequence[Node], op: AssembleOp) -> Node:
    """Return the blocks of all ranks, concatenated in ring order along `op.dim`.

    Args:
        blocks: block n is from the rank n places before `rank` in the ring.
    """
    count, position = len(blocks), mesh.group(rank, op.axes).index(rank)
    return emit(aten.cat.default, [blocks[(position - block_index) % count] for block_index in range(count)], op.dim)


def emit_state(
    emit: Emit, op: StateOp, values: Sequence[Node], operand_kinds: Sequence[Kind], result_kinds: Sequence[Kind | None]
) -> list[Node]:
    """Return the results of `op` on `values`.

    Args:
        operand_kinds: the kinds of `values`.
        result_kinds: the kinds that the results must have; None if the IR has no sizes. Then `identity` and `combine`
            must return the kinds of the first operands, and `finish` and `pack` may return any.

    Raises:
        SpmdirError: the method fails, or returns other kinds; located in the plug-in.
    """
    code = StateCode(op.placement, op.METHOD)
    results = inline_all(emit, code, values, operand_kinds)
    kinds = [kind for _, kind in results]
    default_kinds = kinds if op.METHOD in ("finish", "pack") else operand_kinds
    expected_kinds = [
        kind or default for kind, default in itertools.zip_longest(result_kinds, default_kinds[: len(result_kinds)])
    ]
    require_kinds(code, kinds, expected_kinds)
    return [node for node, _ in results]


def erase_unused(graph: Graph, nodes: Iterable[Node], protected: Container[Node]) -> None:
    """Erase the `nodes` without users, then those of their operands that have no other users, and so on.

    Collectives remain, because all ranks must issue them. Inputs and constants remain too.

    Args:
        protected: further nodes that remain, such as those that draw random numbers on all ranks.
    """
    pending, erased = [*nodes], set[Node]()
    while pending:
        node = pending.pop()
        if node in erased or node in protected or node.users or node.op != "call_function" or _is_collective(node):
            continue
        pending += node.all_input_nodes
        graph.erase_node(node)
        erased.add(node)


def _is_collective(node: Node) -> bool:
    """Return whether a node calls a functional collective, or waits for one."""
    return getattr(node.target, "namespace", None) == functional.name
