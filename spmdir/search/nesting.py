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

    produced: list[Sharding]
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
        searched: [node], positions of axes in the nesting order of the search, as one more candidate.
    """
    orders = Orders(problem, strategies, annotations, rules)
    planner = Planner(problem.mesh.root or problem.mesh, problem.topology, problem.collectives)
    nested = _nested(problem, orders, planner)
    tries = planner.for_tries()
    if _improve(orders, tries):
        nested = min(nested, _nested(problem, orders, planner), key=lambda candidate: candidate.seconds)
    if not searched or not nested.seconds or not any(map(orders.is_free, orders.chosen)):
        return nested
    producer = {value: index for index, node in enumerate(problem.nodes) for value in node.results}
    names, tried = problem.mesh.axis_names, dict(orders.chosen)
    for key, axes in orders.chosen.items():
        if orders.is_free(key):
            order = [names[axis] for axis in searched[key[0] if key[0] >= 0 else producer[~key[0]]]]
            orders.chosen[key] = tuple(sorted(axes, key=order.index))
    _improve(orders, tries)
    if orders.chosen == tried:
        return nested
    retried = _nested(problem, orders, planner)
    return retried if retried.seconds < nested.seconds * (1 - _EQUAL) else nested


def _nested(problem: Problem, orders: Orders, planner: Planner) -> Nested:
    produced: list[Any] = [None] * len(problem.values)
    needed: list[tuple[Sharding, ...]] = []
    for index, node in enumerate(problem.nodes):
        for value in node.results:
            produced[value] = orders.produced_sharding(value)
        operands = zip(node.operands, orders.forms[index].operands, strict=True)
        needed.append(tuple([orders.sharding(value, placed, index) for value, placed in operands]))
    return Nested(produced, needed, _seconds(orders, range(len(problem.values)), planner))


def reshard_seconds(problem: Problem, nested: Nested) -> list[float]:
    """Return [value], the seconds of its reshards."""
    planner = Planner(problem.mesh.root or problem.mesh, problem.topology, problem.collectives)
    targets: list[dict[Sharding, None]] = [{} for _ in problem.values]
    for node, needed in zip(problem.nodes, nested.needed, strict=True):
        for value, sharding in zip(node.operands, needed, strict=True):
            if sharding != nested.produced[value]:
                targets[value][sharding] = None
    values = zip(problem.values, nested.produced, map(tuple, targets), strict=True)
    return [_reshard_seconds(*each, planner) for each in values]


def _improve(orders: Orders, planner: Planner) -> bool:
    """Try other orders of dimensions, keep those that lower the time of their reshards, and return whether any did.

    The tries start at the unclear dimensions of `_resharded` and continue at the neighbours of changed ones.
    """
    values_of_key, doubtful = _resharded(orders)
    sharing: dict[int, list[Key]] = {}
    for key, values in values_of_key.items():
        for value in values:
            sharing.setdefault(value, []).append(key)
    waiting, tries_left, improved = dict.fromkeys(doubtful), TRIES * len(values_of_key), False
    while waiting and tries_left:
        key = next(iter(waiting))
        del waiting[key]
        tries_left -= 1
        initial = orders.chosen[key]
        best, least = initial, _seconds(orders, values_of_key[key], planner)
        for order in itertools.permutations(initial) if least else ():
            orders.chosen[key] = order
            if (seconds := _seconds(orders, values_of_key[key], planner, least * (1 - _EQUAL))) < least:
                best, least = order, seconds
        orders.chosen[key] = best
        if best != initial:
            improved = True
            waiting.update(
                dict.fromkeys(
                    neighbour for value in values_of_key[key] for neighbour in sharing[value] if neighbour != key
                )
            )
    return improved


def _resharded(orders: Orders) -> tuple[dict[Key, list[int]], list[Key]]:
    """Return the dimensions whose order is free, each with the values whose reshards it may change.

    Returns: also the unclear dimensions, whose best order does not follow from the requests.
    """
    values_of_key: dict[Key, dict[int, None]] = {}
    doubtful: set[Key] = set()
    for value, placed in enumerate(orders.placed):
        produced_keys = orders.keys(value, placed, None)
        for node, needed in orders.uses[value]:
            keys = orders.keys(value, needed, node)
            if needed is placed and keys == produced_keys:
                continue
            free = [
                key for key in (*produced_keys, *keys) if orders.is_free(key) and len(orders.chosen[key]) <= MOST_AXES
            ]
            for key in free:
                values_of_key.setdefault(key, {})[value] = None
            if not orders.meeting(placed, needed).is_clear:
                doubtful.update(free)
    doubtful.update(key for key in values_of_key if not orders.is_satisfied(key))
    return {key: list(values) for key, values in values_of_key.items()}, [
        key for key in values_of_key if key in doubtful
    ]


def _seconds(orders: Orders, values: Sequence[int], planner: Planner, limit: float = math.inf) -> float:
    """Return the seconds of all reshards of `values`; infinity if they reach `limit`.

    The sum starts with lower bounds. Each exact time replaces its bound, and the sum stops at the limit.
    """
    reshards = [_reshard(orders, value) for value in values]
    if any(value in orders.problem.ties and reshard[2] for value, reshard in zip(values, reshards, strict=True)):
        return math.inf
    bounds = [_least_seconds(*reshard, planner) if limit < math.inf else 0.0 for reshard in reshards]
    total, seconds = math.fsum(bounds), []
    for reshard, bound in zip(reshards, bounds, strict=True):
        if total >= limit:
            return math.inf
        seconds.append(_reshard_seconds(*reshard, planner))
        total += seconds[-1] - bound
    total = math.fsum(seconds)
    return total if total < limit else math.inf


def _reshard(orders: Orders, value: int) -> tuple[TensorMeta, Sharding, tuple[Sharding, ...]]:
    """Return the type of a value, its produced sharding, and the other shardings that users need."""
    source, placed = orders.produced_sharding(value), orders.placed[value]
    # Most users need the produced sharding without nested axes, so there is no reshard.
    uses = [(node, needed) for node, needed in orders.uses[value] if needed is not placed or placed.nested]
    targets = dict.fromkeys([orders.sharding(value, needed, node) for node, needed in uses])
    targets.pop(source, None)
    return orders.problem.values[value], source, tuple(targets)


def _least_seconds(meta: TensorMeta, source: Sharding, targets: tuple[Sharding, ...], planner: Planner) -> float:
    """Return a lower bound of the seconds of a value's reshards: the longest of their separate bounds."""
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
