"""How long an op of a decided program computes on the busiest rank, as propagate prices it."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import ShardPlacement
from spmdir.core.sharding import Sharding
from spmdir.core.tensor import TensorMeta
from spmdir.reshard.conditions import refinement
from spmdir.reshard.cost import local_shape
from spmdir.reshard.costs import Measured
from spmdir.reshard.topology import Topology
from spmdir.rules import OpRule
from spmdir.search.kernels import Step, works
from spmdir.search.problem import largest_part
from spmdir.search.work import Work

Laid = tuple[TensorMeta, Sharding]
"""The global type of a value, and its sharding."""


@functools.lru_cache(maxsize=4096)
def work_alone(
    rule: OpRule | None, name: str, operands: tuple[TensorMeta, ...], results: tuple[TensorMeta, ...]
) -> Work:
    """Return the work of an op that is a kernel by itself."""
    first = len(operands)
    inputs = [Step(None, "", (), (index,)) for index in range(first)]
    op = Step(rule, name, tuple(range(first)), tuple(range(first, first + len(results))))
    return works([*inputs, op], [*operands, *results], are_named=True)[-1]


@functools.lru_cache(maxsize=65536)
def op_seconds(
    work: Work, operands: tuple[Laid, ...], results: tuple[Laid, ...], mesh: Mesh, topology: Topology
) -> Measured:
    """Return the time of an op, and what it is from: lines of a table of costs, or the topology that models it.

    Args:
        work: of the unsharded op.
    """
    if topology.costs is not None and work.op:
        local = [TensorMeta(local_shape(sharding, meta.shape, mesh), meta.dtype) for meta, sharding in operands]
        found = topology.costs.op(work.op, local)
        if found is not None:
            return found
    fine = refinement(mesh, *(sharding for _, sharding in (*operands, *results)))
    values = [(meta, sharding.refined(fine)) for meta, sharding in (*operands, *results)]
    compute = math.prod(_computed(values, axis, fine) for axis in _axes(values))
    fractions = [[_held(*laid, mesh) for laid in side] for side in (operands, results)]
    spent = work.seconds(
        topology,
        compute,
        fractions[0] if work.operand_bytes else (),
        fractions[1] if work.result_bytes else (),
    )
    return Measured(spent, topology.name)


def _axes(values: Sequence[Laid]) -> list[str]:
    """Return the axes that shard some of `values`."""
    placed = [entry for _, sharding in values for entry in sharding.entries]
    return list(dict.fromkeys(axis for axis, placement in placed if isinstance(placement, ShardPlacement)))


def _computed(values: Sequence[Laid], axis: str, mesh: Mesh) -> float:
    """Return the fraction of the arithmetic that `axis` leaves the busiest rank: of the first value that it shards."""
    count = mesh.sizes[axis]
    found = ((meta, sharding[axis]) for meta, sharding in values)
    return next(
        largest_part(placement, meta.shape[placement.dim], count)
        for meta, placement in found
        if isinstance(placement, ShardPlacement)
    )


def _held(meta: TensorMeta, sharding: Sharding, mesh: Mesh) -> float:
    """Return the fraction of a value's elements that the busiest rank has."""
    return math.prod(local_shape(sharding, meta.shape, mesh)) / max(meta.numel, 1)
