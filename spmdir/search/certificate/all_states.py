"""All that the nodes of a class may do on all mesh axes together, what it costs, and the placements that it needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import attrs
import numpy as np

from spmdir.core.errors import UnsupportedError
from spmdir.core.placement.base import Placement
from spmdir.rules.strategies.strategy import Strategy
from spmdir.search.certificate.alike import AlikeNodes
from spmdir.search.joint_strategies import LIMIT, Joint, idle_strategies, joint_strategies
from spmdir.search.problem import Problem

Placed = tuple[Placement, ...]
"""The placement of a value on each axis, in the order of the mesh."""


@attrs.frozen(eq=False)
class AllStates:
    """The states of a node.

    Attributes:
        seconds: what each costs, without reshards.
        operands, results: for each operand and result, its placement by state, as an index into `needed` or `made`.
        needed, made: for each operand and result, the placements that states need and make.
    """

    seconds: np.ndarray
    operands: tuple[np.ndarray, ...]
    results: tuple[np.ndarray, ...]
    needed: tuple[tuple[Placed, ...], ...]
    made: tuple[tuple[Placed, ...], ...]


def states_of(
    problem: Problem, classes: Sequence[AlikeNodes], seconds: Callable[[AlikeNodes, Joint], float]
) -> list[AllStates]:
    """Return the states of the nodes of each class; of those with the same placements only the cheapest.

    Raises:
        UnsupportedError: there are too many to look at.
    """
    axes = problem.mesh.axes
    sources = [one.node.source for one in classes]
    candidates = [{source: source.candidates(axis, count) for source in sources} for axis, count in axes]
    most = max((math.prod(len(found[source]) for found in candidates) for source in sources), default=1)
    if most > LIMIT:
        raise UnsupportedError(
            f"certify looks at all mesh axes together, and a node may do {most} things on {problem.mesh}, more than "
            f"{LIMIT}; use it on fewer axes, or with more user annotations"
        )
    makers, none = _makers(classes), [frozenset[Strategy]()] * len(classes)
    idle = zip(
        *[
            none if problem.is_small else idle_strategies([found[source] for source in sources], makers)
            for found in candidates
        ],
        strict=True,
    )
    known: dict[object, list[Joint]] = {}
    states = []
    for one, left_out in zip(classes, idle, strict=True):
        key = one.node.source, left_out
        if key not in known:
            known[key] = joint_strategies(one.node.source, axes, left_out).joints()
        states.append(_states(one, known[key], seconds))
    return states


def _makers(classes: Sequence[AlikeNodes]) -> list[list[tuple[int, tuple[int, int]]]]:
    """Return, by class, (operand index, (class, result index) that makes it)."""
    makers: list[list[tuple[int, tuple[int, int]]]] = [[] for _ in classes]
    for index, one in enumerate(classes):
        for position, value in enumerate(one.results):
            for user, slot in (user for role in value.roles for user in role.users):
                makers[user].append((slot, (index, position)))
    return makers


def _states(one: AlikeNodes, joints: Sequence[Joint], seconds: Callable[[AlikeNodes, Joint], float]) -> AllStates:
    cheapest: dict[tuple[tuple[Placed, ...], tuple[Placed, ...]], float] = {}
    for joint in joints:
        operands = tuple(zip(*(strategy.operands for strategy in joint), strict=True))
        results = tuple(zip(*(strategy.results for strategy in joint), strict=True))
        cost = seconds(one, joint)
        if cost < cheapest.get((operands, results), np.inf):
            cheapest[operands, results] = cost
    operands, needed = _numbered([operands for operands, _ in cheapest])
    results, made = _numbered([results for _, results in cheapest])
    return AllStates(np.array(list(cheapest.values())), operands, results, needed, made)


def _numbered(
    states: Sequence[tuple[Placed, ...]],
) -> tuple[tuple[np.ndarray, ...], tuple[tuple[Placed, ...], ...]]:
    """Return, for each operand or result, the number of its placement by state, and its placements."""
    columns = list(zip(*states, strict=True))
    placements = tuple(tuple(dict.fromkeys(column)) for column in columns)
    numbers = [{placed: index for index, placed in enumerate(found)} for found in placements]
    return tuple(np.array([n[p] for p in c]) for n, c in zip(numbers, columns, strict=True)), placements
