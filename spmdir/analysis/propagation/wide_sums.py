"""Find the partial sums that must not be reduced before a cast to a wider type with `spmd.cast_first`."""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from spmdir.analysis.propagation.op_strategies import OpStrategies
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Placement
from spmdir.dialects.aten import AtenOp
from spmdir.dialects.cast_first import CAST_FIRST
from spmdir.rules.strategies.strategy import UNSHARDED


def find_unreduced(function: FuncOp, strategies: Mapping[AtenOp, OpStrategies], mesh: Mesh) -> set[SSAValue]:
    """Return the operands of the casts, and the operands of the sums and views that compute them.

    No reshard may reduce these values: they keep their placements along all axes. A value with several users is
    excluded, because another user may need the reduced value, and so are the values that it is computed from.

    Args:
        strategies: the strategies of each op of the function.
    """
    unreduced: set[SSAValue] = set()
    stack = [op for op in strategies if CAST_FIRST in op.attributes]
    while stack:
        op = stack.pop()
        if not _preserves_sums(strategies[op], mesh):
            continue
        for operand in op.tensors:
            producer = operand.owner
            if isinstance(producer, AtenOp) and operand not in unreduced and operand.has_one_use():
                unreduced.add(operand)
                stack.append(producer)
    return unreduced


def _preserves_sums(source: OpStrategies, mesh: Mesh) -> bool:
    """Return whether an op maps partial sums to a partial sum, as additions, views and casts do."""
    for axis, count in mesh.axes:
        for strategy in source.strategies(axis, count, UNSHARDED):
            if strategy.operands and all(map(_is_sum, (*strategy.operands, *strategy.results))):
                return True
    return False


def _is_sum(placement: Placement) -> bool:
    """Return whether a placement is a partial sum."""
    return placement.trait == "partial" and placement.op == "sum"
