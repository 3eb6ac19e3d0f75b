"""Whose annotation a placement comes from: the way from a value to the nearest annotations that shard with it."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter

import attrs

from spmdir.core.placement.base import Placement
from spmdir.core.placement.standard import R
from spmdir.explanation.decided import DecidedProgram

NEAREST = 2
"""How many annotations are named."""


@attrs.frozen
class Origin:
    """An annotation that a placement agrees with along a chain of ops, none of which reshards.

    Attributes:
        node: that is annotated.
        placement: what the annotation says.
        path: the values between, from the annotated one to the one asked about.
    """

    node: int
    placement: Placement
    path: tuple[int, ...]


def origins(program: DecidedProgram, value: int, axis: str) -> list[Origin]:
    """Return the nearest annotations from which the placement of a value on an axis follows, the nearest first.

    A placement goes from a value to another where one op takes or gives both, shards both, and reshards neither. Of
    ways through equally many ops, those that are in the forward longest come first. What is annotated itself is that
    by nothing else.
    """
    if (placed := _made(program, value, axis)) == R:
        return []
    if program.annotated(maker := program.maker[value], axis) == placed:
        return [Origin(maker, placed, (value,))]
    found: dict[int, Origin] = {}
    known: dict[int, tuple[int, ...]] = {value: ()}
    latest, waiting = {value: program.phase(maker)}, [value]
    while waiting and len(found) < NEAREST:
        ends: list[tuple[int, Origin]] = []
        beyond: dict[int, None] = {}
        for current in sorted(waiting, key=latest.__getitem__):
            path, placed = (current, *known[current]), _made(program, current, axis)
            for node in (program.maker[current], *_taking(program, current, axis)):
                if program.annotated(node, axis) == placed:
                    ends.append((max(latest[current], program.phase(node)), Origin(node, placed, path)))
            for other in _beside(program, current, axis):
                if other not in known:
                    known[other], beyond[other] = path, None
                    latest[other] = max(latest[current], program.phase(program.maker[other]))
        for _, origin in sorted(ends, key=itemgetter(0)):
            found.setdefault(origin.node, origin)
        waiting = list(beyond)
    return list(found.values())[:NEAREST]


def _made(program: DecidedProgram, value: int, axis: str) -> Placement:
    node = program.maker[value]
    return program.strategies[axis][node].results[program.problem.nodes[node].results.index(value)]


def _taking(program: DecidedProgram, value: int, axis: str) -> Iterator[int]:
    """Yield the nodes that take a value as it is made on an axis."""
    placed = _made(program, value, axis)
    return (user for user, slot in program.users[value] if program.strategies[axis][user].operands[slot] == placed)


def _beside(program: DecidedProgram, value: int, axis: str) -> Iterator[int]:
    """Yield the values that an op shards together with `value` on an axis, where it reshards neither."""
    for index in (program.maker[value], *_taking(program, value, axis)):
        node, strategy = program.problem.nodes[index], program.strategies[axis][index]
        taken = [
            operand
            for operand, placement in zip(node.operands, strategy.operands, strict=True)
            if operand not in program.problem.ties and placement != R and _made(program, operand, axis) == placement
        ]
        given = [result for result, placement in zip(node.results, strategy.results, strict=True) if placement != R]
        if value in taken or value in given:
            yield from (other for other in (*taken, *given) if other != value and other not in program.problem.ties)
