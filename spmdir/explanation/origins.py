"""Find the user annotations that a placement follows from, by breadth-first search over ops that do not reshard.

For example, %x is annotated dp: S(0), and %h = mm(%x, %w), %a = gelu(%h) and %y = add(%a, %b) are S(0) on dp without a
reshard. The search from %y visits %a and %b, then %h, then %x. The annotation of %x has the path %x, %h, %a, %y.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter

import attrs

from spmdir.core.placement.base import Placement
from spmdir.core.placement.standard import R
from spmdir.explanation.decided_program import DecidedProgram

MAX_ORIGINS = 2
"""The number of annotations that are returned."""


@attrs.frozen
class Origin:
    """An annotation, and a path to a value through ops that do not reshard.

    Attributes:
        node: the annotated node.
        placement: the annotated placement.
        path: the values on the path, from the annotated node to the explained value.
    """

    node: int
    placement: Placement
    path: tuple[int, ...]


def origins(program: DecidedProgram, value: int, axis: str) -> list[Origin]:
    """Return the nearest annotations that the placement of a value on an axis follows from, the nearest first.

    Two values are neighbours if one op has both as operands or results, shards both, and reshards neither. Among paths
    of equal length, those that stay in the earliest phase come first: forward, backward, optimizer. An annotated value
    has only its own annotation.
    """
    placement, producer = _produced_placement(program, value, axis), program.producer[value]
    if placement == R:
        return []
    if program.annotation(producer, axis) == placement:
        return [Origin(producer, placement, (value,))]
    origin_of_node: dict[int, Origin] = {}  # annotated node → its origin, the nearest first
    path_to: dict[int, tuple[int, ...]] = {value: ()}  # visited value → the values after it on the path to `value`
    latest_phase = {value: program.phase(producer)}  # visited value → the latest phase on this path
    frontier = [value]  # the values at the current distance
    while frontier and len(origin_of_node) < MAX_ORIGINS:
        annotated: list[tuple[int, Origin]] = []  # (latest phase, origin)
        next_frontier: dict[int, None] = {}
        for current in sorted(frontier, key=latest_phase.__getitem__):
            path, placement = (current, *path_to[current]), _produced_placement(program, current, axis)
            for node in (program.producer[current], *_matching_users(program, current, axis)):
                if program.annotation(node, axis) == placement:
                    annotated.append((max(latest_phase[current], program.phase(node)), Origin(node, placement, path)))
            for neighbour in _values_sharded_alike(program, current, axis):
                if neighbour not in path_to:
                    path_to[neighbour], next_frontier[neighbour] = path, None
                    latest_phase[neighbour] = max(latest_phase[current], program.phase(program.producer[neighbour]))
        for _, origin in sorted(annotated, key=itemgetter(0)):
            origin_of_node.setdefault(origin.node, origin)
        frontier = list(next_frontier)
    return list(origin_of_node.values())[:MAX_ORIGINS]


def _produced_placement(program: DecidedProgram, value: int, axis: str) -> Placement:
    """Return the placement on an axis in which the producer of a value makes it."""
    node = program.producer[value]
    return program.strategies[axis][node].results[program.problem.nodes[node].results.index(value)]


def _matching_users(program: DecidedProgram, value: int, axis: str) -> Iterator[int]:
    """Return the users that need the produced placement of a value on an axis."""
    placement = _produced_placement(program, value, axis)
    return (user for user, slot in program.users[value] if program.strategies[axis][user].operands[slot] == placement)


def _values_sharded_alike(program: DecidedProgram, value: int, axis: str) -> Iterator[int]:
    """Yield the values that an op shards together with `value` on an axis, without resharding either of them."""
    for index in (program.producer[value], *_matching_users(program, value, axis)):
        node, strategy = program.problem.nodes[index], program.strategies[axis][index]
        sharded = []
        for operand, placement in zip(node.operands, strategy.operands, strict=True):
            if operand in program.problem.ties or placement == R:
                continue
            if _produced_placement(program, operand, axis) == placement:
                sharded.append(operand)
        sharded += [result for result, placement in zip(node.results, strategy.results, strict=True) if placement != R]
        if value in sharded:
            yield from (other for other in sharded if other != value and other not in program.problem.ties)
