"""All states of a class of nodes: one strategy for each mesh axis, their seconds and their placements."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import attrs
import numpy as np

from spmdir.core.errors import UnsupportedError
from spmdir.core.placement.base import Placement
from spmdir.rules.strategies.strategy import Strategy
from spmdir.search.certificate.node_classes import AlikeNodes
from spmdir.search.joint_strategies import LIMIT, Joint, idle_strategies, joint_strategies
from spmdir.search.problem import Problem

Placed = tuple[Placement, ...]
"""The placement of a value on each axis, in the order of the mesh."""


@attrs.frozen(eq=False)
class AllStates:
    """The states of a node.

    Attributes:
        seconds: [state], the time without reshards.
        operands, results: for each operand and result, [state] an index into `needed` or `produced`.
        needed, produced: for each operand and result, the distinct placements of all states.
    """

    seconds: np.ndarray
    operands: tuple[np.ndarray, ...]
    results: tuple[np.ndarray, ...]
    needed: tuple[tuple[Placed, ...], ...]
    produced: tuple[tuple[Placed, ...], ...]


def states_of(
    problem: Problem, classes: Sequence[AlikeNodes], seconds: Callable[[AlikeNodes, Joint], float]
) -> list[AllStates]:
    """Return the states of each class. Of states with equal placements, only the cheapest is returned.

    Raises:
        UnsupportedError: a node has more than `LIMIT` joint strategies.
    """
    axes = problem.mesh.axes
    sources = [node_class.node.source for node_class in classes]
    candidates = [{source: source.candidates(axis, count) for source in sources} for axis, count in axes]
    most_joints = max((math.prod(len(by_source[source]) for by_source in candidates) for source in sources), default=1)
    if most_joints > LIMIT:
        raise UnsupportedError(
            f"certify enumerates the strategies on all mesh axes together, and a node has {most_joints} on "
            f"{problem.mesh}; expected at most {LIMIT}; use fewer axes, or annotate more values"
        )
    producers, nothing_idle = _producers(classes), [frozenset[Strategy]()] * len(classes)
    idle = zip(
        *[
            nothing_idle if problem.is_small else idle_strategies([by_source[source] for source in sources], producers)
            for by_source in candidates
        ],
        strict=True,
    )
    joints_by_key: dict[object, list[Joint]] = {}
    states = []
    for node_class, idle_here in zip(classes, idle, strict=True):
        key = node_class.node.source, idle_here
        if key not in joints_by_key:
            joints_by_key[key] = joint_strategies(node_class.node.source, axes, idle_here).joints()
        states.append(_states(node_class, joints_by_key[key], seconds))
    return states


def _producers(classes: Sequence[AlikeNodes]) -> list[list[tuple[int, tuple[int, int]]]]:
    """Return [class], pairs of an operand index and the (class, result index) that produces the operand."""
    producers: list[list[tuple[int, tuple[int, int]]]] = [[] for _ in classes]
    for index, node_class in enumerate(classes):
        for position, value in enumerate(node_class.results):
            for user, slot in (user for role in value.roles for user in role.users):
                producers[user].append((slot, (index, position)))
    return producers


def _states(
    node_class: AlikeNodes, joints: Sequence[Joint], seconds: Callable[[AlikeNodes, Joint], float]
) -> AllStates:
    cheapest: dict[tuple[tuple[Placed, ...], tuple[Placed, ...]], float] = {}
    for joint in joints:
        operands = tuple(zip(*(strategy.operands for strategy in joint), strict=True))
        results = tuple(zip(*(strategy.results for strategy in joint), strict=True))
        cost = seconds(node_class, joint)
        if cost < cheapest.get((operands, results), np.inf):
            cheapest[operands, results] = cost
    operands, needed = _numbered([operands for operands, _ in cheapest])
    results, produced = _numbered([results for _, results in cheapest])
    return AllStates(np.array(list(cheapest.values())), operands, results, needed, produced)


def _numbered(
    states: Sequence[tuple[Placed, ...]],
) -> tuple[tuple[np.ndarray, ...], tuple[tuple[Placed, ...], ...]]:
    """Return, for each operand or result, [state] the index of its placement, and the distinct placements."""
    columns = list(zip(*states, strict=True))
    placements = tuple(tuple(dict.fromkeys(column)) for column in columns)
    numbers = [{placed: index for index, placed in enumerate(distinct)} for distinct in placements]
    return tuple(np.array([n[p] for p in c]) for n, c in zip(numbers, columns, strict=True)), placements
