"""The best decision of a small problem on all mesh axes together, by trying every strategy of every node.

The oracle of the search and of its certificate. Prices are those of `joint_cost` alone, which is asked for the cost of
each node and of each value by itself, and at the end for that of the whole decision.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import attrs
import pytest

from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Placement
from spmdir.rules.strategies.strategy import Strategy, shard_counts
from spmdir.search.joint_cost import joint_cost
from spmdir.search.merged_nodes import Quotient
from spmdir.search.problem import Node, Problem

Joint = tuple[Strategy, ...]
"""The strategy of a node on each axis, in the order of the mesh."""

Order = tuple[int, ...]
"""The axes by position, those that shard one dimension in nesting order."""

Placed = tuple[tuple[str, Placement], ...]
"""The placement of a value on each axis, axes that shard one dimension in nesting order."""

Live = tuple[tuple[int, Placed, frozenset[Placed]], ...]
"""Values with users to come: the value, the placements it is made in, and those that its users so far require."""


@attrs.frozen
class Optimum:
    """The best decision: axis → the strategy of each node, their nesting orders, and what `joint_cost` says of it."""

    strategies: Mapping[str, Sequence[Strategy]]
    orders: Sequence[Order]
    cost: float


def optimum(problem: Problem, known: float = math.inf, limit: int = 20_000) -> Optimum | None:
    """Return the decision of least `joint_cost`; None if more than `limit` decisions of some nodes have to be kept.

    Nodes are decided in program order. Of decisions that later nodes cannot tell apart, in which the values that are
    still to be used are made and required alike, the cheapest is kept.

    Args:
        known: what some decision costs; what costs more, with the least that nodes to come take, is not kept.
    """
    prices = _Prices(problem)
    last_user = {value: index for index, node in enumerate(problem.nodes) for value in node.operands}
    states = [
        [(*state, prices.of_node(node, state[0])) for state in joint_states(problem.mesh, node)]
        for node in problem.nodes
    ]
    to_come = [sum(min(own for _, _, own in found) for found in states[index + 1 :]) for index in range(len(states))]
    kept: dict[Live, tuple[float, tuple[tuple[Joint, Order], ...]]] = {(): (0.0, ())}
    for index, node in enumerate(problem.nodes):
        before, kept = kept, {}
        for joint, order, own in states[index]:
            for live, (cost, decided) in before.items():
                after, reshards = [], 0.0
                for value, made, required in _used(problem.mesh, live, node, joint, order):
                    if last_user.get(value, -1) > index:
                        after.append((value, made, required))
                    else:
                        reshards += prices.of_value(value, made, required)
                total, key = cost + own + reshards, tuple(after)
                if total + to_come[index] <= known * (1 + 1e-9) and (key not in kept or total < kept[key][0]):
                    kept[key] = total, (*decided, (joint, order))
        if len(kept) > limit:
            return None
    ((cost, decided),) = kept.values()
    axes, orders = problem.mesh.axis_names, [order for _, order in decided]
    strategies = {axis: [joint[position] for joint, _ in decided] for position, axis in enumerate(axes)}
    assert joint_cost(problem.mesh, unmerged(problem), strategies, orders) == pytest.approx(cost)
    return Optimum(strategies, orders, cost)


def joint_states(mesh: Mesh, node: Node) -> list[tuple[Joint, Order]]:
    """Return what a node may do on all axes together, in every nesting order of axes that may differ."""
    return [(joint, order) for joint in joint_strategies(mesh, node) for order in _nesting_orders(mesh, node, joint)]


def _nesting_orders(mesh: Mesh, node: Node, joint: Joint) -> list[Order]:
    """Return the orders in which axes that shard one dimension together may nest; the other axes make no difference."""
    positions = range(len(joint))
    nested = [pair for pair in itertools.combinations(positions, 2) if _share_a_dimension(joint, *pair)]
    orders: dict[tuple[tuple[int, int], ...], Order] = {}
    for order in itertools.permutations(positions):
        pairs = tuple((one, other) if order.index(one) < order.index(other) else (other, one) for one, other in nested)
        if all(_may_nest(mesh, node, joint, *pair) for pair in pairs):
            orders.setdefault(pairs, order)
    return list(orders.values())


def _share_a_dimension(joint: Joint, one: int, other: int) -> bool:
    pairs = zip(*((*joint[axis].operands, *joint[axis].results) for axis in (one, other)), strict=True)
    return any(a.dim is not None and a.dim == b.dim for a, b in pairs)


def _may_nest(mesh: Mesh, node: Node, joint: Joint, outer: int, inner: int) -> bool:
    """Return whether `outer` may be outside `inner`, an axis that shards a dimension together with it."""
    (own, *_), (other, *_) = joint[outer].factors, joint[inner].factors
    majors = node.source.majors
    if own != other:
        return own in majors.get(other, ()) or (other not in majors.get(own, ()) and outer < inner)
    names = mesh.axis_names[outer], mesh.axis_names[inner]
    annotated = [
        tuple(axis for axis in sharding.dim_axes(placement.dim) if axis in names)
        for sharding in node.source.annotations
        for _, placement in sharding.entries
        if placement.dim is not None
    ]
    return names[::-1] not in annotated


def joint_strategies(mesh: Mesh, node: Node) -> list[Joint]:
    """Return what a node may do on all axes together: strategies of which each is listed beside all others.

    No value has partial values of two kinds. Where nothing is legal, all is.
    """
    every = list(itertools.product(*(node.source.candidates(axis, count) for axis, count in mesh.axes)))
    return [joint for joint in every if _is_legal(mesh, node, joint)] or every


def _is_legal(mesh: Mesh, node: Node, joint: Joint) -> bool:
    for (axis, count), strategy in zip(mesh.axes, joint, strict=True):
        others = [(one, ranks) for one, (name, ranks) in zip(joint, mesh.axes, strict=True) if name != axis]
        if strategy not in node.source.strategies(axis, count, shard_counts(others)):
            return False
    placed = [(*one.operands, *one.results) for one in joint]
    return all(len({placement.kind for placement in value} - {None}) <= 1 for value in zip(*placed, strict=True))


def unmerged(problem: Problem) -> Quotient:
    """Return the problem for `joint_cost`, each node by itself."""
    nodes, values = list(problem.nodes), list(problem.values)
    producer, users = [(0, 0)] * len(values), [[] for _ in values]
    for index, node in enumerate(nodes):
        for position, value in enumerate(node.results):
            producer[value] = index, position
        for slot, value in enumerate(node.operands):
            users[value].append((index, slot))
    return _quotient(problem, nodes, values, producer, users)


def _quotient(problem: Problem, nodes, values, producer, users) -> Quotient:
    """Return what `joint_cost` reads of a quotient; what only the search reads is empty."""
    return Quotient(
        nodes=nodes,
        weight=[1] * len(nodes),
        values=values,
        value_weight=[1] * len(values),
        producer=producer,
        users=users,
        uses=[],
        neighbours=[],
        members=[],
        node_class=[],
        value_class=[],
        plugin_placements=problem.plugin_placements,
        collectives=problem.collectives,
        topology=problem.topology,
    )


def _used(
    mesh: Mesh, live: Live, node: Node, joint: Joint, order: Order
) -> list[tuple[int, Placed, frozenset[Placed]]]:
    """Return the live values after a node: what it requires is added to its operands, and its results are added."""

    def placed(placements: Sequence[Placement]) -> Placed:
        dims = [placement.dim for placement in placements if placement.dim is not None]
        nested = order if len({*dims}) < len(dims) else range(len(order))
        return tuple((mesh.axis_names[axis], placements[axis]) for axis in nested)

    required: dict[int, set[Placed]] = {}
    for slot, value in enumerate(node.operands):
        required.setdefault(value, set()).add(placed([strategy.operands[slot] for strategy in joint]))
    known = [(value, made, before | required.get(value, set())) for value, made, before in live]
    made = [placed([strategy.results[position] for strategy in joint]) for position in range(len(node.results))]
    return known + [(value, placed, frozenset()) for value, placed in zip(node.results, made, strict=True)]


class _Prices:
    """What `joint_cost` says of a node alone and of a value alone."""

    def __init__(self, problem: Problem):
        self.problem = problem
        self._values: dict[object, float] = {}

    def of_node(self, node: Node, joint: Joint) -> float:
        return self._cost(_quotient(self.problem, [node], [], [], []), [joint])

    def of_value(self, value: int, made: Placed, required: frozenset[Placed]) -> float:
        key = self.problem.values[value], made, required
        if key not in self._values:
            sides = [made, *required]
            axes = self.problem.mesh.axis_names
            places = [tuple(axes.index(axis) for axis, _ in side) for side in sides]
            joints = [tuple(Strategy((side[axis],), (side[axis],)) for axis in axes) for side in map(dict, sides)]
            uses = [(index + 1, 0) for index in range(len(required))]
            alone = _quotient(self.problem, [], [self.problem.values[value]], [(0, 0)], [uses])
            self._values[key] = self._cost(alone, joints, places)
        return self._values[key]

    def _cost(self, shared: Quotient, joints: Sequence[Joint], orders: Sequence[Order] | None = None) -> float:
        axes = self.problem.mesh.axis_names
        chosen = {axis: [joint[position] for joint in joints] for position, axis in enumerate(axes)}
        return joint_cost(self.problem.mesh, shared, chosen, orders)
