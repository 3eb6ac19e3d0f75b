"""Buckets: several values joined, so that one collective serves all."""

from __future__ import annotations

import math
from typing import Any, ClassVar, TypeGuard

from xdsl.ir import Operation
from xdsl.irdl import irdl_op_definition, traits_def
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from spmdir.core.errors import ShardingError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.standard import Placement
from spmdir.core.sharding import Sharding
from spmdir.dialects.attributes import (
    meta_of,
)
from spmdir.dialects.collectives import Collective, WaitOp
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import global_shape, sharding_of
from spmdir.reshard.conditions import refinement


@irdl_op_definition
class BucketOp(ValueOp):
    """`bucket %a, %b`: the pieces of several values, flattened and joined, so that one collective serves all."""

    name = "spmd.bucket"
    PARENTHESISED: ClassVar = False
    traits = traits_def(Pure())

    def check(self, mesh: Mesh | None) -> None:
        super().check(mesh)
        check_bucket(mesh, self.shardings[0], self.results[0], self.operands)
        for use in self.results[0].uses:
            _check_bucket_use(use.operation)


@irdl_op_definition
class UnbucketOp(ValueOp):
    """`unbucket %b`: the values that a bucket joined, in order, with what was reduced in between."""

    name = "spmd.unbucket"
    PARENTHESISED: ClassVar = False
    traits = traits_def(Pure())

    def check_counts(self) -> None:
        if len(self.operands) != 1:
            raise VerifyException(f"takes one bucket, found {len(self.operands)} operands")
        super().check_counts()

    def check(self, mesh: Mesh | None) -> None:
        super().check(mesh)
        joined = self.operands[0].owner
        while _keeps_bucket(joined):
            joined = joined.operands[0].owner
        if not isinstance(joined, BucketOp) or len(joined.operands) != len(self.results):
            raise VerifyException(f"gives {len(self.results)} values; expected those of a spmd.bucket, one for each")
        check_bucket(mesh, sharding_of(self.operands[0]), self.operands[0], self.results)
        for index, (before, after) in enumerate(zip(joined.operands, self.results, strict=True)):
            if global_shape(before, mesh) != global_shape(after, mesh) or _pieces(before) != _pieces(after):
                raise ShardingError(
                    f"result {index} is {_shown(after, mesh)}, but the bucket joined {_shown(before, mesh)}; "
                    "only a reduction can be done in between"
                )


def check_bucket(mesh: Mesh | None, sharding: Sharding | None, bucket: Any, members: Any) -> None:
    """Raise unless `bucket`, of `sharding`, can be the pieces of its members joined.

    It has their partial placements and element type. Its type is 1-D; dimension 0 is sharded at least by every axis
    that shards a member, so that its local length is the sum of their local sizes, and these must be even.
    """
    if mesh is None or sharding is None or not members:
        raise VerifyException("needs a mesh, shardings and at least one member")
    fine = refinement(mesh, sharding, *(held for member in members if (held := sharding_of(member))))
    axes, total = sharding.refined(fine).dim_axes(0), 0
    for member in members:
        meta, held = meta_of(member.type), sharding_of(member)
        if meta is None or held is None or held.partial != sharding.partial:
            raise ShardingError(
                f"members of a bucket have the partial placements of <{sharding}>, found <{held}>; reshard the member"
            )
        dtype = meta_of(bucket.type).dtype  # type: ignore
        if meta.dtype != dtype:
            raise VerifyException(f"members of a bucket have its element type, found {meta.dtype}; expected {dtype}")
        for axis in (part for whole, _ in _pieces(member) for part in fine.parts(whole)):
            if axis not in axes:
                raise ShardingError(
                    f"'{axis}' shards a member, <{held}>; expected it to shard the bucket too, found <{sharding}>"
                )
        shape = global_shape(member, mesh)
        for dim, size in enumerate(shape):
            if size % (parts := mesh.group_size(held.dim_axes(dim))):
                raise ShardingError(
                    f"dimension {dim} of a bucket's member is sharded unevenly: {size}; expected a multiple of {parts}"
                )
        total += math.prod(shape) // mesh.group_size(axis for axis, _ in _pieces(member))
    expected = (total * fine.group_size(axes),)
    if global_shape(bucket, mesh) != expected:
        found = list(global_shape(bucket, mesh))
        raise VerifyException(f"a bucket of these members has the shape {list(expected)}, found {found}")


def _check_bucket_use(user: Operation) -> None:
    """A bucket is no value of the program, so that it can be reduced and taken apart, and nothing else."""
    if _keeps_bucket(user):
        for use in user.results[0].uses:
            _check_bucket_use(use.operation)
    elif not isinstance(user, UnbucketOp):
        raise VerifyException(f"is used by '{user.name}'; a bucket may only be reduced and given to spmd.unbucket")


def _keeps_bucket(op: object) -> TypeGuard[Collective | WaitOp]:
    """Return whether what `op` gives of a bucket is a bucket still."""
    return isinstance(op, WaitOp) or (isinstance(op, Collective) and op.spec.may_be_bucketed)


def _pieces(value: Any) -> list[tuple[str, Placement]]:
    """The axes that divide a value, with their dimensions."""
    held = sharding_of(value)
    return [(axis, placement) for axis, placement in held.entries if placement.trait != "partial"] if held else []


def _shown(value: Any, mesh: Mesh | None) -> str:
    return f"{list(global_shape(value, mesh))} <{sharding_of(value)}>"
