"""The ops that copy tensors to the memory of the host and back, where the accelerator need not hold them meanwhile.

    %h = spmd.offload %x : !spmd.host<tensor<8x4xf32>> <dp: S(0)>
    %y = spmd.reload %h : tensor<8x4xf32> <dp: S(0)>

Each rank copies its own shard, and sends nothing to others. A copy that is only started gives a pending value, for
which `spmd.wait` waits. Copies in one direction are made one after the other, in program order.
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
    """Base of the ops that copy a tensor to the memory of the host, or from there."""

    TO_HOST: ClassVar[bool]
    """Whether it copies to the host; else from there."""
    IS_START: ClassVar[bool] = False
    """Whether the op only starts to copy: its result is pending, and `spmd.wait` gives what is made."""

    @classmethod
    def copying(cls, value: SSAValue, location: Any = None) -> Self:
        """Return the op that copies `value`; its result has the sharding of that, and as many bytes."""
        properties: dict[str, Attribute] = {"sharding": shardings_attr((sharding_of(value),))}
        if isinstance(value, OpResult) and isinstance(value.op, ValueOp) and value.op.of:
            properties["of"] = ShapesAttr(value.op.of.data[value.index : value.index + 1])
        return cls.create(
            operands=[value],
            result_types=[cls.type_made(value.type)],
            properties=properties,
            location=location or UNKNOWN_LOC,
        )

    @classmethod
    def type_made(cls, type_: Attribute) -> Attribute:
        """Return the type of the copy of what has a type: a tensor, or a tensor on the host."""
        made = host_type(type_) if cls.TO_HOST else type_.tensor if isinstance(type_, HostType) else type_
        return pending(made) if cls.IS_START else made

    def check_operands(self) -> None:
        type_, expected = self.operands[0].type, TensorType if self.TO_HOST else HostType
        if not isinstance(type_, expected):
            wanted = "a tensor on the accelerator" if self.TO_HOST else "what `spmd.offload` gives"
            raise VerifyException(f"copies {print_type(type_)}; expected {wanted}")

    def check(self, mesh: Mesh | None) -> None:
        super().check(mesh)
        found, expected = self.results[0].type, self.type_made(self.operands[0].type)
        if found != expected:
            raise VerifyException(f"gives {print_type(found)}; expected {print_type(expected)}")
        if self.argument:
            raise VerifyException("has no arguments")
        if self.source != self.target:
            raise ShardingError(f"a copy keeps the sharding <{self.source}>, found <{self.target}>")
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
    """Starts what `offload` does."""

    name = "spmd.offload_start"
    TO_HOST: ClassVar[bool] = True
    IS_START: ClassVar[bool] = True


@irdl_op_definition
class ReloadStartOp(HostCopyOp):
    """Starts what `reload` does."""

    name = "spmd.reload_start"
    TO_HOST: ClassVar[bool] = False
    IS_START: ClassVar[bool] = True


STARTS: dict[type[HostCopyOp], type[HostCopyOp]] = {OffloadOp: OffloadStartOp, ReloadOp: ReloadStartOp}
"""Op → the one that starts it."""


def offloaded(value: SSAValue) -> SSAValue | None:
    """Return the tensor of which `value` was brought back from the host; None if it was not."""
    for to_host in (False, True):
        made = value.owner
        made = made.start if isinstance(made, WaitOp) else made
        if not isinstance(made, HostCopyOp) or made.TO_HOST is not to_host:
            return None
        value = made.operands[0]
    return value
