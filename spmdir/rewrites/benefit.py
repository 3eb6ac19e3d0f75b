"""The benefit of a rewrite: what the ops that it removes cost, and those that it makes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import attrs

from spmdir.analysis.op_seconds import op_seconds, work_alone
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.tensor import TensorMeta
from spmdir.dialects.aten import AtenOp
from spmdir.dialects.collectives import Collective, WaitOp
from spmdir.dialects.machine_attribute import Machine
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import sharding_of
from spmdir.reshard.cost import local_bytes, sends_anything, step_collectives, step_cost, step_sizes
from spmdir.reshard.steps import Step
from spmdir.reshard.topology import Topology
from spmdir.rewrites.replacement import New, NewCollective, NewWait, meta_at, sharding_at
from spmdir.rules import RuleSet


class RewriteCost(NamedTuple):
    """What rewrites are compared by: in the order of all but the time, which may not grow.

    Attributes:
        wire_bytes: bytes that a rank sends.
        collectives: collectives that send.
        touched_bytes: bytes that local ops, and the packing of collectives, touch.
        ops: the number of ops.
        seconds: the modelled time, of local ops as kernels by themselves.
    """

    wire_bytes: float
    collectives: int
    touched_bytes: float
    ops: int
    seconds: float

    @property
    def pays(self) -> bool:
        """Return whether a rewrite pays that changes the cost by this."""
        return self[:-1] < FREE[:-1] and self.seconds <= 0.0


FREE = RewriteCost(0.0, 0, 0.0, 0, 0.0)


@attrs.frozen
class Pricing:
    """What ops of a program cost.

    Attributes:
        mesh: of the program, whose types are global.
        rules: of its ops.
        machine: gives what it runs on; asked once something is priced.
    """

    mesh: Mesh
    rules: RuleSet
    machine: Callable[[], Machine]

    def of_op(self, op: ValueOp) -> RewriteCost:
        """Return the cost of an op of the program, all of whose results have shardings."""
        if isinstance(op, WaitOp):
            return RewriteCost(0.0, 0, 0.0, 1, 0.0)
        if isinstance(op, Collective):
            meta = op.metas[0]
            assert meta is not None  # and no rewrite speaks of buckets
            return _step_cost(op.step(self.mesh), meta, self.mesh, self.machine().topology)
        results = tuple((meta, sharding) for meta, sharding in zip(op.metas, op.shardings, strict=True))
        return self._local(op, [sharding_of(value) for value in op.tensors], results)

    def of_node(self, node: New) -> RewriteCost:
        """Return the cost of an op that is to be made."""
        if isinstance(node, NewWait):
            return RewriteCost(0.0, 0, 0.0, 1, 0.0)
        if isinstance(node, NewCollective):
            return _step_cost(node.step, meta_at(node), self.mesh, self.machine().topology)
        result = (meta_at(node), node.sharding)
        return self._local(node.op, [sharding_at(operand) for operand in node.operands], (result,))

    def _local(self, op: ValueOp, operands: Sequence[Sharding | None], results: Sequence[Any]) -> RewriteCost:
        touched = sum(_touched(meta, sharding, self.mesh) for meta, sharding in results)
        if not isinstance(op, AtenOp) or None in operands:
            return RewriteCost(0.0, 0, touched, 1, 0.0)
        call = op.call()
        work = work_alone(self.rules.instantiate(call), op.name, call.operands, tuple(meta for meta, _ in results))
        needed = tuple(zip(call.operands, operands, strict=True))
        spent = op_seconds(work, needed, tuple(results), self.mesh, self.machine().topology)  # type: ignore  # None is not there
        return RewriteCost(0.0, 0, touched, 1, spent)


def total(costs: Iterable[RewriteCost]) -> RewriteCost:
    """Return the sum of `costs`."""
    wire, collectives, touched, ops, seconds = zip(FREE, *costs, strict=True)
    return RewriteCost(sum(wire), sum(collectives), sum(touched), sum(ops), sum(seconds))


def change(before: RewriteCost, after: RewriteCost) -> RewriteCost:
    """Return after − before; bytes and times that differ by rounding alone are equal."""
    return RewriteCost(
        _change(before.wire_bytes, after.wire_bytes),
        after.collectives - before.collectives,
        after.touched_bytes - before.touched_bytes,
        after.ops - before.ops,
        _change(before.seconds, after.seconds),
    )


def _change(before: float, after: float) -> float:
    return after - before if abs(after - before) > 1e-9 * before else 0.0


@lru_cache(maxsize=65536)
def _step_cost(step: Step, meta: TensorMeta, mesh: Mesh, topology: Topology) -> RewriteCost:
    """Return the cost of a collective: shards along a dimension other than the first have to be packed."""
    sizes = step_sizes(step, meta.shape, meta.dtype.itemsize, mesh)
    if sizes.group == 1:
        return RewriteCost(0.0, 0, 0.0, 1, 0.0)
    wire = sum(t.wire(s) for t, s in step_collectives(step, meta.shape, meta.dtype.itemsize, mesh))
    packed = max(sizes.source, sizes.target) if sizes.dim or sizes.to_dim else 0.0
    seconds = step_cost(step, meta.shape, meta.dtype.itemsize, mesh, topology).seconds
    return RewriteCost(wire, int(sends_anything(step, meta.shape, mesh)), packed, 1, seconds)


@lru_cache(maxsize=65536)
def _touched(meta: TensorMeta, sharding: Sharding, mesh: Mesh) -> float:
    return local_bytes(sharding, meta.shape, meta.dtype.itemsize, mesh)
