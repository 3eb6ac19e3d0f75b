"""Gathers of what has gone round a ring: a rank has all blocks then, and only joins them."""

from __future__ import annotations

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from spmdir.analysis.local_forms import NOTE, note, places_among
from spmdir.core.mesh import Mesh
from spmdir.core.placement.call import Call
from spmdir.dialects.collectives import Collective, WaitOp
from spmdir.dialects.names import take_name
from spmdir.dialects.ring import AssembleOp, RotateStartOp
from spmdir.dialects.values import global_type, sharding_of


def join_blocks(function: FuncOp, mesh: Mesh) -> None:
    """Replace each all_gather in a local `function` by `spmd.assemble` where a ring before it had all blocks here.

    The ring is one that a product of the same value is split into, along the same axes.
    """
    rings: dict[tuple[SSAValue, tuple[str, ...]], list[SSAValue]] = {}
    root: dict[SSAValue, SSAValue] = {}
    for op in list(function.body.block.ops):
        if isinstance(op, WaitOp) and isinstance(start := op.operands[0].owner, RotateStartOp):
            held = start.operands[0]
            first = root[op.results[0]] = root.get(held, held)
            rings.setdefault((first, start.axes), [first]).append(op.results[0])
        elif isinstance(op, Collective) and op.spec.name == "all_gather" and len(op.operands) == 1:
            blocks = rings.get((op.operands[0], op.axes), [])
            if not op.IS_START and len(blocks) == mesh.group_size(op.axes):
                _join(op, blocks, mesh)


def _join(op: Collective, blocks: list[SSAValue], mesh: Mesh) -> None:
    """Put the `blocks` of the operand of the all_gather `op` together in its place."""
    (value,), (result,) = op.operands, op.results
    call = Call(op.name, tuple(filter(None, [global_type(value, mesh)])), (), (global_type(result, mesh),))
    arguments = (("axes", op.axes), ("dim", op.dim))
    new: Operation = AssembleOp.build_op(blocks, op.metas, arguments, op.shardings, location=op.location)
    if op.of is not None:
        new.properties["of"] = op.of
    new.attributes[NOTE] = note(op, call, [sharding_of(value)], places_among([new], [value], new.results))
    Rewriter.insert_op(new, InsertPoint.before(op))
    take_name(new.results[0], result)
    result.replace_all_uses_with(new.results[0])
    Rewriter.erase_op(op)
