"""The ops that copy tensors to host memory and back, to free accelerator memory in between.

    %h = spmd.offload %x : !spmd.host<tensor<8x4xf32>> <dp: S(0)>
    %y = spmd.reload %h : tensor<8x4xf32> <dp: S(0)>

Each rank copies its own shard, and sends nothing to other ranks. `offload_start` and `reload_start` return a pending
value, and `spmd.wait` waits for it. Copies in one direction run one after the other, in program order.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

from xdsl.dialects.builtin import UNKNOWN_LOC, TensorType
from xdsl.ir import Attribute, OpResult, SSAValue
from xdsl.irdl import irdl_op_definition
from xdsl.utils.exceptions import VerifyException

from spmdir.core.errors import ShardingError
from spmdir.core.mesh import Mesh
from spmdir.dialects.attributes import HostType, ShapesAttr, host_type, pending, print_type, shardings_attr
from spmdir.dialects.collectives import SpmdOp, WaitOp, check_waited
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import sharding_of


class HostCopyOp(SpmdOp):
    """Base class of the ops that copy a tensor to or from host memory."""

    TO_HOST: ClassVar[bool]
    """Whether the op copies to the host, rather than from it."""
    IS_START: ClassVar[bool] = False
    """Whether the op only starts the copy: its result is pending."""

    @classmethod
    def copying(cls, value: SSAValue, location: Any = None) -> Self:
        """Build the op that copies `value`. Its result has the same sharding and size."""
        properties: dict[str, Attribute] = {"sharding": shardings_attr((sharding_of(value),))}
        if isinstance(value, OpResult) and isinstance(value.op, ValueOp) and value.op.of:
            properties["of"] = ShapesAttr(value.op.of.data[value.index : value.index + 1])
        return cls.create(
            operands=[value],
            result_types=[cls.copy_type(value.type)],
            properties=properties,
            location=location or UNKNOWN_LOC,
        )

    @classmethod
    def copy_type(cls, type_: Attribute) -> Attribute:
        """Return the result type for an operand of type `type_`."""
        if cls.TO_HOST:
            copy_type = host_type(type_)
        else:
            copy_type = type_.tensor if isinstance(type_, HostType) else type_
        return pending(copy_type) if cls.IS_START else copy_type

    def check_operands(self) -> None:
        """Raise VerifyException unless the operand is in the memory that the op copies from."""
        type_, expected = self.operands[0].type, TensorType if self.TO_HOST else HostType
        if not isinstance(type_, expected):
            expected_text = "a tensor on the accelerator" if self.TO_HOST else "the result of `spmd.offload`"
            raise VerifyException(f"copies {print_type(type_)}; expected {expected_text}")

    def check(self, mesh: Mesh | None) -> None:
        """Raise SpmdirError or VerifyException unless the result is a copy with the same sharding, and no argument."""
        super().check(mesh)
        result_type, expected = self.results[0].type, self.copy_type(self.operands[0].type)
        if result_type != expected:
            raise VerifyException(f"returns {print_type(result_type)}; expected {print_type(expected)}")
        if self.argument:
            raise VerifyException(f"has the arguments {', '.join(sorted(self.argument))}; expected none: remove them")
        if self.source != self.target:
            raise ShardingError(
                f"the operand is <{self.source}> and its copy is <{self.target}>; expected one sharding: "
                "give the copy that of the operand"
            )
        if self.IS_START:
            check_waited(self)


@irdl_op_definition
class OffloadOp(HostCopyOp):
    """`offload %x`: the tensor in the memory of the host."""

    name = "spmd.offload"
    TO_HOST: ClassVar[bool] = True


@irdl_op_definition
class ReloadOp(HostCopyOp):
    """`reload %h`: the tensor that was copied to the host."""

    name = "spmd.reload"
    TO_HOST: ClassVar[bool] = False


@irdl_op_definition
class OffloadStartOp(HostCopyOp):
    """`offload_start %x`: start an `offload`."""

    name = "spmd.offload_start"
    TO_HOST: ClassVar[bool] = True
    IS_START: ClassVar[bool] = True


@irdl_op_definition
class ReloadStartOp(HostCopyOp):
    """`reload_start %h`: start a `reload`."""

    name = "spmd.reload_start"
    TO_HOST: ClassVar[bool] = False
    IS_START: ClassVar[bool] = True


STARTS: dict[type[HostCopyOp], type[HostCopyOp]] = {OffloadOp: OffloadStartOp, ReloadOp: ReloadStartOp}
"""Op class → class of the op that starts the copy."""


def offloaded(value: SSAValue) -> SSAValue | None:
    """Return the tensor whose offloaded copy was reloaded as `value`; None if `value` was not reloaded."""
    # From `value` backwards, the producers must be a reload and an offload, each with or without a wait.
    for to_host in (False, True):
        producer = value.owner
        producer = producer.start if isinstance(producer, WaitOp) else producer
        if not isinstance(producer, HostCopyOp) or producer.TO_HOST is not to_host:
            return None
        value = producer.operands[0]
    return value
