"""The sharding search: picks one strategy for every node on every axis at the least cost of the program.

One axis at a time, the others fixed (`axis_search.py`), in rounds. Nodes that cannot be told apart by their
surroundings share one decision (`repeats.py`), so that repeated layers are decided once.

The cost is in bytes on the wire of one rank: reshards as the planner prices them, one for each distinct
placement that the users of a value require, plus compute that an axis replicates instead of sharding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

import attrs

from spmdir.core.errors import ShardingError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.standard import Placement
from spmdir.core.sharding import Sharding
from spmdir.core.tensor import TensorMeta
from spmdir.reshard.collective_spec import CollectiveSpec
from spmdir.reshard.cost import local_bytes
from spmdir.reshard.plan import plan_reshard
from spmdir.rules.strategies.strategy import shard_counts
from spmdir.search.axis_search import AxisSearch
from spmdir.search.problem import NodeStrategy, Problem
from spmdir.search.repeats import Quotient, quotient

DEPTHS = (3, 4)
"""Depths to which the surroundings of nodes are compared before merging; each is tried, and the best result is used."""


@attrs.frozen
class Solution:
    """The result of the search.

    Attributes:
        strategies: axis → the strategy of each node.
        cost: of the program, in bytes.
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
        cost: their cost, in bytes.
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
    """Return the cost of a decision on all axes in bytes: compute, and each distinct reshard as planned."""
    cost, has_plugins = 0.0, bool(shared.plugin_placements)
    for part, node in enumerate(shared.nodes):
        left = math.prod(strategies[part].fraction for strategies in chosen.values())
        cost += shared.weight[part] * (node.source.work * left + _sent(mesh, chosen, part))
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
        cost += shared.value_weight[value] * sum(
            _wire_bytes(meta, made, target, mesh, shared.collectives)
            + (shared.gathered_byte * _gathered(meta, made, target, mesh) if shared.gathered_byte else 0.0)
            for target in wanted
        )
    return cost


def _sent(mesh: Mesh, chosen: Mapping[str, Sequence[NodeStrategy]], part: int) -> float:
    """Return the bytes that the strategies of a node send inside the op."""
    sent = 0.0
    for axis, strategies in chosen.items():
        if strategies[part].sent_bytes:
            sharded = shard_counts((s[part], mesh.sizes[other]) for other, s in chosen.items() if other != axis)
            sent += sum(size / math.prod(map(sharded.of, factors)) for size, factors in strategies[part].sent_bytes)
    return sent


def _gathered(meta: TensorMeta, made: Sharding, target: Sharding, mesh: Mesh) -> float:
    """Return the bytes of a value that a rank holds for being gathered; 0 if it is not."""
    gathers = any(p.trait == "shard" and target[axis].trait != "shard" for axis, p in made.entries)
    return local_bytes(target, meta.shape, meta.dtype.itemsize, mesh) if gathers else 0.0


def _wire_bytes(
    meta: TensorMeta, made: Sharding, target: Sharding, mesh: Mesh, collectives: tuple[CollectiveSpec, ...]
) -> float:
    if made == target:
        return 0.0
    try:
        made.check_shape(mesh, meta.shape)
        target.check_shape(mesh, meta.shape)
    except ShardingError:
        return math.inf  # the placements cannot shard the dimension together
    return plan_reshard(meta.shape, meta.dtype, made, target, mesh.root or mesh, collectives=collectives).wire_bytes


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
