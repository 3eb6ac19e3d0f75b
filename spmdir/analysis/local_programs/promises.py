"""The promises of a function's signature: its arguments and results have the shardings that it states."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects.func import FuncOp

from spmdir.core.errors import ShardingError, SpmdirError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.dialects import ir
from spmdir.dialects.attributes import ShardingAttr, meta_of
from spmdir.dialects.locations import location_of
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
    """Yield an error for each result whose sharding is not the one that the function promises."""
    end = ir.terminator(function)
    for index, value in enumerate(end.operands):
        found, asked = sharding_of(value), function_attrs(function, "res_attrs", index).get("spmd.sharding")
        if found is None:
            continue
        if isinstance(asked, ShardingAttr):
            wanted = asked.data
            if wanted != found and not (wanted.open_axes and _agrees(found, wanted, mesh)):
                yield ShardingError(
                    f"result {index} is laid out as <{found}>, but the function promises <{wanted}>; run "
                    "insert-reshard",
                    location_of(end),
                )
        elif found.partial:
            yield ShardingError(
                f"result {index} is returned as a partial value, <{found}>; run insert-reshard, or ask for "
                "it in the result's spmd.sharding",
                location_of(end),
            )


def _agrees(found: Sharding, wanted: Sharding, mesh: Mesh) -> bool:
    """Return whether `found` and `wanted` differ only on axes that `wanted` leaves open."""
    try:
        fine = refinement(mesh, found, wanted)
    except ShardingError:
        return False
    has, asks = found.refined(fine), wanted.refined(fine)
    differing = [axis for axis in dict((*has.entries, *asks.entries)) if has[axis] != asks[axis]]
    return bool(differing) and all(axis in asks.open_axes for axis in differing)
