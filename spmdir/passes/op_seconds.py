"""How long an op of a decided program computes on the busiest rank, as propagate prices it."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import ShardPlacement
from spmdir.core.sharding import Sharding
from spmdir.core.tensor import TensorMeta
from spmdir.reshard.conditions import refinement
from spmdir.reshard.costs import Measured
from spmdir.reshard.topology import Topology
from spmdir.rules import OpRule
from spmdir.search.kernels import Step, works
from spmdir.search.problem import NodeStrategy, local_time
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
    fine = refinement(mesh, *(sharding for _, sharding in (*operands, *results)))
    laid = [[(meta, sharding.refined(fine)) for meta, sharding in side] for side in (operands, results)]
    joint = [_strategy(axis, *laid) for axis in fine.axis_names]
    return local_time(work, topology, joint, [fine.sizes[axis] for axis in fine.axis_names])


def _strategy(axis: str, operands: Sequence[Laid], results: Sequence[Laid]) -> NodeStrategy:
    """Return the strategy on `axis` that shardings show; its factor is the first dimension that it shards."""
    required, made = ([sharding[axis] for _, sharding in side] for side in (operands, results))
    before = 0
    for meta, sharding in (*operands, *results):
        placement = sharding[axis]
        if isinstance(placement, ShardPlacement):
            partition = placement, meta.shape[placement.dim]
            return NodeStrategy(tuple(required), tuple(made), (before + placement.dim,), partition=partition)
        before += meta.rank
    return NodeStrategy(tuple(required), tuple(made))
