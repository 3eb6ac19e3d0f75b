"""Merge equal nodes of a program, such as those of repeated layers, into *parts*.

`search/colour_refinement.py` finds equal nodes; this file builds the program over parts. The *weight* of a part is its
number of nodes. For example, a model has 32 layers, each with an `mm` node. The 30 nodes of inner layers are one part
of weight 30, and those of the first and the last layer are two parts of weight 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from operator import truediv

import attrs

from spmdir.core.placement.base import Placement
from spmdir.core.placement.tensor import TensorMeta
from spmdir.reshard.collective_spec import CollectiveSpec
from spmdir.reshard.collectives import PLANNED
from spmdir.reshard.topology import DEFAULT, Topology
from spmdir.search.problem import Node, Problem
from spmdir.search.value_prices import ValuePrices

FEWEST_LAYERS = 4
"""From this number of equal layers on, decisions do not depend on the number of layers."""

BORDER = 4
"""The largest difference between the weight of a part and a multiple of the number of layers. Larger differences do not
come from first and last layers."""

MOSTLY = 0.5
"""The least fraction of the nodes that must be in equal layers. Otherwise the program counts as one without layers."""


@attrs.frozen
class Quotient:
    """A program in which equal nodes are merged into parts.

    Attributes:
        nodes: [part], its first node, over the merged values, in program order.
        weight: [part], the number of its nodes.
        values: [merged value], its type.
        value_weight: [merged value], the number of its values.
        producer: merged value → (part, result index).
        users: merged value → the (part, operand index) pairs that use it.
        uses: part → the (operand index, merged value) pairs of all its nodes.
        neighbours: part → the parts that share a value with it.
        members: part → the nodes of the program that are merged in it, in order.
        node_class: node of the program → its part.
        value_class: value of the program → its merged value.
        plugin_placements: the plug-in placements that values may have.
        collectives: those by which values may be resharded.
        topology: the machine, which gives the times.
        ties: the merged values that are never resharded.
        apart, unsent, unsliced: as of `Problem`, of merged values.
        holding: [merged value], the price in seconds of holding one byte of it as produced; 0 if empty.
        copy_holding: the same for each copy that a reshard makes.
        exposed: [merged value], the fraction of the time of its reshards that counts; 1 if empty.
    """

    nodes: list[Node]
    weight: Sequence[float]
    values: list[TensorMeta]
    value_weight: Sequence[float]
    producer: list[tuple[int, int]]
    users: list[list[tuple[int, int]]]
    uses: list[list[tuple[int, int]]]
    neighbours: list[list[int]]
    members: list[list[int]]
    node_class: list[int]
    value_class: list[int]
    plugin_placements: tuple[Placement, ...] = ()
    collectives: tuple[CollectiveSpec, ...] = PLANNED
    topology: Topology = DEFAULT
    ties: frozenset[int] = frozenset()
    apart: tuple[str, ...] = ()
    unsent: frozenset[int] = frozenset()
    unsliced: frozenset[int] = frozenset()
    holding: tuple[float, ...] = ()
    copy_holding: tuple[float, ...] = ()
    exposed: tuple[float, ...] = ()

    def avoids(self, value: int, is_whole: bool) -> bool:
        """Return whether reshards of a merged value along `apart` cost `AVOIDED` more.

        Args:
            is_whole: whether the value is replicated before the reshard. Then the reshard slices it, otherwise it is
                sent.
        """
        return value in (self.unsliced if is_whole else self.unsent)

    def with_prices(self, prices: ValuePrices) -> Quotient:
        """Return this program with prices of holding and sending: their means over the values of each merged value."""
        count = len(self.values)
        return attrs.evolve(
            self,
            holding=_mean(prices.holding, self.value_class, count),
            copy_holding=_mean(prices.copy_holding, self.value_class, count),
            exposed=_mean(prices.exposed, self.value_class, count),
        )


def quotient(problem: Problem, node_class: list[int]) -> Quotient:
    """Return a program with nodes merged.

    Args:
        node_class: [node], its part. Parts are numbered in the order of their first nodes. Nodes of one part must have
            equal sources, and operands and users in equal parts.
    """
    members: list[list[int]] = [[] for _ in range(max(node_class, default=-1) + 1)]  # part → its nodes
    for node, part in enumerate(node_class):
        members[part].append(node)
    value_class, values, producer = _merged_values(problem, node_class)
    users = _users(problem, node_class, value_class, len(values))
    uses: list[list[tuple[int, int]]] = [[] for _ in members]  # part → (operand index, merged value) pairs
    for value, value_users in enumerate(users):
        for part, operand_index in value_users:
            uses[part].append((operand_index, value))
    weight = list(map(len, members))
    return Quotient(
        nodes=[_merged_node(problem.nodes[nodes[0]], value_class) for nodes in members],
        weight=weight,
        values=values,
        value_weight=[weight[part] for part, _ in producer],
        producer=producer,
        users=users,
        uses=uses,
        neighbours=_neighbours(producer, users, len(members)),
        members=members,
        node_class=node_class,
        value_class=value_class,
        plugin_placements=problem.plugin_placements,
        collectives=problem.collectives,
        topology=problem.topology,
        ties=frozenset([value_class[value] for value in problem.ties]),
        apart=problem.apart,
        unsent=frozenset([value_class[value] for value in problem.unsent]),
        unsliced=frozenset([value_class[value] for value in problem.unsliced]),
    )


def as_if_repeated(shared: Quotient, times: int) -> Quotient:
    """Return the program as if it had `times` equal layers. With fewer than `FEWEST_LAYERS`, it is unchanged.

    Decisions then do not depend on the number of layers. The number of layers is the most frequent weight of a part.
    A part may have several nodes in each layer. Its weight may differ by `BORDER` from a multiple, because first and
    last layers are not equal to the rest. Other weights are scaled in proportion.

    For example, 30 equal layers count as if they were 4. Then weight 30 becomes 4, and weight 62 = 2 · 30 + 2 becomes
    2 · 4 + 2 = 10. Weight 45 is no multiple, and becomes 45 · 4/30 = 6.
    """
    layers = _count_layers(shared.weight)
    if layers < FEWEST_LAYERS:
        return shared

    def scaled(weight: float) -> float:
        """Return the weight of a part in the program of `times` layers."""
        nodes_per_layer = (weight + BORDER) // layers  # rounded up if the next multiple is at most BORDER larger
        border_nodes = weight - nodes_per_layer * layers  # negative if first or last layers have fewer
        return max(nodes_per_layer * times + border_nodes, 1) if border_nodes <= BORDER else weight * times / layers

    weight = list(map(scaled, shared.weight))
    return attrs.evolve(shared, weight=weight, value_weight=[weight[part] for part, _ in shared.producer])


def _count_layers(weights: Sequence[float]) -> int:
    """Return the number of equal layers: the most frequent weight of a part; 1 if most nodes are not in equal layers.

    Weights of 1 do not count, and the largest of equally frequent weights wins. The nodes of a part count as nodes of
    equal layers if the weight of the part is more than half the number of layers.
    """
    frequency = Counter(int(weight) for weight in weights if weight > 1)
    layers = max(frequency, key=lambda weight: (frequency[weight], weight), default=1)
    nodes_in_layers = sum(weight for weight in weights if weight > layers // 2)
    return layers if nodes_in_layers >= MOSTLY * sum(weights) else 1


def _mean(by_value: Sequence[float], value_class: Sequence[int], count: int) -> tuple[float, ...]:
    """Return the mean of prices over the values of each of `count` merged values; empty if there are no prices.

    Args:
        by_value: [value], its price.
        value_class: [value], its merged value.
    """
    if not by_value:
        return ()
    totals, members = [0.0] * count, [0] * count
    for merged_value, price in zip(value_class, by_value, strict=True):
        totals[merged_value] += price
        members[merged_value] += 1
    return tuple(map(truediv, totals, members))


def _merged_values(
    problem: Problem, node_class: list[int]
) -> tuple[list[int], list[TensorMeta], list[tuple[int, int]]]:
    """Merge values into one if they have the same result index in nodes of the same part.

    Returns: the merged value of each value; the type of each merged value; the (part, result index) that produces it.
    """
    merged: dict[tuple[int, int], int] = {}
    value_class = [0] * len(problem.values)
    values: list[TensorMeta] = []
    for part, node in zip(node_class, problem.nodes, strict=True):
        for result_index, value in enumerate(node.results):
            if (part, result_index) not in merged:
                merged[part, result_index] = len(values)
                values.append(problem.values[value])
            value_class[value] = merged[part, result_index]
    return value_class, values, list(merged)


def _users(problem: Problem, node_class: list[int], value_class: list[int], count: int) -> list[list[tuple[int, int]]]:
    """Return the (part, operand index) pairs that use each of `count` merged values, in program order."""
    users: list[dict[tuple[int, int], None]] = [{} for _ in range(count)]
    for part, node in zip(node_class, problem.nodes, strict=True):
        for operand_index, value in enumerate(node.operands):
            users[value_class[value]].setdefault((part, operand_index))
    return list(map(list, users))


def _neighbours(producer: list[tuple[int, int]], users: list[list[tuple[int, int]]], count: int) -> list[list[int]]:
    """Return for each part the other parts that produce or use one of its values."""
    neighbours: list[dict[int, None]] = [{} for _ in range(count)]
    for (producing_part, _), using_parts in zip(producer, users, strict=True):
        members = dict.fromkeys([producing_part, *(part for part, _ in using_parts)])
        for part in members:
            neighbours[part].update(dict.fromkeys(neighbour for neighbour in members if neighbour != part))
    return list(map(list, neighbours))


def _merged_node(node: Node, value_class: list[int]) -> Node:
    """Return the node over merged values."""
    operands, results = (tuple(value_class[value] for value in values) for values in (node.operands, node.results))
    return Node(node.source, operands, results)
