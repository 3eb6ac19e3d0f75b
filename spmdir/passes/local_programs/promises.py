"""What a function promises of its arguments and results: that they are sharded as it says."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects.func import FuncOp

from spmdir.core.errors import ShardingError, SpmdirError
from spmdir.core.mesh import Mesh
from spmdir.core.sharding import Sharding
from spmdir.dialects import ir
from spmdir.dialects.attributes import ShardingAttr, meta_of
from spmdir.dialects.syntax.context import location_of
from spmdir.dialects.values import function_attrs, sharding_of
from spmdir.reshard.conditions import refinement


def argument_errors(function: FuncOp) -> Iterator[SpmdirError]:
    """Yield an error for each argument without a decided sharding."""
    for index, argument in enumerate(function.args):
        sharding = sharding_of(argument)
        if meta_of(argument.type) and (sharding is None or sharding.open_axes):
            found = "no sharding" if sharding is None else f"<{sharding}>, which leaves an axis open"
            yield ShardingError(f"argument {index} has {found}; run propagate first", location_of(function))


def result_errors(function: FuncOp, mesh: Mesh) -> Iterator[SpmdirError]:
    """Yield an error for each result that is held otherwise than the function promises."""
    end = ir.terminator(function)
    for index, value in enumerate(end.operands):
        held, asked = sharding_of(value), function_attrs(function, "res_attrs", index).get("spmd.sharding")
        if held is None:
            continue
        if isinstance(asked, ShardingAttr):
            wanted = asked.data
            if wanted != held and not (wanted.open_axes and _agrees(held, wanted, mesh)):
                yield ShardingError(
                    f"result {index} is held as <{held}>, but the function promises <{wanted}>; run insert-reshard",
                    location_of(end),
                )
        elif held.partial:
            yield ShardingError(
                f"result {index} leaves the function with a pending reduction, <{held}>; run insert-reshard, or ask "
                "for it in the result's spmd.sharding",
                location_of(end),
            )


def _agrees(held: Sharding, wanted: Sharding, mesh: Mesh) -> bool:
    """Whether `held` is `wanted` but for the axes that this leaves open."""
    try:
        fine = refinement(mesh, held, wanted)
    except ShardingError:
        return False
    has, asks = held.refined(fine), wanted.refined(fine)
    differing = [axis for axis in dict((*has.entries, *asks.entries)) if has[axis] != asks[axis]]
    return bool(differing) and all(axis in asks.open_axes for axis in differing)
