"""Ops of local forms that exchange the rows of a mixture of experts between the ranks of an axis.

The ops occur only after localize. The number of rows that a rank sends is data, so the types of the ops have the sizes
of a balanced router.
"""

from __future__ import annotations

from typing import ClassVar

from xdsl.irdl import irdl_op_definition
from xdsl.utils.exceptions import VerifyException

from spmdir.core.mesh import Mesh
from spmdir.core.placement.tensor import TensorMeta
from spmdir.dialects.attributes import DYNAMIC, meta_of
from spmdir.dialects.ring_ops import LocalFormOp, check_axes
from spmdir.dialects.values import global_type, sharding_of


class ExpertExchangeOp(LocalFormOp):
    """Base class of the ops that exchange rows or their counts."""

    PARENTHESISED: ClassVar[bool] = False
    CLAUSES: ClassVar = (("on", "axes"),)
    IS_START: ClassVar[bool] = False

    @property
    def axes(self) -> tuple[str, ...]:
        """Return the mesh axes of the groups, major first."""
        return tuple(map(str, self.argument["axes"]))  # type: ignore  # verified

    def sent(self, mesh: Mesh) -> int:
        """Return the bytes that a rank sends if the router is balanced."""
        meta, count = self._balanced_meta(mesh), mesh.group_size(self.axes)
        return 0 if meta is None else meta.bytes * (count - 1) // count

    def _balanced_meta(self, mesh: Mesh) -> TensorMeta | None:
        """Return the type of the tensor of the first rank with a balanced router; None if sizes are symbolic."""
        value = self.operands[0]
        meta, sharding, whole = meta_of(value.type), sharding_of(value), global_type(value, mesh)
        if meta is not None and DYNAMIC in meta.shape and sharding is not None and whole is not None:
            meta = sharding.local_type(whole, mesh, mesh.coordinate(0)) if DYNAMIC not in whole.shape else whole
        return None if meta is None or DYNAMIC in meta.shape else meta


@irdl_op_definition
class ExchangeCountsOp(ExpertExchangeOp):
    """`exchange_counts %counts on [ep]`: send each rank the counts of its experts: [E] → [ranks, E / ranks]."""

    name = "spmd.exchange_counts"

    def check_form(self, mesh: Mesh) -> None:
        """Raise SpmdirError unless the operand is a vector that the ranks divide, and the result has a row for each."""
        self.check_value_counts(1, 1)
        self.check_argument_names("axes")
        check_axes(self.argument.get("axes"), mesh)
        count, meta = mesh.group_size(self.axes), self.operand_metas[0]
        if meta is None or meta.rank != 1 or meta.shape[0] % count:
            raise VerifyException(f"has the operand {meta}; expected a vector that {count} ranks divide evenly")
        self.check_result_types((TensorMeta((count, meta.shape[0] // count), meta.dtype),))


@irdl_op_definition
class ExchangeRowsOp(ExpertExchangeOp):
    """`exchange_rows %rows, %sent, %received on [ep]`: send rows to the ranks of their experts, or back.

    `%sent` and `%received` are counts of rows, with the peers in their leading dimension. The rows for a peer are
    contiguous, in the order of the ranks.
    """

    name = "spmd.exchange_rows"

    def check_form(self, mesh: Mesh) -> None:
        """Raise SpmdirError unless rows of one shape and element type go in and out. Their number may change."""
        self.check_value_counts(3, 1)
        self.check_argument_names("axes")
        check_axes(self.argument.get("axes"), mesh)
        rows, result = self.operand_metas[0], self.metas[0]
        if rows is None or result is None or not rows.rank or rows.dtype != result.dtype:
            raise VerifyException(f"exchanges {rows} for {result}; expected rows of one element type")
        if rows.shape[1:] != result.shape[1:]:
            raise VerifyException(f"exchanges {rows} for {result}; expected rows of equal shapes")


EXPERT_CLASSES: dict[str, type[LocalFormOp]] = {op.name: op for op in (ExchangeCountsOp, ExchangeRowsOp)}
"""Name of an op → its class."""
