"""From a solution to shardings: add the nesting order of axes that shard one dimension.

For example, `a: S(0), b: S(0)` may have a outside b, or b outside a. If b is gathered next, b should be inside: then
the reshard is one all-gather over b. Initial orders come from such requests (`nesting_orders.py`). If requests leave a
choice or contradict each other, other orders are tried, and kept if the planner's collectives take less time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from spmdir.core.errors import SpmdirError
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.tensor import TensorMeta
from spmdir.reshard.plan_tree import Planner, plan_tree
from spmdir.rules import OpRule
from spmdir.rules.strategies.strategy import Strategy
from spmdir.search.nesting_orders import Key, Orders
from spmdir.search.problem import Problem

TRIES = 4
"""The mean number of tries for each dimension."""

MOST_AXES = 4
"""The largest number of axes of which all orders are tried."""

_EQUAL = 1e-9
"""The relative difference below which two times are equal."""


@attrs.frozen
class Nested:
    """The shardings of a solution.

    Attributes:
        made: [value], its sharding.
        needed: [node], the shardings that it needs for its operands.
        seconds: the time of all reshards between them.
    """

    made: list[Sharding]
    needed: list[tuple[Sharding, ...]]
    seconds: float


def nest(
    problem: Problem,
    strategies: Mapping[str, Sequence[Strategy]],
    annotations: Sequence[Sequence[Sharding]],
    rules: Sequence[OpRule | None],
    searched: Sequence[Sequence[int]] = (),
) -> Nested:
    """Return the shardings of a decision, over the axes of the unsplit mesh.

    Args:
        strategies: axis → the strategy of each node.
        annotations: the user annotations of each node.
        rules: the rule of each node that is a torch op.
        searched: [node], positions of axes in the nesting order of the search, which is tried too.
    """
    orders = Orders(problem, strategies, annotations, rules)
    planner = Planner(problem.mesh.root or problem.mesh, problem.topology, problem.collectives)
    nested = _nested(problem, orders, planner)
    tries = planner.for_tries()
    if _improve(orders, tries):
        nested = min(nested, _nested(problem, orders, planner), key=lambda one: one.seconds)
    if not searched or not nested.seconds or not any(map(orders.is_free, orders.chosen)):
        return nested
    maker = {value: index for index, node in enumerate(problem.nodes) for value in node.results}
    names, tried = problem.mesh.axis_names, dict(orders.chosen)
    for key, axes in orders.chosen.items():
        if orders.is_free(key):
            order = [names[at] for at in searched[key[0] if key[0] >= 0 else maker[~key[0]]]]
            orders.chosen[key] = tuple(sorted(axes, key=order.index))
    _improve(orders, tries)
    if orders.chosen == tried:
        return nested
    other = _nested(problem, orders, planner)
    return other if other.seconds < nested.seconds * (1 - _EQUAL) else nested


def _nested(problem: Problem, orders: Orders, planner: Planner) -> Nested:
    made: list[Any] = [None] * len(problem.values)
    needed: list[tuple[Sharding, ...]] = []
    for index, node in enumerate(problem.nodes):
        for value in node.results:
            made[value] = orders.made(value)
        operands = zip(node.operands, orders.forms[index].operands, strict=True)
        needed.append(tuple([orders.sharding(value, placed, index) for value, placed in operands]))
    return Nested(made, needed, _seconds(orders, range(len(problem.values)), planner))


def reshard_seconds(problem: Problem, nested: Nested) -> list[float]:
    """Return how long the reshards of each value take."""
    planner = Planner(problem.mesh.root or problem.mesh, problem.topology, problem.collectives)
    targets: list[dict[Sharding, None]] = [{} for _ in problem.values]
    for node, needed in zip(problem.nodes, nested.needed, strict=True):
        for value, sharding in zip(node.operands, needed, strict=True):
            if sharding != nested.made[value]:
                targets[value][sharding] = None
    values = zip(problem.values, nested.made, map(tuple, targets), strict=True)
    return [_reshard_seconds(*each, planner) for each in values]


def _improve(orders: Orders, planner: Planner) -> bool:
    """Try other orders by the time of the reshards around, and return whether one is better.

    They are tried where `_resharded` is in doubt, and then around what has changed.
    """
    around, doubtful = _resharded(orders)
    sharing: dict[int, list[Key]] = {}
    for key, values in around.items():
        for value in values:
            sharing.setdefault(value, []).append(key)
    waiting, left, improved = dict.fromkeys(doubtful), TRIES * len(around), False
    while waiting and left:
        key = next(iter(waiting))
        del waiting[key]
        left -= 1
        first = orders.chosen[key]
        best, least = first, _seconds(orders, around[key], planner)
        for order in itertools.permutations(first) if least else ():
            orders.chosen[key] = order
            if (seconds := _seconds(orders, around[key], planner, least * (1 - _EQUAL))) < least:
                best, least = order, seconds
        orders.chosen[key] = best
        if best != first:
            improved = True
            waiting.update(dict.fromkeys(other for value in around[key] for other in sharing[value] if other != key))
    return improved


def _resharded(orders: Orders) -> tuple[dict[Key, list[int]], list[Key]]:
    """Return the dimensions whose order is free, each with the values whose reshards it may change.

    Returns: beside them, those of which requests do not say the best order.
    """
    found: dict[Key, dict[int, None]] = {}
    doubtful: set[Key] = set()
    for value, placed in enumerate(orders.placed):
        made = orders.keys(value, placed, None)
        for node, wanted in orders.uses[value]:
            keys = orders.keys(value, wanted, node)
            if wanted is placed and keys == made:
                continue
            free = [key for key in (*made, *keys) if orders.is_free(key) and len(orders.chosen[key]) <= MOST_AXES]
            for key in free:
                found.setdefault(key, {})[value] = None
            if not orders.meeting(placed, wanted).is_clear:
                doubtful.update(free)
    doubtful.update(key for key in found if not orders.is_satisfied(key))
    return {key: list(values) for key, values in found.items()}, [key for key in found if key in doubtful]


def _seconds(orders: Orders, values: Sequence[int], planner: Planner, limit: float = math.inf) -> float:
    """Return the time that all reshards of `values` take; infinity if that is `limit` or more."""
    reshards = [_reshard(orders, value) for value in values]
    if any(value in orders.problem.ties and reshard[2] for value, reshard in zip(values, reshards, strict=True)):
        return math.inf
    least = [_least_seconds(*reshard, planner) if limit < math.inf else 0.0 for reshard in reshards]
    total, times = math.fsum(least), []
    for reshard, at_least in zip(reshards, least, strict=True):
        if total >= limit:
            return math.inf
        times.append(_reshard_seconds(*reshard, planner))
        total += times[-1] - at_least
    total = math.fsum(times)
    return total if total < limit else math.inf


def _reshard(orders: Orders, value: int) -> tuple[TensorMeta, Sharding, tuple[Sharding, ...]]:
    """Return what is resharded, as it is made and as it is needed elsewhere."""
    source, placed = orders.made(value), orders.placed[value]
    # Most users need a value as it is made, where no order can differ.
    uses = [(node, wanted) for node, wanted in orders.uses[value] if wanted is not placed or placed.nested]
    targets = dict.fromkeys([orders.sharding(value, wanted, node) for node, wanted in uses])
    targets.pop(source, None)
    return orders.problem.values[value], source, tuple(targets)


def _least_seconds(meta: TensorMeta, source: Sharding, targets: tuple[Sharding, ...], planner: Planner) -> float:
    """Return what the reshards of a value take at the least: the one that takes longest by itself."""
    try:
        return max((planner.least_seconds(meta, source, target) for target in targets), default=0.0)
    except SpmdirError:  # lower-reshard locates it
        return math.inf


def _reshard_seconds(meta: TensorMeta, source: Sharding, targets: tuple[Sharding, ...], planner: Planner) -> float:
    if not targets:
        return 0.0
    try:
        return plan_tree(meta, source, targets, planner).seconds
    except SpmdirError:  # lower-reshard locates it
        return math.inf
