"""Compute the time of an op of a decided program on the busiest rank, with the prices of `propagate`."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.shards import ShardPlacement
from spmdir.core.placement.tensor import TensorMeta
from spmdir.reshard.conditions import refinement
from spmdir.reshard.topology import Topology
from spmdir.rules import OpRule
from spmdir.rules.strategies.strategy import Strategy
from spmdir.search.kernels import Step, works
from spmdir.search.problem import local_work
from spmdir.search.roofline import Work

ShardedType = tuple[TensorMeta, Sharding]
"""The global type of a value, and its sharding."""


@functools.lru_cache(maxsize=4096)
def work_alone(
    rule: OpRule | None, name: str, operands: tuple[TensorMeta, ...], results: tuple[TensorMeta, ...]
) -> Work:
    """Return the work of an unsharded op that is not fused with others.

    Args:
        rule: None if the op has no rule.
        operands, results: the global types.
    """
    operand_count = len(operands)
    inputs = [Step(None, "", (), (index,)) for index in range(operand_count)]
    op = Step(rule, name, tuple(range(operand_count)), tuple(range(operand_count, operand_count + len(results))))
    return works([*inputs, op], [*operands, *results], has_names=True)[-1]


def op_seconds(
    work: Work, operands: tuple[ShardedType, ...], results: tuple[ShardedType, ...], mesh: Mesh, topology: Topology
) -> float:
    """Return the seconds of an op on the busiest rank.

    Args:
        work: the work of the unsharded op.
    """
    return op_work(work, operands, results, mesh, topology.imbalance).time(topology).seconds


@functools.lru_cache(maxsize=65536)
def op_work(
    work: Work,
    operands: tuple[ShardedType, ...],
    results: tuple[ShardedType, ...],
    mesh: Mesh,
    imbalance: float = 1.0,
) -> Work:
    """Return the work of an op on the busiest rank.

    Args:
        work: the work of the unsharded op.
        imbalance: as in `Topology`.
    """
    fine = refinement(mesh, *(sharding for _, sharding in (*operands, *results)))
    refined_operands = [(meta, sharding.refined(fine)) for meta, sharding in operands]
    refined_results = [(meta, sharding.refined(fine)) for meta, sharding in results]
    strategies = [_strategy(axis, refined_operands, refined_results) for axis in fine.axis_names]
    return local_work(work, strategies, [fine.sizes[axis] for axis in fine.axis_names], imbalance)


def _strategy(axis: str, operands: Sequence[ShardedType], results: Sequence[ShardedType]) -> Strategy:
    """Return the strategy on `axis` that has the given shardings.

    Without the rule of the op, its factors are unknown. The first dimension that the axis shards counts as a factor,
    because it determines the work of a rank. Dimensions are numbered through all tensors: with operands of ranks 2 and
    3, S(1) of the second one is factor 3.
    """
    operand_placements = tuple([sharding[axis] for _, sharding in operands])
    result_placements = tuple([sharding[axis] for _, sharding in results])
    dims_before = 0  # the dimensions of the tensors before this one
    for meta, sharding in (*operands, *results):
        placement = sharding[axis]
        if isinstance(placement, ShardPlacement):
            partition = placement, meta.shape[placement.dim]
            return Strategy(operand_placements, result_placements, (dims_before + placement.dim,), partition=partition)
        dims_before += meta.rank
    return Strategy(operand_placements, result_placements)
