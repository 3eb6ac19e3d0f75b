"""The sharding search: picks one row for every node on every axis so that the whole program costs least.

One axis at a time, the others fixed (`axis_search.py`), in rounds. Nodes that cannot be told apart by their
surroundings share one decision (`repeats.py`), so that repeated layers are decided once.

The cost is in bytes on the wire of one rank: reshards as the planner prices them, one for each distinct
placement that the users of a value want, plus compute that an axis repeats instead of dividing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

from spmdir.call import TensorMeta
from spmdir.errors import UnsupportedError
from spmdir.mesh import Mesh
from spmdir.placement import Placement
from spmdir.planner.axis_search import AxisSearch
from spmdir.planner.plan import plan_reshard
from spmdir.planner.problem import Problem, Row
from spmdir.planner.repeats import Quotient, quotient
from spmdir.sharding import Sharding

DEPTHS = (3, 4)
"""How far the surroundings of nodes are compared before they are merged; the best find over these counts."""


def solve(problem: Problem, rounds: int = 3, effort: int = 20) -> dict[str, list[Row]]:
    """Axis → the row of each node.

    Args:
        rounds: how often each axis is decided; later rounds see the other axes' decisions.
        effort: neighbourhood moves tried on each axis in each round.

    Raises:
        Unsolvable: what is fixed leaves a node without a row.
    """
    found = [_solve(problem, quotient(problem, depth), rounds, effort) for depth in DEPTHS]
    return min(found, key=lambda one: one[0])[1]


def _solve(problem: Problem, shared: Quotient, rounds: int, effort: int) -> tuple[float, dict[str, list[Row]]]:
    """The cost of what is found when the nodes merged in `shared` decide alike, and axis → the row of each node."""
    mesh, axes = problem.mesh, problem.mesh.axis_names
    chosen = {axis: AxisSearch(mesh, shared, axis, {}, ()).run(0, None, set()) for axis in axes}
    best, best_cost = chosen, math.inf
    tried: dict[str, set[tuple[int, Row]]] = {axis: set() for axis in axes}
    for turn in range(rounds):
        before = dict(chosen)
        for position, axis in enumerate(axes):
            others = {a: rows for a, rows in chosen.items() if a != axis}
            search = AxisSearch(mesh, shared, axis, others, others if turn else axes[:position])
            chosen = {**chosen, axis: search.run(effort, chosen[axis], tried[axis])}
        cost = joint_cost(mesh, shared, chosen)
        if cost < best_cost:
            best, best_cost = chosen, cost
        if chosen == before:
            break
    everywhere = range(len(problem.nodes))
    return best_cost, {axis: [rows[shared.node_class[node]] for node in everywhere] for axis, rows in best.items()}


def joint_cost(mesh: Mesh, shared: Quotient, chosen: Mapping[str, Sequence[Row]]) -> float:
    """The bytes of a decision on all axes together: compute, and each different reshard as the planner plans it."""
    cost = 0.0
    for part, node in enumerate(shared.nodes):
        left = math.prod(rows[part].fraction for rows in chosen.values())
        cost += shared.weight[part] * node.offer.work * left
    for value, meta in enumerate(shared.values):
        part, position = shared.producer[value]
        made = _sharding(mesh, {axis: rows[part].results[position] for axis, rows in chosen.items()})
        wanted = {
            _sharding(mesh, {axis: rows[user].operands[slot] for axis, rows in chosen.items()}): None
            for user, slot in shared.users[value]
        }
        cost += shared.value_weight[value] * sum(_wire_bytes(meta, made, target, mesh) for target in wanted)
    return cost


def _wire_bytes(meta: TensorMeta, made: Sharding, target: Sharding, mesh: Mesh) -> float:
    if made == target:
        return 0.0
    try:
        return plan_reshard(meta.shape, meta.dtype, made, target, mesh).wire_bytes
    except UnsupportedError:
        return math.inf


@lru_cache(maxsize=65536)
def _sharding_of(entries: tuple[tuple[str, Placement], ...], mesh: str) -> Sharding:
    return Sharding(entries, mesh)


def _sharding(mesh: Mesh, placed: Mapping[str, Placement]) -> Sharding:
    return _sharding_of(tuple(placed.items()), mesh.name)
