"""Check the signature of a function: its arguments and results must have the declared shardings."""

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
    """Yield an error for each tensor argument that has no sharding, or one that leaves an axis open."""
    for index, argument in enumerate(function.args):
        sharding = sharding_of(argument)
        if meta_of(argument.type) and (sharding is None or sharding.open_axes):
            actual = "no sharding" if sharding is None else f"<{sharding}>, which leaves an axis open"
            yield ShardingError(
                f"argument {index} has {actual}; expected a sharding without open axes: run propagate first",
                location_of(function),
            )


def result_errors(function: FuncOp, mesh: Mesh) -> Iterator[SpmdirError]:
    """Yield an error for each result with a sharding other than the declared one.

    The result may have any placement on an axis that the declaration leaves open. Without a declaration, it may have
    any sharding that is not partial.
    """
    end = ir.terminator(function)
    for index, value in enumerate(end.operands):
        sharding, attribute = sharding_of(value), function_attrs(function, "res_attrs", index).get("spmd.sharding")
        if sharding is None:
            continue
        if isinstance(attribute, ShardingAttr):
            declared = attribute.data
            if declared != sharding and not (declared.open_axes and _differs_on_open_axes(sharding, declared, mesh)):
                yield ShardingError(
                    f"result {index} has the sharding <{sharding}>; expected <{declared}>, which the "
                    "function declares: run insert-reshard",
                    location_of(end),
                )
        elif sharding.partial:
            yield ShardingError(
                f"result {index} is a partial value, <{sharding}>; expected a reduced value: run insert-reshard, or "
                "declare this sharding in the result's spmd.sharding",
                location_of(end),
            )


def _differs_on_open_axes(sharding: Sharding, declared: Sharding, mesh: Mesh) -> bool:
    """Return whether `sharding` differs from `declared`, and only on axes that `declared` leaves open."""
    try:
        fine = refinement(mesh, sharding, declared)
    except ShardingError:
        return False
    actual, expected = sharding.refined(fine), declared.refined(fine)
    differing = [axis for axis in dict((*actual.entries, *expected.entries)) if actual[axis] != expected[axis]]
    return bool(differing) and all(axis in expected.open_axes for axis in differing)
