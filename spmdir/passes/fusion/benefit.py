"""The benefit of a rewrite: what the ops that it removes cost, and those that it makes."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from spmdir.core.mesh import Mesh
from spmdir.core.sharding import Sharding
from spmdir.core.tensor import TensorMeta
from spmdir.dialects.collectives import Collective, WaitOp
from spmdir.dialects.value_op import ValueOp
from spmdir.passes.fusion.replacement import New, NewCollective, NewWait, Unbucketed, meta_at
from spmdir.reshard.cost import local_bytes, sends_anything, step_collectives, step_sizes
from spmdir.reshard.steps import Step


class RewriteCost(NamedTuple):
    """What rewrites are compared by, in this order.

    Attributes:
        wire_bytes: bytes that a rank sends.
        collectives: collectives that send.
        touched_bytes: bytes that local ops, and the packing of collectives, touch.
        ops: the number of ops.
    """

    wire_bytes: float
    collectives: int
    touched_bytes: float
    ops: int


FREE = RewriteCost(0.0, 0, 0.0, 0)


def cost_of_op(op: ValueOp, mesh: Mesh) -> RewriteCost:
    """Return the cost of an op of the program, all of whose results have shardings."""
    if isinstance(op, WaitOp):
        return RewriteCost(0.0, 0, 0.0, 1)
    if isinstance(op, Collective):
        meta = op.metas[0]
        assert meta is not None
        return _step_cost(op.step(mesh), meta, mesh)
    touched = 0.0
    for meta, sharding in zip(op.metas, op.shardings, strict=True):
        assert meta is not None and sharding is not None
        touched += _touched(sharding, meta, mesh)
    return RewriteCost(0.0, 0, touched, 1)


def cost_of_node(node: New, mesh: Mesh) -> RewriteCost:
    """Return the cost of an op that is to be made."""
    if isinstance(node, NewWait):
        return RewriteCost(0.0, 0, 0.0, 1)
    if isinstance(node, NewCollective):
        return _step_cost(node.step, meta_at(node), mesh)
    # All results of an unbucket are one op.
    count = int(not isinstance(node, Unbucketed) or node.index == 0)
    return RewriteCost(0.0, 0, _touched(node.sharding, meta_at(node), mesh), count)


def total(costs: Iterable[RewriteCost]) -> RewriteCost:
    """Return the sum of `costs`."""
    wire, collectives, touched, ops = zip(FREE, *costs, strict=True)
    return RewriteCost(sum(wire), sum(collectives), sum(touched), sum(ops))


def change(before: RewriteCost, after: RewriteCost) -> RewriteCost:
    """Return after − before, less than FREE if the rewrite pays; wire bytes that differ by rounding alone are equal."""
    wire = after.wire_bytes - before.wire_bytes
    wire = wire if abs(wire) > 1e-9 * before.wire_bytes else 0.0
    return RewriteCost(
        wire,
        after.collectives - before.collectives,
        after.touched_bytes - before.touched_bytes,
        after.ops - before.ops,
    )


@lru_cache(maxsize=65536)
def _step_cost(step: Step, meta: TensorMeta, mesh: Mesh) -> RewriteCost:
    """Return the cost of a collective: shards along a dimension other than the first have to be packed."""
    sizes = step_sizes(step, meta.shape, meta.dtype.itemsize, mesh)
    if sizes.group == 1:
        return RewriteCost(0.0, 0, 0.0, 1)
    wire = sum(t.wire(s) for t, s in step_collectives(step, meta.shape, meta.dtype.itemsize, mesh))
    packed = max(sizes.source, sizes.target) if sizes.dim or sizes.to_dim else 0.0
    return RewriteCost(wire, int(sends_anything(step, meta.shape, mesh)), packed, 1)


@lru_cache(maxsize=65536)
def _touched(sharding: Sharding, meta: TensorMeta, mesh: Mesh) -> float:
    return local_bytes(sharding, meta.shape, meta.dtype.itemsize, mesh)
