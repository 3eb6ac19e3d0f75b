"""Simplify the ops around the buffers of messages, so that only moves are between a tensor and its collective.

- A copy to all elements of a buffer is the copied tensor: `copy(buffer, x)` and `slice_scatter(buffer, x, 0, 0, n)`.
- A linear op on each element, such as a division by the number of ranks or a cast, commutes with moves. FSDP2 packs its
  gradients, and divides the message. `div(cat(g1, g2), 2)` becomes `cat(div(g1, 2), div(g2, 2))`.
"""

from __future__ import annotations

import attrs
from xdsl.ir import Block, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from spmdir.core.errors import SpmdirError
from spmdir.core.placement.standard import P
from spmdir.core.placement.tensor import TensorMeta
from spmdir.dialects.aten import op_class
from spmdir.dialects.attributes import meta_of
from spmdir.dialects.names import copy_name
from spmdir.dialects.value_op import ValueOp
from spmdir.read_back.local_ops import is_collective
from spmdir.read_back.moved_elements import is_move
from spmdir.rules import RuleSet

_WRITES = ("aten.copy", "aten.slice_scatter")
"""Ops whose result is operand 1 if that has all elements of operand 0."""


def simplify_buffers(block: Block, rules: RuleSet) -> None:
    """Replace full writes to buffers by the written values, and lift linear ops out of messages."""
    for op in list(block.ops):
        if op.name in _WRITES and isinstance(op, ValueOp):
            _forward_write(op)
    for op in list(block.ops):
        if isinstance(op, ValueOp) and is_collective(op):
            _lift(op, rules)


def is_linear(op: Operation | Block, rules: RuleSet) -> bool:
    """Return whether an op applies a linear function to each element of its only operand.

    Then its rule is pointwise, and a partial sum as the operand gives a partial sum.
    """
    if not isinstance(op, ValueOp) or len(op.operands) != 1 or len(op.results) != 1 or is_move(op):
        return False
    try:
        rule = rules.instantiate(op.call())
    except SpmdirError:
        return False
    if rule is None or not rule.is_pointwise:
        return False
    return any(strategy.operands == (P("sum"),) == strategy.results for strategy in rule.strategies(2))


def _forward_write(op: ValueOp) -> None:
    """Replace a write to all elements by the written value, cast to the type of the buffer."""
    written, result = meta_of(op.operands[1].type), op.metas[0]
    if written is None or result is None or written.shape != result.shape:
        return
    value = op.operands[1]
    if written.dtype != result.dtype:
        cast = op_class("aten._to_copy").build_op([value], [result], (("dtype", result.dtype),), location=op.location)
        Rewriter.insert_op(cast, InsertPoint.before(op))
        value = cast.results[0]
    op.results[0].replace_all_uses_with(value)
    Rewriter.erase_op(op)


def _lift(collective: ValueOp, rules: RuleSet) -> None:
    """Move the linear ops between the operand of a collective and its packed tensors to these tensors.

    `all_reduce(div(cat(g1, g2), 2))` becomes `all_reduce(cat(div(g1, 2), div(g2, 2)))`.
    """
    remaining: list[ValueOp] = [collective]
    seen: set[Operation] = set()
    while remaining:
        op = remaining.pop()
        if op in seen:
            continue
        seen.add(op)
        for index, operand in enumerate(op.operands):
            chain: list[ValueOp] = []  # the linear ops between the operand and a move, the last one first
            value = operand
            while is_linear(value.owner, rules):
                chain.append(value.owner)  # type: ignore  # it is an op
                value = chain[-1].operands[0]
            if not is_move(value.owner):
                continue
            for linear in reversed(chain):
                value = _apply(linear, value, op, {})
            op.operands[index] = value
            for linear in chain:
                if not linear.results[0].uses:
                    Rewriter.erase_op(linear)
            remaining.append(value.owner)  # type: ignore  # a move is an op


def _apply(linear: ValueOp, value: SSAValue, before: Operation, moved: dict[SSAValue, SSAValue]) -> SSAValue:
    """Return a linear op of `value`, applied to the tensors that moves compute it from.

    For `value` = cat(g1, g2), this is cat(linear(g1), linear(g2)): the moves are copied onto the results.

    Args:
        before: the op before which new ops are inserted.
        moved: value → the linear op of the value, for values that several moves use.
    """
    if value in moved:
        return moved[value]
    owner, operands = value.owner, [value]
    if is_move(owner):
        assert isinstance(owner, ValueOp)
        operands = [_apply(linear, operand, before, moved) for operand in owner.operands]
        template = owner
    else:
        template = linear
    dtype = linear.metas[0].dtype  # type: ignore  # it is a tensor
    metas = [None if meta is None else TensorMeta(meta.shape, dtype) for meta in template.metas]
    if template is linear:
        metas = [attrs.evolve(meta_of(value.type), dtype=dtype)]  # type: ignore  # it is a tensor
    new_op = op_class(template.name).build_op(
        operands, metas, tuple(template.argument.items()), structure=template.structure and template.structure.data,
        location=template.location,
    )  # fmt: skip
    Rewriter.insert_op(new_op, InsertPoint.before(before))
    results = owner.results if template is owner else [value]  # type: ignore  # a move is an op
    for result, source in zip(new_op.results, results, strict=True):
        copy_name(result, source)
        moved[source] = result
    return moved[value]
