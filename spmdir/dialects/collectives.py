"""The collectives, each verifying its own transition. They name mesh axes, never ranks or groups."""

from __future__ import annotations

from typing import Any, ClassVar

from xdsl.irdl import irdl_op_definition
from xdsl.utils.exceptions import VerifyException

from spmdir.core.errors import ShardingError
from spmdir.core.mesh import Mesh
from spmdir.core.sharding import Sharding
from spmdir.dialects.attributes import (
    meta_of,
)
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import global_shape, sharding_of
from spmdir.reshard.steps import transition


class SpmdOp(ValueOp):
    """Base of the ops that take one tensor and give one."""

    PARENTHESISED: ClassVar[bool] = False

    def check_counts(self) -> None:
        if len(self.operands) != 1 or len(self.results) != 1:
            found = f"{len(self.operands)} operands and {len(self.results)} results"
            raise VerifyException(f"has {found}; expected one each")
        super().check_counts()

    def check(self, mesh: Mesh | None) -> None:
        super().check(mesh)
        source, target = self.operands[0], self.results[0]
        before, after = meta_of(source.type), meta_of(target.type)
        if before is None or after is None:
            raise VerifyException("works on tensors alone")
        if before.dtype != after.dtype:
            raise VerifyException(f"changes the element type from {before.dtype} to {after.dtype}")
        shape, given = global_shape(source, mesh), global_shape(target, mesh)
        if shape != given:
            raise VerifyException(f"changes the global shape from {list(shape)} to {list(given)}")

    @property
    def source(self) -> Sharding | None:
        """The sharding of the operand; None where undecided."""
        return sharding_of(self.operands[0])

    @property
    def target(self) -> Sharding | None:
        """The sharding of the result; None where undecided."""
        return self.shardings[0]


class Collective(SpmdOp):
    """Base of the ops that move from one sharding to another; the result's sharding must be the legal one."""

    def check(self, mesh: Mesh | None) -> None:
        super().check(mesh)
        if mesh is None or self.source is None or self.target is None:
            raise VerifyException("a collective needs the shardings of its operand and of its result")
        argument = self.argument
        axes = argument.get("axes", ())
        if not isinstance(axes, tuple) or not all(isinstance(axis, str) for axis in axes):
            raise VerifyException("expected the axes as a list of names, as in `on [dp, tp]`")
        for axis in axes:
            mesh.require(str(axis))
        for name in ("dim", "to_dim"):
            if type(argument.get(name, 0)) is not int:
                raise VerifyException(f"expected a number for the dimension, found {argument[name]!r}")
        if argument.get("asynchronous") and not all(isinstance(use.operation, WaitOp) for use in self.results[0].uses):
            raise VerifyException("is async, so its result may only be given to spmd.wait")
        self.check_transition(mesh, argument, global_shape(self.operands[0], mesh))

    def check_transition(self, mesh: Mesh, argument: dict[str, Any], shape: tuple[int, ...]) -> None:
        """Raise ShardingError unless operand and result shardings are this collective's transition."""
        assert self.source is not None and self.target is not None
        legal = transition(
            self.name.removeprefix("spmd."),
            self.source,
            mesh,
            shape,
            axes=argument.get("axes", ()),
            dim=argument.get("dim"),
            to_dim=argument.get("to_dim"),
            op=argument.get("op"),
            target=self.target,
        )
        if legal != self.target:
            raise ShardingError(f"{self.name} of <{self.source}> gives <{legal}>, found <{self.target}>")


_ON = ("on", "axes")


@irdl_op_definition
class AllReduceOp(Collective):
    """`all_reduce %x on [tp] op sum`: the pending reduction over the axes is done; every rank gets the result."""

    name = "spmd.all_reduce"
    CLAUSES: ClassVar = (_ON, ("op", "op"), ("async", "asynchronous"))


@irdl_op_definition
class AllGatherOp(Collective):
    """`all_gather %x on [tp] dim 0`: the innermost pieces of a dimension are put together on every rank."""

    name = "spmd.all_gather"
    CLAUSES: ClassVar = (_ON, ("dim", "dim"), ("async", "asynchronous"))


@irdl_op_definition
class ReduceScatterOp(Collective):
    """`reduce_scatter %x on [tp] dim 0 op sum`: the pending reduction is done and each rank keeps its piece."""

    name = "spmd.reduce_scatter"
    CLAUSES: ClassVar = (_ON, ("dim", "dim"), ("op", "op"), ("async", "asynchronous"))


@irdl_op_definition
class AllToAllOp(Collective):
    """`all_to_all %x on [tp] from 0 to 1`: the axes leave one dimension and divide another."""

    name = "spmd.all_to_all"
    CLAUSES: ClassVar = (_ON, ("from", "dim"), ("to", "to_dim"), ("async", "asynchronous"))


@irdl_op_definition
class PermuteOp(Collective):
    """`permute %x`: pieces move between ranks as they are."""

    name = "spmd.permute"
    CLAUSES: ClassVar = (("async", "asynchronous"),)


@irdl_op_definition
class ExchangeOp(Collective):
    """`exchange %x`: every rank gets what it lacks straight from the ranks that hold it, and reduces it if need be."""

    name = "spmd.exchange"
    CLAUSES: ClassVar = (("async", "asynchronous"),)


@irdl_op_definition
class RelayOp(Collective):
    """`relay %x`: ranks are sent addends, reduce them and send the sums to the ranks that want them."""

    name = "spmd.relay"
    CLAUSES: ClassVar = (("async", "asynchronous"),)


@irdl_op_definition
class RearrangeOp(Collective):
    """`rearrange %x`: every rank makes its new shard of elements that it holds, or of a reduction's identity; local."""

    name = "spmd.rearrange"


@irdl_op_definition
class ConvertOp(Collective):
    """`convert %x`: a step that a placement declares, from it or to it; its edge says how."""

    name = "spmd.convert"


@irdl_op_definition
class SliceOp(Collective):
    """`slice %x on [tp] dim 0`: each rank keeps its piece of a replicated value; local."""

    name = "spmd.slice"
    CLAUSES: ClassVar = (_ON, ("dim", "dim"))


@irdl_op_definition
class PartitionOp(Collective):
    """`partition %x on [tp] op sum`: a replicated value becomes one whose reduction over the axes is pending; local."""

    name = "spmd.partition"
    CLAUSES: ClassVar = (_ON, ("op", "op"))


@irdl_op_definition
class BroadcastOp(Collective):
    """`broadcast %x on [tp]`: the value of the first rank of each group is given to all."""

    name = "spmd.broadcast"
    CLAUSES: ClassVar = (_ON, ("async", "asynchronous"))

    def check_transition(self, mesh: Mesh, argument: dict[str, Any], shape: tuple[int, ...]) -> None:
        if self.source != self.target:
            raise ShardingError(f"broadcast keeps the sharding <{self.source}>, found <{self.target}>")
        for axis in argument.get("axes", ()):
            placement = self.source.along(axis, mesh)  # type: ignore
            if placement is None or placement.trait != "replicated":
                raise ShardingError(f"broadcast over '{axis}' needs it replicated, found {placement or self.source}")


@irdl_op_definition
class WaitOp(SpmdOp):
    """`wait %x`: the result of a collective started with `async`."""

    name = "spmd.wait"

    def check(self, mesh: Mesh | None) -> None:
        super().check(mesh)
        owner = self.operands[0].owner
        if not isinstance(owner, Collective) or not owner.argument.get("asynchronous"):
            raise VerifyException("waits for a value that no `async` collective made")
        if self.source != self.target:
            raise ShardingError(f"wait keeps the sharding <{self.source}>, found <{self.target}>")
