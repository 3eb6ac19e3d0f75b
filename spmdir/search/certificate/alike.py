"""Nodes of a program that look alike, and the uses of values between them.

The nodes of a class have equal surroundings to some depth, so that each of their values is used by equal numbers of
nodes of each class of one step less. What is worked out for a class holds for each of its nodes.

The classes are the colours of `search/colours.py`. `search/repeats.py` merges the uses of a class; a bound counts them.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from spmdir.core.placement.tensor import TensorMeta
from spmdir.search.colours import colours, producers_of
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
        counted: the least part of the time of their reshards that counts, of all of them.
    """

    meta: TensorMeta
    roles: tuple[Role, ...]
    counted: float


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


def alike(problem: Problem, depth: int, counted: Sequence[float] = ()) -> list[AlikeNodes]:
    """Return the classes of the nodes of a problem, by surroundings up to `depth` steps away, in program order.

    Args:
        counted: by value, the part of the time of its reshards that counts; all of it if empty.
    """
    nodes, makers = problem.nodes, producers_of(problem)
    coarse, classes = colours(problem, depth)
    members: list[list[int]] = [[] for _ in {*classes}]
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
        uses_alike = tuple(Role(len(uses) // count, tuple(dict.fromkeys(uses))) for uses in found)
        values = [nodes[member].results[made[1]] for member in members[made[0]]]
        least = min(counted[each] for each in values) if counted else 1.0
        return AlikeValue(problem.values[value], uses_alike, least)

    return [
        AlikeNodes(
            nodes[found[0]],
            len(found),
            tuple(alike_value((index, position), value) for position, value in enumerate(nodes[found[0]].results)),
        )
        for index, found in enumerate(members)
    ]
