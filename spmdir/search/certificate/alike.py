"""Nodes of a program that look alike, and the uses of values between them.

The nodes of a class have equal surroundings to some depth, so that each of their values is used by equal numbers of
nodes of each class of one step less. What is worked out for a class holds for each of its nodes.
"""

from __future__ import annotations

import attrs

from spmdir.core.tensor import TensorMeta
from spmdir.search.problem import Node, Problem


@attrs.frozen(eq=False)
class Role:
    """The uses of a value, each by one operand of a node, that look alike.

    Attributes:
        count: how many a value has.
        users: (class of the node, operand index) of each of them.
    """

    count: int
    users: tuple[tuple[int, int], ...]


@attrs.frozen(eq=False)
class AlikeValue:
    """The values that the nodes of a class make at one place of their results.

    Attributes:
        meta: shape and element type.
        roles: how they are used.
    """

    meta: TensorMeta
    roles: tuple[Role, ...]


@attrs.frozen(eq=False)
class AlikeNodes:
    """The nodes of a class.

    Attributes:
        node: one of them.
        count: how many there are.
        results: the values that they make.
    """

    node: Node
    count: int
    results: tuple[AlikeValue, ...]


def alike(problem: Problem, depth: int) -> list[AlikeNodes]:
    """Return the classes of the nodes of a problem, by surroundings up to `depth` steps away, in program order."""
    nodes, makers = problem.nodes, _makers(problem)
    coarse, fine = _colours(problem, makers, depth)
    number = {colour: index for index, colour in enumerate(dict.fromkeys(fine))}
    classes = [number[colour] for colour in fine]
    members: list[list[int]] = [[] for _ in number]
    for index, found in enumerate(classes):
        members[found].append(index)
    makes = {value: (classes[index], position) for value, (index, position) in enumerate(makers)}
    roles: dict[tuple[int, int], dict[tuple[int, int], list[tuple[int, int]]]] = {}
    for index, node in enumerate(nodes):
        for slot, value in enumerate(node.operands):
            uses = roles.setdefault(makes[value], {}).setdefault((coarse[index], slot), [])
            uses.append((classes[index], slot))

    def alike_value(made: tuple[int, int], value: int) -> AlikeValue:
        count = len(members[made[0]])
        found = roles.get(made, {}).values()
        return AlikeValue(
            problem.values[value], tuple(Role(len(uses) // count, tuple(dict.fromkeys(uses))) for uses in found)
        )

    return [
        AlikeNodes(
            nodes[found[0]],
            len(found),
            tuple(alike_value((index, position), value) for position, value in enumerate(nodes[found[0]].results)),
        )
        for index, found in enumerate(members)
    ]


def _makers(problem: Problem) -> list[tuple[int, int]]:
    """Return the (node, result index) that makes each value."""
    found = {value: (i, at) for i, node in enumerate(problem.nodes) for at, value in enumerate(node.results)}
    return [found[value] for value in range(len(problem.values))]


def _colours(problem: Problem, makers: list[tuple[int, int]], depth: int) -> tuple[list[int], list[int]]:
    """Return the colours of nodes by surroundings of up to `depth` steps, at least 1; first those of one step less."""
    users: list[list[tuple[int, int]]] = [[] for _ in problem.values]
    for index, node in enumerate(problem.nodes):
        for slot, value in enumerate(node.operands):
            users[value].append((index, slot))
    coarse = fine = _numbered([(node.source, len(node.operands), len(node.results)) for node in problem.nodes])
    for _ in range(depth):
        coarse = fine
        fine = _numbered(
            [
                (
                    coarse[index],
                    tuple([(coarse[makers[value][0]], makers[value][1]) for value in node.operands]),
                    tuple([tuple(sorted([(coarse[user], slot) for user, slot in users[v]])) for v in node.results]),
                )
                for index, node in enumerate(problem.nodes)
            ]
        )
        if max(fine, default=0) == max(coarse, default=0):
            break
    return coarse, fine


def _numbered(keys: list[object]) -> list[int]:
    numbers: dict[object, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]
