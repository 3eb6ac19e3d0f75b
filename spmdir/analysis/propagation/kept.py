"""Values that are used as they lie: which axes are kept, and how views and casts hand that on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import SSAValue

from spmdir.analysis.propagation.op_strategies import OpStrategies
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Placement, parse_placement
from spmdir.core.placement.sharding import Sharding
from spmdir.dialects.aten import AtenOp
from spmdir.dialects.attributes import meta_of
from spmdir.dialects.values import function_attrs, sharding_of
from spmdir.rules.strategies.strategy import UNSHARDED


def kept_argument(argument: Any, mesh: Mesh) -> Sharding | None:
    """Return how an argument is to be used: as it is annotated along the axes of `spmd.keep`, open along others."""
    said = function_attrs(argument.owner.parent_op(), "arg_attrs", argument.index).get("spmd.keep")
    sharding = sharding_of(argument)
    if not isinstance(said, StringAttr) or sharding is None:
        return None
    axes = {axis.strip() for axis in said.data.split(",")}
    return _kept({axis: placement for axis, placement in sharding.entries if axis in axes}, mesh)


def kept_result(op: AtenOp, source: OpStrategies, kept: Mapping[SSAValue, Sharding], mesh: Mesh) -> Sharding | None:
    """Return how the result of a view or a cast of a kept value is to be used; None of others and of annotated ones.

    A view or cast is what takes one tensor and gives one with as many elements.
    """
    if len(op.tensors) != 1 or len(op.results) != 1 or op.tensors[0] not in kept or any(op.shardings):
        return None
    taken, made = meta_of(op.tensors[0].type), meta_of(op.results[0].type)
    if taken is None or made is None or taken.numel != made.numel:
        return None
    found: dict[str, Placement] = {}
    for axis, placement in kept[op.tensors[0]].entries:
        if placement.trait != "open":
            given = {s.results[0] for s in source.strategies(axis, mesh.sizes[axis], UNSHARDED)}
            found |= {axis: given.pop()} if len(given) == 1 else {}
    return _kept(found, mesh)


def _kept(placed: Mapping[str, Placement], mesh: Mesh) -> Sharding | None:
    sharded = {axis: placement for axis, placement in placed.items() if placement.trait == "shard"}
    others = {axis: parse_placement("?") for axis in mesh.axis_names if axis not in sharded}
    return Sharding([*sharded.items(), *others.items()]) if sharded else None
