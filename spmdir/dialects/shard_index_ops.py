"""Ops on the positions that a rank has of a sharded dimension: global indices from local ones, and the reverse.

The ops occur only in local forms, which localize creates. So their types are those of one rank.
"""

from __future__ import annotations

from typing import ClassVar

from xdsl.irdl import irdl_op_definition
from xdsl.utils.exceptions import VerifyException

from spmdir.core.dtype import I64
from spmdir.core.mesh import Mesh
from spmdir.core.placement.call import Local
from spmdir.core.placement.tensor import TensorMeta
from spmdir.dialects.attributes import DYNAMIC
from spmdir.dialects.ring_ops import LocalFormOp


class ShardIndexOp(LocalFormOp):
    """Base class of the ops that return indices. The argument `of` is a shard: `shard(16, cp: Cyclic(0, 2))`."""

    PARENTHESISED: ClassVar[bool] = False
    OPERANDS: ClassVar[int]

    @property
    def shard(self) -> Local:
        """Return the rank's shard."""
        local = self.argument["of"]
        assert isinstance(local, Local)  # verified
        return local

    def check_form(self, mesh: Mesh) -> None:
        """Raise SpmdirError unless `of` is a shard, without further arguments, and the result has the right type."""
        self.check_value_counts(self.OPERANDS, 1)
        shard = self.argument.get("of")
        # A `Local` is `times * number + plus`. A shard must not be changed by these.
        if not isinstance(shard, Local) or shard.kind != "shard" or (shard.times, shard.plus) != (1, 0):
            raise VerifyException(
                f"has of = {shard}; expected the shard of a dimension, as in `{{of = shard(16, cp: S(0))}}`"
            )
        if set(self.argument) != {"of"}:
            raise VerifyException(f"has the arguments {', '.join(sorted(self.argument))}; expected only `of`")
        self.check_result_types((TensorMeta(self.result_shape(shard, mesh), I64),))

    def result_shape(self, shard: Local, mesh: Mesh) -> tuple[int, ...]:
        """Return the shape of the result."""
        raise NotImplementedError


@irdl_op_definition
class PositionsOp(ShardIndexOp):
    """`positions {of = shard(16, cp: Cyclic(0, 2))}`: the positions of the rank's shard, in local order."""

    name = "spmd.positions"
    OPERANDS: ClassVar[int] = 0

    def result_shape(self, shard: Local, mesh: Mesh) -> tuple[int, ...]:
        lengths = shard.lengths(mesh)
        return (next(iter(lengths)) if len(lengths) == 1 else DYNAMIC,)


@irdl_op_definition
class LocalIndexOp(ShardIndexOp):
    """`local_index %index {of = shard(16, cp: S(0))}`: the local index of each global index; -1 outside the shard."""

    name = "spmd.local_index"
    OPERANDS: ClassVar[int] = 1

    def result_shape(self, shard: Local, mesh: Mesh) -> tuple[int, ...]:
        (index,) = self.operand_metas
        if index is None or index.dtype.kind != "int":
            raise VerifyException(f"has the operand {index}; expected a tensor of integers")
        return index.shape


SHARD_INDEX_CLASSES: dict[str, type[ShardIndexOp]] = {op.name: op for op in (PositionsOp, LocalIndexOp)}
"""Name of an op → its class."""
