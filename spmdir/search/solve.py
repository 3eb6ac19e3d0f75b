"""The sharding search: picks one strategy for every node on every axis at the least cost of the program.

One axis at a time, the others fixed (`axis_search.py`), in rounds. Nodes that cannot be told apart by their
surroundings share one decision (`repeats.py`), so that repeated layers are decided once.

The cost is in seconds of one rank: its part of the compute, and reshards as the planner prices them, one for each
distinct placement that the users of a value require.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

import attrs

from spmdir.core.errors import ShardingError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.standard import Partial, Placement, R
from spmdir.core.sharding import Sharding
from spmdir.core.tensor import TensorMeta
from spmdir.reshard.axis_price import axis_price
from spmdir.reshard.collective_spec import Sizes
from spmdir.reshard.cost import NEIGHBOURS, cost, local_bytes, node_count
from spmdir.reshard.plan import plan_reshard
from spmdir.rules.strategies.strategy import shard_counts
from spmdir.search.axis_search import AxisSearch
from spmdir.search.problem import NodeStrategy, Problem, local_seconds
from spmdir.search.repeats import Quotient, quotient

_SUM = Partial("sum")

DEPTHS = (3, 4)
"""Depths to which the surroundings of nodes are compared before merging; each is tried, and the best result is used."""


@attrs.frozen
class Solution:
    """The result of the search.

    Attributes:
        strategies: axis → the strategy of each node.
        cost: of the program, in seconds.
        depth: how far surroundings were compared.
    """

    strategies: dict[str, list[NodeStrategy]]
    cost: float
    depth: int


def solve(problem: Problem, rounds: int = 3, effort: int = 20, depths: Sequence[int] = ()) -> Solution:
    """Return the best decision that the search finds.

    Args:
        rounds: how often each axis is decided; later rounds see the other axes' decisions.
        effort: neighbourhood moves tried on each axis in each round.
        depths: of the comparison of surroundings, to try instead of DEPTHS.

    Raises:
        Unsolvable: the user annotations leave a node without a strategy.
    """
    tries = {depth: _Try(problem, quotient(problem, depth)) for depth in depths or DEPTHS}
    for one in tries.values():
        one.round(effort)
    depth = min(tries, key=lambda depth: tries[depth].cost)
    best = tries[depth]
    for _ in range(rounds - 1):
        if not best.round(effort):
            break
    everywhere = range(len(problem.nodes))
    classes = [best.shared.node_class[node] for node in everywhere]
    return Solution(
        {axis: [strategies[part] for part in classes] for axis, strategies in best.strategies.items()}, best.cost, depth
    )


class _Try:
    """A search over the nodes that are merged in `shared`.

    Attributes:
        strategies: axis → the strategy of each distinct node, the best so far.
        cost: their cost, in seconds.
    """

    def __init__(self, problem: Problem, shared: Quotient):
        self.mesh, self.shared = problem.mesh, shared
        self.strategies = {
            axis: AxisSearch(self.mesh, shared, axis, {}, ()).run(0, None, set()) for axis in self.mesh.sizes
        }
        self.cost = math.inf
        self._now, self._first = self.strategies, True
        self._tried: dict[str, set[tuple[int, NodeStrategy]]] = {axis: set() for axis in self.mesh.sizes}

    def round(self, effort: int) -> bool:
        """Decide each axis once more, and return whether anything changed."""
        before, decided = self._now, []
        for axis in self.mesh.sizes:
            others = {a: strategies for a, strategies in self._now.items() if a != axis}
            search = AxisSearch(self.mesh, self.shared, axis, others, decided if self._first else others)
            self._now = {**self._now, axis: search.run(effort, self._now[axis], self._tried[axis])}
            decided.append(axis)
        self._first = False
        cost = joint_cost(self.mesh, self.shared, self._now)
        if cost < self.cost:
            self.strategies, self.cost = self._now, cost
        return self._now != before


def joint_cost(mesh: Mesh, shared: Quotient, chosen: Mapping[str, Sequence[NodeStrategy]]) -> float:
    """Return the cost of a decision on all axes in seconds: compute, and each distinct reshard as planned."""
    total, has_plugins = 0.0, bool(shared.plugin_placements)
    for part, node in enumerate(shared.nodes):
        work = local_seconds(node.source.work, shared.topology, [strategies[part] for strategies in chosen.values()])
        total += shared.weight[part] * (work + inside_seconds(mesh, chosen, part, shared))
    for value, meta in enumerate(shared.values):
        part, position = shared.producer[value]
        made = _sharding(
            mesh, {axis: strategies[part].results[position] for axis, strategies in chosen.items()}, has_plugins
        )
        wanted = {
            _sharding(
                mesh, {axis: strategies[user].operands[slot] for axis, strategies in chosen.items()}, has_plugins
            ): None
            for user, slot in shared.users[value]
        }
        total += shared.value_weight[value] * sum(
            _seconds(meta, made, target, mesh, shared)
            + (_held(shared.copy_holding, value, meta, target, mesh) if target != made else 0.0)
            for target in wanted
        )
        total += shared.value_weight[value] * _held(shared.holding, value, meta, made, mesh)
    return total


def inside_seconds(
    mesh: Mesh, chosen: Mapping[str, Sequence[NodeStrategy]], part: int, shared: Quotient | Problem
) -> float:
    """Return the seconds of what the strategies of a node all-reduce and send inside the op."""
    spent = 0.0
    for axis, strategies in chosen.items():
        strategy = strategies[part]
        if not strategy.sent_bytes and not strategy.inner_bytes:
            continue
        sharded = shard_counts((s[part], mesh.sizes[other]) for other, s in chosen.items() if other != axis)
        count, nodes = mesh.sizes[axis], node_count((axis,), mesh)
        for size, factors in strategy.inner_bytes:
            local = size / math.prod(map(sharded.of, factors))
            spent += axis_price(_SUM, R, local, count, shared.collectives, None, shared.topology, nodes).seconds
        for size, factors in strategy.sent_bytes:
            sizes = Sizes(count, 0, 0, size / math.prod(map(sharded.of, factors)))
            spent += cost(NEIGHBOURS, sizes, nodes, shared.topology).seconds
    return spent


def _held(prices: Sequence[float], value: int, meta: TensorMeta, sharding: Sharding, mesh: Mesh) -> float:
    """Return the seconds that holding a value in `sharding` is worth."""
    return prices[value] * local_bytes(sharding, meta.shape, meta.dtype.itemsize, mesh.root or mesh) if prices else 0.0


def _seconds(meta: TensorMeta, made: Sharding, target: Sharding, mesh: Mesh, shared: Quotient) -> float:
    if made == target:
        return 0.0
    try:
        made.check_shape(mesh, meta.shape)
        target.check_shape(mesh, meta.shape)
    except ShardingError:
        return math.inf  # the placements cannot shard the dimension together
    root = mesh.root or mesh
    return plan_reshard(
        meta.shape, meta.dtype, made, target, root, shared.topology, collectives=shared.collectives
    ).seconds


@lru_cache(maxsize=65536)
def _sharding_of(entries: tuple[tuple[str, Placement], ...], mesh: str) -> Sharding:
    return Sharding(entries, mesh)


def _sharding(mesh: Mesh, placed: Mapping[str, Placement], has_plugins: bool) -> Sharding:
    # The nesting order is decided later; until then placements that require certain sizes come first.
    entries = sorted(placed.items(), key=lambda entry: not entry[1].is_demanding) if has_plugins else placed.items()
    sharding = _sharding_of(tuple(entries), mesh.name)
    return sharding if mesh.root is None else _merged(sharding, mesh)


@lru_cache(maxsize=65536)
def _merged(sharding: Sharding, mesh: Mesh) -> Sharding:
    return sharding.merged(mesh)
