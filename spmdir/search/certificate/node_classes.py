"""Classes of equal nodes of a program, and the uses of values between classes.

The nodes of a class have equal neighbourhoods up to some depth. So the bound is computed once for a class and holds for
each of its nodes. The classes are the colours of `search/colour_refinement.py`. `search/merged_nodes.py` merges the
uses of a class; the bound counts them.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from spmdir.core.placement.tensor import TensorMeta
from spmdir.search.colour_refinement import colours, producers_of
from spmdir.search.problem import Node, Problem


@attrs.frozen(eq=False)
class Role:
    """Equal uses of a value. Each use is one operand of a node.

    Attributes:
        count: the number of these uses of one value.
        users: the (class of the node, operand index) pairs.
    """

    count: int
    users: tuple[tuple[int, int], ...]


@attrs.frozen(eq=False)
class AlikeValue:
    """The values that the nodes of a class produce as one of their results.

    Attributes:
        meta: shape and element type.
        roles: their uses.
        counted_fraction: the fraction of the time of their reshards that counts, the least of all these values.
    """

    meta: TensorMeta
    roles: tuple[Role, ...]
    counted_fraction: float


@attrs.frozen(eq=False)
class AlikeNodes:
    """The nodes of a class.

    Attributes:
        node: one of them.
        count: their number.
        results: the values that they produce.
    """

    node: Node
    count: int
    results: tuple[AlikeValue, ...]


def alike(problem: Problem, depth: int, counted_fractions: Sequence[float] = ()) -> list[AlikeNodes]:
    """Return the classes of the nodes of a problem in program order. Neighbourhoods are compared up to `depth` steps.

    Args:
        counted_fractions: [value], the fraction of the time of its reshards that counts; 1 if empty.
    """
    nodes, producers = problem.nodes, producers_of(problem)
    coarse_classes, classes = colours(problem, depth)
    members: list[list[int]] = [[] for _ in {*classes}]
    for index, node_class in enumerate(classes):
        members[node_class].append(index)
    value_keys = {value: (classes[index], position) for value, (index, position) in enumerate(producers)}
    roles: dict[tuple[int, int], dict[tuple[int, int], list[tuple[int, int]]]] = {}
    for index, node in enumerate(nodes):
        for slot, value in enumerate(node.operands):
            uses = roles.setdefault(value_keys[value], {}).setdefault((coarse_classes[index], slot), [])
            uses.append((classes[index], slot))

    def alike_value(value_key: tuple[int, int], value: int) -> AlikeValue:
        count = len(members[value_key[0]])
        node_class = roles.get(value_key, {}).values()
        uses_alike = tuple(Role(len(uses) // count, tuple(dict.fromkeys(uses))) for uses in node_class)
        values = [nodes[member].results[value_key[1]] for member in members[value_key[0]]]
        least_fraction = min(counted_fractions[value] for value in values) if counted_fractions else 1.0
        return AlikeValue(problem.values[value], uses_alike, least_fraction)

    return [
        AlikeNodes(
            nodes[node_class[0]],
            len(node_class),
            tuple(alike_value((index, position), value) for position, value in enumerate(nodes[node_class[0]].results)),
        )
        for index, node_class in enumerate(members)
    ]
