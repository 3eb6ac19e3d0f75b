"""Ops of local forms that exchange the rows of a mixture of experts between the ranks of an axis.

The ops occur only after localize. The number of rows that a rank sends is data, so the types of the ops have the sizes
of a balanced router. split-async divides the local form of an exchange at its start and its wait, which count as one op
of the form.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import irdl_op_definition
from xdsl.utils.exceptions import VerifyException

from spmdir.core.mesh import Mesh
from spmdir.core.placement.tensor import TensorMeta
from spmdir.dialects.attributes import DYNAMIC, meta_of, pending_type, type_of
from spmdir.dialects.collectives import check_waited
from spmdir.dialects.ring_ops import LocalFormOp, check_axes
from spmdir.dialects.values import global_type, sharding_of


class ExpertExchangeOp(LocalFormOp):
    """Base class of the ops that exchange rows or their counts."""

    PARENTHESISED: ClassVar[bool] = False
    CLAUSES: ClassVar = (("on", "axes"),)
    IS_START: ClassVar[bool] = False
    """Whether the op only starts the exchange: its result is pending, and `spmd.wait` returns the tensor."""

    @classmethod
    def result_type(cls, meta: TensorMeta | None) -> Attribute:
        return pending_type(meta) if cls.IS_START and meta else type_of(meta)

    @property
    def axes(self) -> tuple[str, ...]:
        """Return the mesh axes of the groups, major first."""
        return tuple(map(str, self.argument["axes"]))  # type: ignore  # verified

    @property
    def pairs(self) -> Sequence[tuple[SSAValue, SSAValue]]:
        """Return (operand, result), as `Collective.pairs` does."""
        return [(self.operands[0], self.results[0])]

    def sent(self, mesh: Mesh) -> int:
        """Return the bytes that a rank sends if the router is balanced."""
        meta, count = self._balanced_meta(mesh), mesh.group_size(self.axes)
        return 0 if meta is None else meta.bytes * (count - 1) // count

    def check_form(self, mesh: Mesh) -> None:
        """Raise SpmdirError unless the axes are valid, and a start is waited for once."""
        self.check_argument_names("axes")
        check_axes(self.argument.get("axes"), mesh)
        if self.IS_START:
            check_waited(self)

    def _balanced_meta(self, mesh: Mesh) -> TensorMeta | None:
        """Return the type of the first rank's operand with a balanced router; None if one of its sizes is unknown.

        A DYNAMIC size is that of the shard of the first rank, if the global type is known.
        """
        value = self.operands[0]
        meta, sharding, global_meta = meta_of(value.type), sharding_of(value), global_type(value, mesh)
        if meta is not None and DYNAMIC in meta.shape and sharding is not None and global_meta is not None:
            meta = (
                sharding.local_type(global_meta, mesh, mesh.coordinate(0))
                if DYNAMIC not in global_meta.shape
                else global_meta
            )
        return None if meta is None or DYNAMIC in meta.shape else meta


class CountsExchangeOp(ExpertExchangeOp):
    """Base class of the exchange of counts and of its start."""

    def check_form(self, mesh: Mesh) -> None:
        """Raise SpmdirError unless the operand is a vector that the ranks divide, and the result has a row for each."""
        self.check_value_counts(1, 1)
        super().check_form(mesh)
        count, meta = mesh.group_size(self.axes), self.operand_metas[0]
        if meta is None or meta.rank != 1 or meta.shape[0] % count:
            raise VerifyException(f"has the operand {meta}; expected a vector that {count} ranks divide evenly")
        self.check_result_types((TensorMeta((count, meta.shape[0] // count), meta.dtype),))


class RowsExchangeOp(ExpertExchangeOp):
    """Base class of the exchange of rows and of its start."""

    def check_form(self, mesh: Mesh) -> None:
        """Raise SpmdirError unless rows of one shape and element type go in and out. Their number may change."""
        self.check_value_counts(3, 1)
        super().check_form(mesh)
        rows, result = self.operand_metas[0], self.metas[0]
        if rows is None or result is None or not rows.rank or rows.dtype != result.dtype:
            raise VerifyException(f"exchanges {rows} for {result}; expected rows of one element type")
        if rows.shape[1:] != result.shape[1:]:
            raise VerifyException(f"exchanges {rows} for {result}; expected rows of equal shapes")


class SlotsExchangeOp(ExpertExchangeOp):
    """Base class of the exchange of slots and of its start."""

    def check_form(self, mesh: Mesh) -> None:
        """Raise SpmdirError unless the operand and the result have one type, whose rows the ranks divide."""
        self.check_value_counts(1, 1)
        super().check_form(mesh)
        count, meta = mesh.group_size(self.axes), self.operand_metas[0]
        if meta is None or not meta.rank or (meta.shape[0] != DYNAMIC and meta.shape[0] % count):
            raise VerifyException(f"exchanges {meta}; expected rows that {count} ranks divide evenly")
        self.check_result_types(self.operand_metas)


@irdl_op_definition
class ExchangeCountsOp(CountsExchangeOp):
    """`exchange_counts %counts on [ep]`: send each rank the counts of its experts: [E] → [ranks, E / ranks]."""

    name = "spmd.exchange_counts"


@irdl_op_definition
class ExchangeRowsOp(RowsExchangeOp):
    """`exchange_rows %rows, %sent, %received on [ep]`: send rows to the ranks of their experts, or back.

    `%sent` and `%received` are counts of rows, with the peers in their leading dimension. The rows for a peer are
    contiguous, in the order of the ranks.
    """

    name = "spmd.exchange_rows"


@irdl_op_definition
class ExchangeSlotsOp(SlotsExchangeOp):
    """`exchange_slots %slots on [ep]`: send each rank an equal part of the rows. Received parts are in rank order."""

    name = "spmd.exchange_slots"


@irdl_op_definition
class ExchangeSlotsStartOp(SlotsExchangeOp):
    """`exchange_slots_start %slots on [ep]`: start an `exchange_slots`."""

    name = "spmd.exchange_slots_start"
    IS_START: ClassVar[bool] = True


@irdl_op_definition
class ExchangeCountsStartOp(CountsExchangeOp):
    """`exchange_counts_start %counts on [ep]`: start an `exchange_counts`."""

    name = "spmd.exchange_counts_start"
    IS_START: ClassVar[bool] = True


@irdl_op_definition
class ExchangeRowsStartOp(RowsExchangeOp):
    """`exchange_rows_start %rows, %sent, %received on [ep]`: start an `exchange_rows`."""

    name = "spmd.exchange_rows_start"
    IS_START: ClassVar[bool] = True


EXCHANGE_STARTS: dict[type[ExpertExchangeOp], type[ExpertExchangeOp]] = {
    ExchangeCountsOp: ExchangeCountsStartOp,
    ExchangeRowsOp: ExchangeRowsStartOp,
    ExchangeSlotsOp: ExchangeSlotsStartOp,
}
"""Op class → class of the op that starts the exchange."""


@irdl_op_definition
class CheckCapacityOp(LocalFormOp):
    """`check_capacity %counts capacity 12`: the counts. If one exceeds the capacity, the program fails.

    The last such op of a program raises the error on all ranks, if any rank has more rows than that for an expert.
    """

    name = "spmd.check_capacity"
    PARENTHESISED: ClassVar[bool] = False
    CLAUSES: ClassVar = (("capacity", "capacity"),)

    @property
    def capacity(self) -> int:
        """Return the largest number of rows of an expert."""
        return self.argument["capacity"]  # type: ignore  # verified

    def check_form(self, mesh: Mesh) -> None:
        """Raise SpmdirError unless the operand and the result are equal vectors, and the capacity is positive."""
        self.check_value_counts(1, 1)
        self.check_argument_names("capacity")
        capacity = self.argument.get("capacity")
        if type(capacity) is not int or capacity < 1:
            raise VerifyException(f"has capacity {capacity!r}; expected a positive integer")
        self.check_result_types(self.operand_metas)


EXPERT_CLASSES: dict[str, type[LocalFormOp]] = {
    op.name: op for op in (*EXCHANGE_STARTS, *EXCHANGE_STARTS.values(), CheckCapacityOp)
}
"""Name of an op → its class."""


def is_exchange_start(op: Operation) -> bool:
    """Return whether an op starts an exchange of rows, and so ends the first part of its local form."""
    return isinstance(op, ExpertExchangeOp) and op.IS_START


def host_reads_counts(op: CountsExchangeOp) -> bool:
    """Return whether an exchange of rows takes the exchanged counts, which the host then reads."""
    (result,) = op.results
    waits = [use.operation for use in result.uses if op.IS_START]
    values = [wait.results[0] for wait in waits] if op.IS_START else [result]
    users = [use.operation for value in values for use in value.uses]
    return any(isinstance(user, RowsExchangeOp) for user in users)
