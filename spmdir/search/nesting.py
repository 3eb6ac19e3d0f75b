"""From a solution to shardings: add the nesting order of axes that shard one dimension.

For example, a 1024 × 1024 f32 value is produced in `a: S(0), b: S(0)` on the mesh (a = 2, b = 2), and a user needs
`a: S(0)`. On the topology `flat`, the reshard takes

    a outside b     all_gather on [b]       1 MiB a rank, 2.84 µs
    b outside a     exchange on [a, b]      2 MiB a rank, 5.68 µs

So the user requests the order (a, b). Initial orders come from such requests (`nesting_orders.py`). If requests leave a
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
        produced: [value], its produced sharding.
        needed: [node], the shardings that the node needs for its operands.
        seconds: the time of all reshards from produced to needed shardings.
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

    The fastest of up to three candidates is returned: the initial orders, the result of improving the initial orders,
    and the result of improving the orders of the search.

    Args:
        strategies: axis → the strategy of each node.
        annotations: [node], its user annotations.
        rules: [node], its rule; None if it is not a torch op.
        searched: [node], positions of axes in the nesting order of the search; empty if the search has none.
    """
    orders = Orders(problem, strategies, annotations, rules)
    planner = Planner(problem.mesh.root or problem.mesh, problem.topology, problem.collectives)
    nested = _build_nested(problem, orders, planner)
    trial_planner = planner.for_tries()
    if _improve(orders, trial_planner):
        nested = min(nested, _build_nested(problem, orders, planner), key=lambda candidate: candidate.seconds)
    # There is no third candidate, no time to save, or no order that may change.
    if not searched or not nested.seconds or not any(map(orders.is_free, orders.chosen)):
        return nested
    previous_orders = dict(orders.chosen)
    _use_searched_orders(problem, orders, searched)
    _improve(orders, trial_planner)
    if orders.chosen == previous_orders:
        return nested
    from_searched = _build_nested(problem, orders, planner)
    return from_searched if from_searched.seconds < nested.seconds * (1 - _EQUAL) else nested


def _use_searched_orders(problem: Problem, orders: Orders, searched: Sequence[Sequence[int]]) -> None:
    """Set each free order to that of the search.

    A key of a node's dimension takes the order of this node, and a key of a value's dimension that of its producer.
    """
    producer = {value: index for index, node in enumerate(problem.nodes) for value in node.results}
    axis_names = problem.mesh.axis_names
    for key, axes in orders.chosen.items():
        if orders.is_free(key):
            number, _ = key  # a node, or ~value, which is negative
            node = number if number >= 0 else producer[~number]
            searched_order = [axis_names[position] for position in searched[node]]
            orders.chosen[key] = tuple(sorted(axes, key=searched_order.index))


def _build_nested(problem: Problem, orders: Orders, planner: Planner) -> Nested:
    """Return the shardings with the chosen orders, and the time of their reshards."""
    produced: list[Any] = [None] * len(problem.values)
    needed: list[tuple[Sharding, ...]] = []
    for index, node in enumerate(problem.nodes):
        for value in node.results:
            produced[value] = orders.produced_sharding(value)
        operands = zip(node.operands, orders.forms[index].operands, strict=True)
        needed.append(tuple([orders.sharding(value, placed, index) for value, placed in operands]))
    return Nested(produced, needed, _seconds(orders, range(len(problem.values)), planner))


def reshard_seconds(problem: Problem, nested: Nested) -> list[float]:
    """Return for each value the seconds of the reshards from its produced to all needed shardings."""
    planner = Planner(problem.mesh.root or problem.mesh, problem.topology, problem.collectives)
    targets: list[dict[Sharding, None]] = [{} for _ in problem.values]  # [value], the distinct needed shardings
    for node, needed in zip(problem.nodes, nested.needed, strict=True):
        for value, sharding in zip(node.operands, needed, strict=True):
            if sharding != nested.produced[value]:
                targets[value][sharding] = None
    reshards = zip(problem.values, nested.produced, map(tuple, targets), strict=True)
    return [_reshard_seconds(meta, source, value_targets, planner) for meta, source, value_targets in reshards]


def _improve(orders: Orders, planner: Planner) -> bool:
    """Try other orders of free dimensions, and keep those that lower the time of reshards. Return whether any changed.

    The tries start at the ambiguous dimensions, and continue at dimensions that share a value with a changed one. A try
    compares all orders of the axes of one dimension. There are at most `TRIES` tries for each free dimension.
    """
    free_dimensions = _find_free_dimensions(orders)
    values_by_key = free_dimensions.values_by_key
    keys_by_value: dict[int, list[Key]] = {}
    for key, values in values_by_key.items():
        for value in values:
            keys_by_value.setdefault(value, []).append(key)
    untried, tries_left, improved = dict.fromkeys(free_dimensions.ambiguous_keys), TRIES * len(values_by_key), False
    while untried and tries_left:
        key = next(iter(untried))
        del untried[key]
        tries_left -= 1
        initial = orders.chosen[key]
        best, least_seconds = initial, _seconds(orders, values_by_key[key], planner)
        if least_seconds:
            for order in itertools.permutations(initial):
                orders.chosen[key] = order
                seconds = _seconds(orders, values_by_key[key], planner, limit=least_seconds * (1 - _EQUAL))
                if seconds < least_seconds:
                    best, least_seconds = order, seconds
        orders.chosen[key] = best
        if best != initial:
            improved = True
            neighbours = (neighbour for value in values_by_key[key] for neighbour in keys_by_value[value])
            untried.update(dict.fromkeys(neighbour for neighbour in neighbours if neighbour != key))
    return improved


@attrs.frozen
class _FreeDimensions:
    """The sharded dimensions whose nesting order is free and may change the time of reshards.

    Attributes:
        values_by_key: key of the dimension → the values whose reshards the order may change.
        ambiguous_keys: the dimensions whose best order does not follow from the requests.
    """

    values_by_key: dict[Key, list[int]]
    ambiguous_keys: list[Key]


def _find_free_dimensions(orders: Orders) -> _FreeDimensions:
    """Return the dimensions whose order is free, except those that more than `MOST_AXES` axes shard.

    A dimension is ambiguous if one of its reshards is, or if its order does not satisfy all requests.
    """
    values_by_key: dict[Key, dict[int, None]] = {}
    ambiguous_keys: set[Key] = set()
    for value, produced in enumerate(orders.placed):
        produced_keys = orders.keys(value, produced, None)
        for node, needed in orders.uses[value]:
            needed_keys = orders.keys(value, needed, node)
            if needed is produced and needed_keys == produced_keys:
                continue  # both sides always have the same order, so there is no reshard
            keys = (*produced_keys, *needed_keys)
            free_keys = [key for key in keys if orders.is_free(key) and len(orders.chosen[key]) <= MOST_AXES]
            for key in free_keys:
                values_by_key.setdefault(key, {})[value] = None
            if orders.difference(produced, needed).is_ambiguous:
                ambiguous_keys.update(free_keys)
    ambiguous_keys.update(key for key in values_by_key if not orders.is_satisfied(key))
    return _FreeDimensions(
        {key: list(values) for key, values in values_by_key.items()},
        [key for key in values_by_key if key in ambiguous_keys],
    )


def _seconds(orders: Orders, values: Sequence[int], planner: Planner, limit: float = math.inf) -> float:
    """Return the seconds of all reshards of `values`; infinity if they reach `limit`, or if a tied value is resharded.

    The sum starts with lower bounds, if there is a limit. Each exact time replaces its bound. Planning stops as soon as
    the sum reaches the limit.
    """
    reshards = [_reshard(orders, value) for value in values]
    for value, (_, _, targets) in zip(values, reshards, strict=True):
        if targets and value in orders.problem.ties:
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
    produced_sharding, produced = orders.produced_sharding(value), orders.placed[value]
    # Most users need the produced sharding without nested axes, so there is no reshard.
    uses = [(node, needed) for node, needed in orders.uses[value] if needed is not produced or produced.nested]
    required_shardings = dict.fromkeys([orders.sharding(value, needed, node) for node, needed in uses])
    required_shardings.pop(produced_sharding, None)
    return orders.problem.values[value], produced_sharding, tuple(required_shardings)


def _least_seconds(meta: TensorMeta, source: Sharding, targets: tuple[Sharding, ...], planner: Planner) -> float:
    """Return a lower bound on the seconds of all reshards of a value: the largest of the bounds of single reshards.

    The bound is infinite if a reshard is impossible.
    """
    try:
        return max((planner.least_seconds(meta, source, target) for target in targets), default=0.0)
    except SpmdirError:  # the pass `lower-reshard` reports it with its location
        return math.inf


def _reshard_seconds(meta: TensorMeta, source: Sharding, targets: tuple[Sharding, ...], planner: Planner) -> float:
    """Return the planned seconds of a value's reshards; infinity if one of them is impossible."""
    if not targets:
        return 0.0
    try:
        return plan_tree(meta, source, targets, planner).seconds
    except SpmdirError:  # the pass `lower-reshard` reports it with its location
        return math.inf
