"""Nodes that play the same part in a program, such as those of repeated layers, told by their surroundings."""

from __future__ import annotations

import attrs

from spmdir.core.placement.base import Placement
from spmdir.core.tensor import TensorMeta
from spmdir.search.problem import Node, Problem


@attrs.frozen
class Quotient:
    """A program with nodes of equal parts merged; the first of each part stands for all.

    Attributes:
        nodes: one node a part, in program order, over the merged values.
        weight: how many nodes each part merges.
        values: one meta a merged value.
        value_weight: how many values each merges.
        producer: merged value → (part, result index).
        users: merged value → the (part, operand index) pairs that use it.
        uses: part → the (operand index, merged value) pairs of all its nodes.
        operands: part → {merged value: operand indices} for each value that it uses.
        own: part → {merged value: result index} for the values that it both makes and uses.
        neighbours: part → the parts that share a value with it.
        first: part → the first node of the program that plays it.
        node_class: node of the program → its part.
        extras: the plug-in placements that values may have.
    """

    nodes: list[Node]
    weight: list[int]
    values: list[TensorMeta]
    value_weight: list[int]
    producer: list[tuple[int, int]]
    users: list[list[tuple[int, int]]]
    uses: list[list[tuple[int, int]]]
    operands: list[dict[int, list[int]]]
    own: list[dict[int, int]]
    neighbours: list[list[int]]
    first: list[int]
    node_class: list[int]
    extras: tuple[Placement, ...] = ()


def quotient(problem: Problem, depth: int) -> Quotient:
    """Merge nodes that `depth` rounds of colour refinement cannot tell apart: no irregularity is nearer than that."""
    colours = _colours(problem, depth)
    first: dict[int, int] = {}
    for node, colour in enumerate(colours):
        first.setdefault(colour, node)
    parts = list(first.values())
    part_of_colour = {colour: part for part, colour in enumerate(first)}
    node_class = [part_of_colour[colour] for colour in colours]
    weight = [0] * len(parts)
    for part in node_class:
        weight[part] += 1

    merged: dict[tuple[int, int], int] = {}
    value_class = [0] * len(problem.values)
    values, producer = [], []
    for index, node in enumerate(problem.nodes):
        for position, value in enumerate(node.results):
            key = (node_class[index], position)
            if key not in merged:
                merged[key] = len(values)
                values.append(problem.values[value])
                producer.append(key)
            value_class[value] = merged[key]

    users: list[dict[tuple[int, int], None]] = [{} for _ in values]
    neighbours: list[dict[int, None]] = [{} for _ in parts]
    for index, node in enumerate(problem.nodes):
        part = node_class[index]
        for slot, value in enumerate(node.operands):
            users[value_class[value]].setdefault((part, slot))
    uses: list[list[tuple[int, int]]] = [[] for _ in parts]
    for value, found in enumerate(users):
        for part, slot in found:
            uses[part].append((slot, value))
        members = dict.fromkeys([producer[value][0], *(part for part, _ in found)])
        for part in members:
            for other in members:
                if other != part:
                    neighbours[part].setdefault(other)
    operands: list[dict[int, list[int]]] = []
    for found in uses:
        slots: dict[int, list[int]] = {}
        for slot, value in found:
            slots.setdefault(value, []).append(slot)
        operands.append(slots)
    own = [
        {value: producer[value][1] for value in used if producer[value][0] == part}
        for part, used in enumerate(operands)
    ]
    nodes = [
        Node(
            problem.nodes[node].source,
            tuple(value_class[v] for v in problem.nodes[node].operands),
            tuple(value_class[v] for v in problem.nodes[node].results),
        )
        for node in parts
    ]
    return Quotient(
        nodes,
        weight,
        values,
        [weight[part] for part, _ in producer],
        producer,
        [list(found) for found in users],
        uses,
        operands,
        own,
        [list(found) for found in neighbours],
        parts,
        node_class,
        problem.extras,
    )


def _colours(problem: Problem, depth: int) -> list[int]:
    maker = [0] * len(problem.values)
    users: list[list[tuple[int, int]]] = [[] for _ in problem.values]
    for index, node in enumerate(problem.nodes):
        for value in node.results:
            maker[value] = index
        for slot, value in enumerate(node.operands):
            users[value].append((index, slot))
    names: dict[object, int] = {}
    colours = [
        names.setdefault((node.source, len(node.operands), len(node.results)), len(names)) for node in problem.nodes
    ]
    kinds = len(names)
    for _ in range(depth):
        names = {}
        refined = [
            names.setdefault(
                (
                    colours[index],
                    tuple([colours[maker[value]] for value in node.operands]),
                    tuple([tuple(sorted([(colours[user], slot) for user, slot in users[v]])) for v in node.results]),
                ),
                len(names),
            )
            for index, node in enumerate(problem.nodes)
        ]
        if len(names) == kinds:
            break
        colours, kinds = refined, len(names)
    return colours
