"""The cost of a decision on all axes, with reshards at the planner's prices."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from spmdir.core.errors import ShardingError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.standard import Partial, Placement, R
from spmdir.core.placement.tensor import TensorMeta
from spmdir.reshard.axis_price import axis_price
from spmdir.reshard.cost import inner_terms, node_count
from spmdir.reshard.plan_tree import ROUNDING, Planner, plan_tree
from spmdir.rules.strategies.strategy import EXCHANGES, ShardCounts, Strategy, shard_counts
from spmdir.search.merged_nodes import Quotient
from spmdir.search.problem import AVOIDED, Problem, local_seconds
from spmdir.search.roofline import Work

_SUM = Partial("sum")

Placed = tuple[tuple[str, Placement], ...]
"""The placement on each axis, axes that shard one dimension in nesting order."""


def joint_cost(
    mesh: Mesh,
    shared: Quotient,
    chosen: Mapping[str, Sequence[Strategy]],
    orders: Sequence[tuple[int, ...]] | None = None,
    limit: float = math.inf,
) -> float:
    """Return the cost of a decision on all axes in seconds: compute, and the planned reshards of each value.

    Args:
        chosen: axis → the strategy of each part.
        orders: [part], positions of axes; axes that shard one factor are in nesting order. None is the mesh order.
        limit: seconds. If the cost is above it, the result is infinite. Planning then stops early: as soon as the exact
            times so far and lower bounds of the other reshards exceed the limit.
    """
    axes, joints = tuple(chosen), list(zip(*chosen.values(), strict=True))
    compute = compute_seconds(shared, chosen, mesh, shared.weight)
    natural = range(len(axes))

    def in_nesting_order(part: int, placements: Sequence[Placement]) -> Placed:
        """Return the placements of an operand or result of a part, one for each axis, in the part's nesting order."""
        order = orders[part] if orders is not None else natural
        return tuple([(axes[position], placements[position]) for position in order])

    reshards: list[tuple[int, Placed, tuple[Placed, ...]]] = []  # (value, produced, needed)
    for value in range(len(shared.values)):
        part, result_index = shared.producer[value]
        produced = in_nesting_order(part, [strategy.results[result_index] for strategy in joints[part]])
        needed = {
            in_nesting_order(user, [strategy.operands[operand_index] for strategy in joints[user]]): None
            for user, operand_index in shared.users[value]
        }
        if len(needed) != 1 or produced not in needed:
            reshards.append((value, produced, tuple(needed)))
    bounds = [0.0] * len(reshards)
    if limit < math.inf:
        for index, (value, produced, needed) in enumerate(reshards):
            least = least_value_seconds(shared.values[value], produced, needed, mesh, shared)
            bounds[index] = shared.value_weight[value] * least
    costs, bound = list(bounds), compute + math.fsum(bounds)  # exact seconds replace the bounds one by one
    # The reshards of large values take the most time.
    order = sorted(range(len(reshards)), key=lambda index: -shared.values[reshards[index][0]].bytes)
    for index in order:
        if bound > limit * (1 + ROUNDING):
            return math.inf
        value, produced, needed = reshards[index]
        seconds = value_seconds(shared.values[value], produced, needed, mesh, shared)
        if value in shared.ties and (seconds or any(dict(placed) != dict(produced) for placed in needed)):
            return math.inf  # also for a slice, which takes no time
        if shared.apart and _is_avoided(value, produced, needed, shared, mesh):
            seconds += AVOIDED
        costs[index] = shared.value_weight[value] * seconds
        bound += costs[index] - bounds[index]
    return sum(costs, compute)


def _is_avoided(value: int, produced: Placed, needed: Iterable[Placed], shared: Quotient, mesh: Mesh) -> bool:
    """Return whether some reshard of a value moves an axis of `shared.apart` that it should not move.

    Along these axes, ranks have different sizes of some values; see `Quotient.avoids`.
    """
    produced_on, apart_axes = dict(produced), {part for axis in shared.apart for part in mesh.parts(axis)}
    for placed in needed:
        for axis, placement in placed:
            is_moved = axis in apart_axes and produced_on[axis] != placement
            if is_moved and shared.avoids(value, is_whole=produced_on[axis] == R):
                return True
    return False


def compute_seconds(
    problem: Quotient | Problem,
    chosen: Mapping[str, Sequence[Strategy]],
    mesh: Mesh,
    weight: Sequence[float] | None = None,
) -> float:
    """Return the seconds of all nodes with a strategy on each axis, without reshards.

    Args:
        chosen: axis → the strategy of each node.
        weight: [node], the factor on its seconds; 1 if None.
    """
    total, axes, joints = 0.0, tuple(chosen), list(zip(*chosen.values(), strict=True))
    seconds_by_key: dict[object, float] = {}
    for index, node in enumerate(problem.nodes):
        joint = joints[index]
        key = (node.source, *map(id, joint))
        if key not in seconds_by_key:
            seconds_by_key[key] = node_seconds(node.source.work, joint, axes, mesh, problem)
        total += seconds_by_key[key] if weight is None else weight[index] * seconds_by_key[key]
    return total


def node_seconds(
    work: Work, joint: Sequence[Strategy], axes: Sequence[str], mesh: Mesh, shared: Quotient | Problem
) -> float:
    """Return the seconds of a node with a strategy on each of `axes`: compute, and collectives inside the op.

    The tensors `inner_bytes` of a strategy are all-reduced. Each tensor in `sent` is sent by an op of a local form.
    """
    seconds = local_seconds(work, shared.topology, joint, [mesh.sizes[axis] for axis in axes])
    for group, strategy, sharded in communicating_groups(joint, axes, mesh):
        count, nodes = mesh.group_size(group), node_count(group, mesh)
        for size, factors in strategy.inner_bytes:
            local = size / math.prod(map(sharded.of, factors))
            seconds += axis_price(_SUM, R, local, count, shared.collectives, None, shared.topology, nodes).seconds
        for sent in strategy.sent:
            seconds += inner_terms(sent.op, sent.sent_bytes(sharded, count), count, nodes, shared.topology).seconds
    return seconds


def communicating_groups(
    joint: Sequence[Strategy], axes: Sequence[str], mesh: Mesh
) -> list[tuple[tuple[str, ...], Strategy, ShardCounts]]:
    """Return the groups of axes that communicate together inside an op.

    An expansion reduces a value once over all axes that shard it, and rows are dispatched once over all axes with the
    strategy. Other axes communicate separately.

    For example, the axes a and b shard the rows of a batch norm, and c shards nothing. The mean is reduced once over
    (a, b). So there is one group, with the axes (a, b).

    Returns: for each group, its axes, the strategy of its first axis, and the number of shards of each factor along all
    axes except that first one.
    """
    positions_by_key: dict[object, list[int]] = {}
    for position, strategy in enumerate(joint):
        if not strategy.inner_bytes and not strategy.sent:
            continue
        key: object = position  # axes with equal keys are one group; by default, each axis is a group
        if strategy.rewrite == "expand":
            key = strategy.inner_bytes
        elif any(sent.op in EXCHANGES for sent in strategy.sent):
            key = strategy.text
        positions_by_key.setdefault(key, []).append(position)
    groups = []
    for positions in positions_by_key.values():
        first = positions[0]
        others = [(joint[position], mesh.sizes[axis]) for position, axis in enumerate(axes) if position != first]
        groups.append((tuple([axes[position] for position in positions]), joint[first], shard_counts(others)))
    return groups


def value_seconds(
    meta: TensorMeta,
    produced: Placed,
    needed: Sequence[Placed],
    mesh: Mesh,
    shared: Quotient,
    is_quick: bool = False,
) -> float:
    """Return the planned seconds to reshard a value from its produced joint placement to all needed ones.

    The result is 0 if all are equal, and infinite if the placements cannot shard the value together.

    Args:
        meta: the type of the value on one device.
        is_quick: as of `Planner`.
    """
    source, targets = _ends(produced, needed, mesh, shared)
    if not targets:
        return 0.0
    try:
        for sharding in (source, *targets):
            sharding.check_shape(mesh, meta.shape, meta.dtype)
        return plan_tree(meta, source, targets, _planner(mesh, shared, is_quick)).seconds
    except ShardingError:
        return math.inf


def least_value_seconds(
    meta: TensorMeta, produced: Placed, needed: Sequence[Placed], mesh: Mesh, shared: Quotient
) -> float:
    """Return a lower bound on `value_seconds`, without a search: the largest bound of a single reshard."""
    source, targets = _ends(produced, needed, mesh, shared)
    planner = _planner(mesh, shared)
    try:
        return max([planner.least_seconds(meta, source, target) for target in targets], default=0.0)
    except ShardingError:
        return math.inf


def _ends(
    produced: Placed, needed: Sequence[Placed], mesh: Mesh, shared: Quotient
) -> tuple[Sharding, tuple[Sharding, ...]]:
    """Return the produced sharding of a value, and the other shardings that are needed."""
    has_plugins = bool(shared.plugin_placements)
    source = _sharding(mesh, produced, has_plugins)
    targets = dict.fromkeys(_sharding(mesh, placed, has_plugins) for placed in needed)
    targets.pop(source, None)
    return source, tuple(targets)


def _planner(mesh: Mesh, shared: Quotient, is_quick: bool = False) -> Planner:
    """Return the planner for reshards of the program, over the axes of the unsplit mesh."""
    return Planner(mesh.root or mesh, shared.topology, shared.collectives, is_quick)


@lru_cache(maxsize=65536)
def _sharding(mesh: Mesh, placed: Placed, has_plugins: bool) -> Sharding:
    """Return a joint placement as a sharding, over the axes of the unsplit mesh if `mesh` splits some axes."""
    entries = list(placed)
    if has_plugins:
        # The nesting order is decided later; until then placements that require certain sizes come first.
        entries.sort(key=lambda entry: not entry[1].is_demanding)
    sharding = Sharding(entries, mesh.name)
    return sharding if mesh.root is None else sharding.merged(mesh)
