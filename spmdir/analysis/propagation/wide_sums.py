"""Values that are not reduced before they are cast to a wider type, since a cast says `spmd.cast_first`."""

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


def unreduced(function: FuncOp, strategies: Mapping[AtenOp, OpStrategies], mesh: Mesh) -> set[SSAValue]:
    """Return the operands of the casts, and what these are sums and views of: no reshard may reduce one.

    They stay as they are made along all axes. A value that others use too is left out, for they may need it reduced.
    """
    found: set[SSAValue] = set()
    left = [op for op in strategies if CAST_FIRST in op.attributes]
    while left:
        op = left.pop()
        if not _hands_on_sums(strategies[op], mesh):
            continue
        for operand in op.tensors:
            maker = operand.owner
            if isinstance(maker, AtenOp) and operand not in found and operand.has_one_use():
                found.add(operand)
                left.append(maker)
    return found


def _hands_on_sums(source: OpStrategies, mesh: Mesh) -> bool:
    """Return whether an op of partial sums alone may give a partial sum, as additions, views and casts do."""
    listed = (s for axis, count in mesh.axes for s in source.strategies(axis, count, UNSHARDED))
    return any(s.operands and all(map(_is_sum, (*s.operands, *s.results))) for s in listed)


def _is_sum(placement: Placement) -> bool:
    return placement.trait == "partial" and placement.op == "sum"
