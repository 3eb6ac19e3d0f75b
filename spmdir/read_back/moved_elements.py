"""Find what a message does to its tensors: run the ops that pack and unpack it on element ids instead of elements.

For example, tp = 2 gathers dimension 1 of a local [2, 2] tensor. The collective gathers dimension 0 only, so the rank
splits the received [4, 2] tensor into halves, and concatenates them along dimension 1. Each element has an id:

    rank 0: 0 1 / 2 3     rank 1: 4 5 / 6 7     received: 0 1 / 2 3 / 4 5 / 6 7     unpacked: 0 1 4 5 / 2 3 6 7

The unpacked ids are those of the local tensors of both ranks, concatenated along dimension 1. So the message performs
an all-gather along dimension 1. This recognises all code that packs in this way, whatever ops it uses.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor
from xdsl.ir import Block, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from spmdir.dialects.aten import op_class
from spmdir.dialects.attributes import meta_of
from spmdir.dialects.value_op import ValueOp
from spmdir.lowering.torch_calls import TorchCalls, fill_operands
from spmdir.read_back.local_ops import FUNCTIONAL, is_collective

MOVES = frozenset(
    f"aten.{name}"
    for name in [
        "view",
        "_unsafe_view",
        "reshape",
        "permute",
        "transpose.int",
        "t",
        "clone",
        "contiguous",
        "constant_pad_nd",
        "copy",
        "slice_scatter",
        "slice.Tensor",
        "split.Tensor",
        "split_with_sizes",
        "split_with_sizes_copy",
        "chunk",
        "unbind.int",
        "select.int",
        "cat",
        "stack",
        "squeeze",
        "squeeze.dim",
        "squeeze.dims",
        "unsqueeze",
        "movedim.int",
        "movedim.intlist",
        "narrow",
        "flatten.using_ints",
    ]
)
"""Ops that only move elements, or add zeros."""

BARRIER = FUNCTIONAL + "barrier"
"""The name of an op that returns its operand, and that no pass sees through."""

LARGEST = 1 << 27
"""The largest number of elements of a message, over all ranks of its group."""


def is_move(op: Operation | Block) -> bool:
    """Return whether an op only moves elements."""
    return isinstance(op, ValueOp) and op.name in MOVES


def insert_barriers(block: Block) -> list[Operation]:
    """Insert an opaque op wherever a value enters or leaves the packing and unpacking of messages.

    Returns:
        The inserted ops.
    """
    barriers: list[Operation] = []
    collectives = [op for op in block.ops if is_collective(op)]
    packing = {op for collective in collectives for op in _packing_ops(collective.operands[0])}
    sending: set[Operation] = {*packing, *collectives}
    unpacking: set[Operation] = set()
    for op in block.ops:
        if op in collectives or (is_move(op) and any(value.owner in unpacking for value in op.operands)):
            unpacking.add(op)
    for op in list(block.ops):
        for index, operand in enumerate(op.operands):
            is_packed = op in sending and operand.owner not in sending
            is_unpacked = operand.owner in unpacking and op not in unpacking
            if is_packed or is_unpacked or _hides_dimension(op) or _hides_dimension(operand.owner):
                meta = meta_of(operand.type)
                barrier = op_class(BARRIER).build_op([operand], [meta], location=op.location)
                Rewriter.insert_op(barrier, InsertPoint.before(op))
                op.operands[index] = barrier.results[0]
                barriers.append(barrier)
    return barriers


def _hides_dimension(op: Operation | Block) -> bool:
    """Return whether an op moves or expands a tensor with a dimension of local size 1, except the first.

    On local sizes, it may look like another view. `transpose(1, 2)` of [6, 1, 4] moves no element, and is that of
    [6, 2, 4] on two ranks. The first dimension is usually the batch, which all views treat alike.
    """
    if not isinstance(op, ValueOp) or len(op.operands) != 1 or len(op.results) != 1 or is_collective(op):
        return False
    before, after = _shape(op.operands[0]), _shape(op.results[0])
    is_expansion = len(before) == len(after) and all(s in (1, o) for s, o in zip(before, after, strict=True))
    return 1 in before[1:] and before != after and (is_expansion or is_move(op))


class LocalRun:
    """Runs local ops of one rank on tensors."""

    def __init__(self) -> None:
        """Make calls on the CPU. Numbers that depend on the rank, which graphs of one rank do not have, are 0."""
        self._calls = TorchCalls(lambda _: 0, lambda: torch.device("cpu"))

    def run(self, op: ValueOp, operands: Sequence[Tensor]) -> Sequence[Any]:
        """Return the results of `op` on `operands`."""
        call = self._calls.of(op, (None,) * len(operands), (None,) * len(op.results))
        returned = call.target(*fill_operands(call.args, operands), **fill_operands(call.kwargs, operands))
        return [returned] if call.is_single else returned


@attrs.frozen(eq=False)
class PackedMessage:
    """The elements that a collective sends.

    Attributes:
        op: the collective, with local types.
        axes: the axes of its group, in mesh order.
        group: the ranks of the group, in the order of the process group.
        position: the position of this rank in the group.
        packed: each value that is packed into the message → the ids of its elements, the earliest values first.
            The id of a zero that fills a gap is 0.
        count: the number of elements that one rank packs. The ids on the next rank of the group start at this number.
    """

    op: ValueOp
    axes: tuple[str, ...]
    group: tuple[int, ...]
    position: int
    packed: dict[SSAValue, Tensor]
    count: int

    def of_member(self, elements: Tensor, member: int) -> Tensor:
        """Return the ids of the same elements on another rank of the group."""
        return torch.where(elements > 0, elements + member * self.count, 0)


def pack(
    op: ValueOp, axes: tuple[str, ...], group: tuple[int, ...], position: int, local: LocalRun
) -> PackedMessage | None:
    """Return the message of a collective; None if it has too many elements.

    The elements of the packed values get the ids 1, 2, …, and the packing ops run on the ids. For
    `all_gather(cat(x, y))` with 2 and 1 elements, x has the ids [1, 2], y has [3], and the operand has [1, 2, 3].
    """
    packing_ops = list(_packing_ops(op.operands[0]))
    inputs = [value for value in _values(packing_ops, op.operands[0]) if value.owner not in packing_ops]
    count = sum(_numel(value) for value in inputs)
    if count * len(group) > LARGEST:
        return None
    packed: dict[SSAValue, Tensor] = {}
    start = 1
    for value in inputs:
        packed[value] = torch.arange(start, start + _numel(value)).reshape(_shape(value))
        start += _numel(value)
    for packing_op in packing_ops:
        results = local.run(packing_op, [packed[operand] for operand in packing_op.operands])
        packed.update(zip(packing_op.results, results, strict=True))
    return PackedMessage(op, axes, group, position, packed, count)


def receive(message: PackedMessage) -> Tensor | None:
    """Return the ids of the elements that this rank receives; None if the collective is not supported.

    A reduction combines the elements of all ranks at equal positions. The ids are those of the first rank.
    """
    op, members = message.op, range(len(message.group))
    sent = message.packed[op.operands[0]]
    kind = op.name.rpartition(".")[2]
    if kind in ("all_gather_into_tensor", "all_gather_into_tensor_out"):
        parts = [message.of_member(sent, member) for member in members]
        return torch.cat(parts) if sent.dim() else torch.stack(parts)
    if kind == "all_reduce":
        return sent
    if kind == "reduce_scatter_tensor":
        return sent.chunk(len(members))[message.position] if sent.shape[0] % len(members) == 0 else None
    if kind == "all_to_all_single":
        splits, received = op.argument["input_split_sizes"], op.argument["output_split_sizes"]
        if len({*splits, *received}) != 1:  # type: ignore  # lists of sizes
            return None  # the splits of other ranks may differ
        splits = list(splits)  # type: ignore
        chunks = [message.of_member(sent, member).split(splits)[message.position] for member in members]
        return torch.cat(chunks)
    return None


def _packing_ops(value: SSAValue) -> Iterator[ValueOp]:
    """Yield the moves that compute `value`, each after the producers of its operands."""
    seen: set[Operation] = set()

    def visit(value: SSAValue) -> Iterator[ValueOp]:
        """Yield the moves that compute a value and were not yielded before."""
        op = value.owner
        if isinstance(op, ValueOp) and is_move(op) and op not in seen:
            seen.add(op)
            for operand in op.operands:
                yield from visit(operand)
            yield op

    return visit(value)


def _values(ops: Sequence[ValueOp], value: SSAValue) -> list[SSAValue]:
    """Return the operands of the ops, and `value`, each once."""
    return list(dict.fromkeys([*(operand for op in ops for operand in op.operands), value]))


def _shape(value: SSAValue) -> tuple[int, ...]:
    """Return the local shape of a value."""
    meta = meta_of(value.type)
    assert meta is not None  # values of a rank are tensors
    return meta.shape


def _numel(value: SSAValue) -> int:
    return math.prod(_shape(value))
