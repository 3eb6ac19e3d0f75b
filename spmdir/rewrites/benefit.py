"""The benefit of a rewrite: the cost of the ops that it removes, minus the cost of the ops that it adds."""

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
    """The cost of ops. A rewrite is beneficial if the fields before `seconds` decrease, and `seconds` do not increase.

    The fields before `seconds` are compared in order: a later one counts only if all earlier ones are equal.

    Attributes:
        wire_bytes: bytes that a rank sends.
        collectives: collectives that send.
        touched_bytes: bytes of the results of local ops, and bytes that collectives pack.
        ops: the number of ops.
        seconds: the modelled time. Each local op counts as one kernel.
    """

    wire_bytes: float
    collectives: int
    touched_bytes: float
    ops: int
    seconds: float

    @property
    def pays(self) -> bool:
        """Return whether a rewrite is beneficial. `self` is its change of the cost: the cost after minus before."""
        return self[:-1] < FREE[:-1] and self.seconds <= 0.0


FREE = RewriteCost(0.0, 0, 0.0, 0, 0.0)
"""The cost of no op."""


@attrs.frozen
class Pricing:
    """Prices of the ops of a global program.

    Attributes:
        mesh: the mesh of the program.
        rules: the rules of its ops.
        machine: returns the machine of the program. It is called only if an op is priced.
    """

    mesh: Mesh
    rules: RuleSet
    machine: Callable[[], Machine]

    def cost_of_op(self, op: ValueOp) -> RewriteCost:
        """Return the cost of an op of the program, all of whose results have shardings."""
        if isinstance(op, WaitOp):
            return RewriteCost(0.0, 0, 0.0, 1, 0.0)
        if isinstance(op, Collective):
            meta = op.metas[0]
            assert meta is not None  # no rewrite matches buckets
            return _step_cost(op.step(self.mesh), meta, self.mesh, self.machine().topology)
        results = tuple((meta, sharding) for meta, sharding in zip(op.metas, op.shardings, strict=True))
        return self._cost_of_local_op(op, [sharding_of(value) for value in op.tensors], results)

    def cost_of_node(self, node: New) -> RewriteCost:
        """Return the cost of an op that a rewrite would add."""
        if isinstance(node, NewWait):
            return RewriteCost(0.0, 0, 0.0, 1, 0.0)
        if isinstance(node, NewCollective):
            return _step_cost(node.step, meta_at(node), self.mesh, self.machine().topology)
        result = (meta_at(node), node.sharding)
        return self._cost_of_local_op(node.op, [sharding_at(operand) for operand in node.operands], (result,))

    def _cost_of_local_op(
        self, op: ValueOp, operands: Sequence[Sharding | None], results: Sequence[Any]
    ) -> RewriteCost:
        """Return the cost of a local op from the shardings of its operands, and (type, sharding) of its results."""
        touched_bytes = sum(_local_bytes(meta, sharding, self.mesh) for meta, sharding in results)
        if not isinstance(op, AtenOp) or None in operands:
            return RewriteCost(0.0, 0, touched_bytes, 1, 0.0)
        call = op.call()
        work = work_alone(self.rules.instantiate(call), op.name, call.operands, tuple(meta for meta, _ in results))
        typed_operands = tuple(zip(call.operands, operands, strict=True))
        seconds = op_seconds(work, typed_operands, tuple(results), self.mesh, self.machine().topology)  # type: ignore  # no operand is None here
        return RewriteCost(0.0, 0, touched_bytes, 1, seconds)


def add_costs(costs: Iterable[RewriteCost]) -> RewriteCost:
    """Return the sum of `costs`."""
    # FREE makes the sum of no costs 0.
    wire, collectives, touched, ops, seconds = zip(FREE, *costs, strict=True)
    return RewriteCost(sum(wire), sum(collectives), sum(touched), sum(ops), sum(seconds))


def subtract_costs(before: RewriteCost, after: RewriteCost) -> RewriteCost:
    """Return after − before. A difference within rounding errors is 0."""
    return RewriteCost(
        _difference(before.wire_bytes, after.wire_bytes),
        after.collectives - before.collectives,
        after.touched_bytes - before.touched_bytes,
        after.ops - before.ops,
        _difference(before.seconds, after.seconds),
    )


def _difference(before: float, after: float) -> float:
    """Return after − before; 0 within rounding errors."""
    return after - before if abs(after - before) > 1e-9 * before else 0.0


@lru_cache(maxsize=65536)
def _step_cost(step: Step, meta: TensorMeta, mesh: Mesh, topology: Topology) -> RewriteCost:
    """Return the cost of a collective. Shards along a dimension other than the first must be packed."""
    sizes = step_sizes(step, meta.shape, meta.dtype.itemsize, mesh)
    if sizes.group == 1:
        return RewriteCost(0.0, 0, 0.0, 1, 0.0)
    collectives = step_collectives(step, meta.shape, meta.dtype.itemsize, mesh)
    wire = sum(traffic.wire(collective_sizes) for traffic, collective_sizes in collectives)
    packed = max(sizes.source, sizes.target) if sizes.dim or sizes.to_dim else 0.0
    seconds = step_cost(step, meta.shape, meta.dtype.itemsize, mesh, topology).seconds
    return RewriteCost(wire, int(sends_anything(step, meta.shape, mesh)), packed, 1, seconds)


@lru_cache(maxsize=65536)
def _local_bytes(meta: TensorMeta, sharding: Sharding, mesh: Mesh) -> float:
    return local_bytes(sharding, meta.shape, meta.dtype.itemsize, mesh)
