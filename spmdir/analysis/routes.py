"""Find the route of each value: the `experts.route` op whose order the rows of the value have.

Rows of different routes are in different orders. On one device, an op may combine them position by position. On ranks
with routed placements, it may not: a rank has other positions of the one than of the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, SSAValue

from spmdir.core.errors import ShardingError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Placement
from spmdir.core.placement.sharding import Sharding
from spmdir.dialects.aten import AtenOp
from spmdir.dialects.collectives import WaitOp
from spmdir.dialects.locations import location_of
from spmdir.dialects.names import text_name
from spmdir.dialects.reshard_ops import ConstraintOp, ReshardOp
from spmdir.dialects.row_exchanges import CountsExchangeOp, RowsExchangeOp
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import function_attrs, global_type, sharding_of

ROUTE, SORT, UNSORT = "experts.route", "experts.sort_rows", "experts.unsort_rows"
TO_SOURCES, REGROUP = ("experts.to_sources", "experts.to_slots"), "experts.regroup"

Routes = frozenset[SSAValue]
"""A set of routes, each as the first result of its `experts.route` op. A function argument has no known route."""

NONE: Routes = frozenset()
"""No known route."""


_ALL = slice(None)

_USED_OPERANDS = {SORT: (slice(1, 2), slice(1, None)), UNSORT: (slice(0), slice(2))}
"""Op → its operands whose routes the results have, and its operands that must be of one route.

A sort puts rows in the order of its second operand, and `unsort_rows` restores the order of the tokens. `slice(0)`
selects no operand. All operands of other ops count as both.
"""


def _routes_of_results(op: Operation, routes: Mapping[SSAValue, Routes]) -> Routes:
    """Return the routes of the results of `op`, from those of its operands."""
    if op.name == ROUTE:
        return frozenset([op.results[0]])
    passed, _ = _USED_OPERANDS.get(op.name, (_ALL, _ALL))
    return frozenset().union(*(routes.get(operand, NONE) for operand in op.operands[passed]))


def mixing_ops(block: Block) -> frozenset[Operation]:
    """Return the ops whose operands may have rows of several routes; none if the block has fewer than two routes."""
    if not any(op.name == ROUTE for op in block.ops):
        return frozenset()
    routes = routes_of_values(block)
    return frozenset(
        op for op in block.ops if len(frozenset().union(*(routes.get(operand, NONE) for operand in _combined(op)))) > 1
    )


def routes_of_values(block: Block) -> dict[SSAValue, Routes]:
    """Return value → its routes, for each result of an op."""
    routes: dict[SSAValue, Routes] = {}
    for op in block.ops:
        result_routes = _routes_of_results(op, routes)
        routes.update((result, result_routes) for result in op.results)
    return routes


def _combined(op: Operation) -> Iterable[SSAValue]:
    """Return the operands of an op that must be of one route."""
    return op.operands[_USED_OPERANDS.get(op.name, (_ALL, _ALL))[1]]


def check_routes(op: ValueOp) -> None:
    """Raise ShardingError if operands of a decided op have routed placements, and are of different routes."""
    routed = [operand for operand in _combined(op) if _is_routed(operand)]
    if len(routed) < 2:
        return
    routes = frozenset().union(*map(_route, dict.fromkeys(routed)))
    if len(routes) > 1:
        raise ShardingError(
            f"'{op.name}' combines rows of {len(routes)} routes, which are in different orders on each rank; expected "
            "rows of one route: restore the order of the tokens with experts.unsort_rows first",
            location_of(op),
        )


def check_routed_annotations(function: FuncOp) -> None:
    """Raise a located ShardingError if the user gives a routed placement to a value whose rows have no route.

    Only ops on sorted rows have lowerings for these placements. Arguments and results of a program have none.
    """
    signature = [("argument", index, sharding_of(argument)) for index, argument in enumerate(function.args)]
    for index in range(len(function.function_type.outputs)):
        attribute = function_attrs(function, "res_attrs", index).get("spmd.sharding")
        signature.append(("result", index, getattr(attribute, "data", None)))
    for kind, index, sharding in signature:
        if placement := _routed_placement(sharding):
            raise ShardingError(
                f"{kind} {index} has the placement {placement}, whose rows on a rank depend on a router; expected S, R "
                "or P for arguments and results: leave it to the search, or give it to rows inside the program",
                location_of(function),
            )
    routes = routes_of_values(function.body.block)
    for op in function.body.block.ops:
        for sharding in op.shardings if isinstance(op, AtenOp) and not routes[op.results[0]] else ():
            if placement := _routed_placement(sharding):
                raise ShardingError(
                    f"'{op.name}' gives {placement}, but its operands are not rows in the order of an experts.route; "
                    "expected a result of experts.sort_rows, experts.regroup or an op on their results",
                    location_of(op),
                )


def check_needs(function: FuncOp) -> None:
    """Raise a located ShardingError if a decided op needs an operand in another routed placement.

    No reshard moves rows to or from a routed placement, so annotations of the user contradict each other.
    """
    for op in function.body.block.ops:
        if not isinstance(op, ValueOp) or op.needs is None:
            continue
        for operand, need in zip(op.tensors, op.needs.data, strict=True):
            source = sharding_of(operand)
            if source is None or need is None:
                continue
            for axis in dict.fromkeys(axis for axis, _ in (*source.entries, *need.entries)):
                placed, needed = source[axis], need[axis]
                if placed != needed and any(
                    placement.is_routed and placement.trait != "partial" for placement in (placed, needed)
                ):
                    raise ShardingError(
                        f"'{op.name}' needs {text_name(operand)} as <{need}>, but its sharding is <{source}>, and only "
                        f"experts.regroup moves rows to or from {placed if placed.is_routed else needed}; expected one "
                        "placement for all rows between two experts.regroup: change or remove one of the annotations",
                        location_of(op),
                    )


def _routed_placement(sharding: Sharding | None) -> Placement | None:
    """Return the first routed placement of a sharding; None if there is none."""
    return (
        next((placement for _, placement in sharding.entries if placement.is_routed), None)
        if sharding is not None
        else None
    )


def _is_routed(value: SSAValue) -> bool:
    """Return whether a value has a sharding with a routed placement."""
    sharding = sharding_of(value)
    return sharding is not None and any(placement.is_routed for _, placement in sharding.entries)


def _route(value: SSAValue) -> Routes:
    """Return the routes of a value with a routed placement: those of all routed values that it depends on.

    The walk goes from a value to its operands, and ends at `experts.route` ops. The result is empty if it only reaches
    function arguments.
    """
    pending, seen, routes = [value], {value}, set[SSAValue]()
    while pending:
        op = pending.pop().owner
        if not isinstance(op, (AtenOp, ReshardOp, ConstraintOp)):
            continue
        if op.name == ROUTE:
            routes.add(op.results[0])
            continue
        operands = op.operands[1:2] if op.name == SORT else op.operands  # a sort gets its order from operand 1
        new_operands = [operand for operand in operands if _is_routed(operand) and operand not in seen]
        seen.update(new_operands)
        pending += new_operands
    return frozenset(routes)


def dispatched_dim(value: SSAValue) -> int | None:
    """Return the dimension of a local value along which a rank has the rows of its own experts; None if there is none.

    The size of this dimension depends on the router. For example, the result of `experts.regroup`, of shape [rows,
    features], has the dimension 0. Values inside the local form of `experts.regroup` have no sharding: the result of an
    exchange has the dimension of the value that is computed from it, and a result of TO_SOURCES that of its operand.
    """
    owner = value.owner
    exchange = owner.start if isinstance(owner, WaitOp) else owner
    if isinstance(exchange, RowsExchangeOp) and sharding_of(value) is None:
        return next((dispatched_dim(use.operation.results[0]) for use in value.uses if use.operation.results), None)
    if isinstance(owner, AtenOp) and owner.name in TO_SOURCES:
        return dispatched_dim(owner.operands[0])
    sharding = sharding_of(value)
    return (
        next((placement.dim for _, placement in sharding.entries if placement.varies), None)
        if sharding is not None
        else None
    )


def most_rows(function: FuncOp, mesh: Mesh) -> float:
    """Return the most rows that a rank of experts may receive, as a multiple of those with a balanced router.

    It is 1 if no rows are exchanged. If a router chooses k of E experts for each token, n ranks with T tokens receive
    T k / n rows each if it is balanced. One rank receives at most T min(k, E / n), which is min(n, E / k) times as
    many. With several routes or exchanges, the largest n and the largest E / k count.
    """
    loads = [
        min(mesh.group_size(router.axes), router.experts / max(router.chosen, 1))
        for router in routers(function, mesh)
        if router.axes
    ]
    return float(max(loads, default=1))


@attrs.frozen
class Router:
    """A route of a localized function.

    Attributes:
        name: the name of the first result of the `experts.route` op.
        axes: the mesh axes over which rows are dispatched; empty if they are not.
        tokens: the number of tokens of all ranks of these axes together.
        experts, chosen: the number of experts, and of those that each token goes to.
    """

    name: str
    axes: tuple[str, ...]
    tokens: int
    experts: int
    chosen: int


def routers(function: FuncOp, mesh: Mesh) -> list[Router]:
    """Return the routes of a localized function, in program order."""
    routers_in_order: list[Router] = []
    for op in function.body.block.ops:
        if not isinstance(op, AtenOp) or op.name != ROUTE:
            continue
        users = [use.operation for result in op.results for use in result.uses]
        axes = next((user.axes for user in users if isinstance(user, CountsExchangeOp)), ())
        ids, sharding = global_type(op.operands[0], mesh), sharding_of(op.operands[0])
        assert ids is not None  # verified
        token_axes = sharding.dim_axes(0) if sharding is not None else ()
        # The ranks along other axes that shard the tokens form separate groups, each with its own tokens.
        groups = mesh.group_size([axis for axis in token_axes if axis not in axes])
        experts: Any = op.argument["experts"]
        routers_in_order.append(Router(text_name(op.results[0]), axes, ids.shape[0] // groups, experts, ids.shape[1]))
    return routers_in_order
