"""Recognise a lookup in a table whose rows are sharded, as Megatron and DTensor write it.

    mask = (ids < start) | (ids >= end);  rows = embedding(table, where(mask, 0, ids - start));  where(mask, 0, rows)

Rank 1 of tp = 2 has rows 5 to 9 of a table of 10 rows. For id 7, it takes its row 2, and for id 3 it returns zero. So
the result is the partial sum of a lookup in the whole table. Other code may do the same with other ops. So the ops
between the ids and the result run on every id, and their result is compared with that of such a lookup.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs
import torch
from torch import Tensor
from xdsl.ir import SSAValue

from spmdir.dialects.attributes import meta_of
from spmdir.dialects.spmd import ConstantOp
from spmdir.dialects.value_op import ValueOp
from spmdir.read_back.moved_elements import LocalRun
from spmdir.torch_interop.dtypes import TORCH_DTYPES

LOOKUP = "aten.embedding"

_MASKS = frozenset(
    {
        "aten.clone",
        "aten.expand",
        "aten.masked_fill.Scalar",
        "aten.masked_fill.Tensor",
        "aten.mul.Tensor",
        "aten.unsqueeze",
        "aten.where.ScalarOther",
        "aten.where.ScalarSelf",
        "aten.where.self",
    }
)
"""Ops that may be between the lookup and its masked result."""

_MOST_ROWS = 1 << 20
"""The largest number of rows of a table on which a lookup is tried."""


@attrs.frozen(eq=False)
class Lookup:
    """A lookup whose result is not masked yet.

    Attributes:
        op: the local lookup.
        ids: a local value that may have the ids of the whole table.
        count, position: the number of ranks that shard the rows of the table, and the position of this rank.
    """

    op: ValueOp
    ids: SSAValue
    count: int
    position: int


def id_values(op: ValueOp) -> Iterator[SSAValue]:
    """Yield the integer values from which the ids of a lookup are computed, the earliest first."""
    ids_type = meta_of(op.operands[1].type)
    seen: dict[SSAValue, None] = {}

    def visit(value: SSAValue) -> None:
        """Add a value to `seen`, after the values that it is computed from."""
        if value in seen:
            return
        if isinstance(value.owner, ValueOp):
            for operand in value.owner.operands:
                visit(operand)
        seen[value] = None

    visit(op.operands[1])
    return (value for value in seen if meta_of(value.type) == ids_type)


def may_mask(op: ValueOp) -> bool:
    """Return whether an op may be between a lookup and its masked result."""
    return op.name in _MASKS


def is_masked_lookup(lookup: Lookup, value: SSAValue, local: LocalRun) -> bool:
    """Return whether `value` has the rows of this rank's ids, and zeros for other ids, for every id of the table.

    The local ops from the lookup to `value` run on a random table, for all ids of the whole table. With 2 ranks and 4
    rows on each, rank 1 must return its row 1 for id 5, and zeros for id 2.
    """
    table_meta, ids_meta = meta_of(lookup.op.operands[0].type), meta_of(lookup.ids.type)
    result_meta = meta_of(value.type)
    assert table_meta is not None and ids_meta is not None
    if result_meta != lookup.op.metas[0]:
        return False
    rows = table_meta.shape[0]
    total = rows * lookup.count
    if total > _MOST_ROWS:
        return False
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(table_meta.shape, generator=generator, dtype=torch.float64).to(TORCH_DTYPES[table_meta.dtype])
    size = max(1, torch.Size(ids_meta.shape).numel())
    for start in range(0, total, size):
        ids = ((torch.arange(size) + start) % total).to(TORCH_DTYPES[ids_meta.dtype]).reshape(ids_meta.shape)
        local_ids = ids - lookup.position * rows
        is_local = (local_ids >= 0) & (local_ids < rows)
        expected = table[local_ids.clamp(0, rows - 1)] * is_local.unsqueeze(-1)
        try:
            actual = _evaluate(value, {lookup.ids: ids, lookup.op.operands[0]: table}, local)
        except (RuntimeError, IndexError):
            return False  # the local code accepts only some ids
        if actual is None or actual.shape != expected.shape or not torch.equal(actual, expected):
            return False
    return True


def _evaluate(value: SSAValue, known: dict[SSAValue, Tensor], local: LocalRun) -> Tensor | None:
    """Return the tensor of a value on the known tensors; None if it depends on others. Results are added to `known`."""
    if value in known:
        return known[value]
    op = value.owner
    if not isinstance(op, ValueOp):
        return None
    if isinstance(op, ConstantOp):
        known[value] = _constant(op)
        return known[value]
    operands: list[Tensor] = []
    for operand in op.operands:
        tensor = _evaluate(operand, known, local)
        if tensor is None:
            return None
        operands.append(tensor)
    known.update(zip(op.results, local.run(op, operands), strict=True))
    return known[value]


def _constant(op: ConstantOp) -> Tensor:
    """Return the tensor of a constant."""
    meta = op.metas[0]
    assert meta is not None  # it is a tensor
    data = bytearray.fromhex(str(op.argument["value"]))
    return torch.frombuffer(data, dtype=TORCH_DTYPES[meta.dtype]).reshape(meta.shape)


def position_of_rows(axes: Sequence[str], sizes: dict[str, int], coordinate: dict[str, int]) -> tuple[int, int]:
    """Return (number of shards, position of a rank's shard) of a dimension sharded by `axes`, the major axis first."""
    count, position = 1, 0
    for axis in axes:
        count, position = count * sizes[axis], position * sizes[axis] + coordinate[axis]
    return count, position
