"""All that the nodes of a class may do on all mesh axes together, what it costs, and the placements that it needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import numpy as np

from spmdir.core.errors import UnsupportedError
from spmdir.core.placement.base import Placement
from spmdir.rules.strategies.strategy import UNSHARDED, shard_counts
from spmdir.search.certificate.alike import AlikeNodes
from spmdir.search.joint_states import Joint
from spmdir.search.problem import NodeStrategy, Problem, StrategySource

Placed = tuple[Placement, ...]
"""The placement of a value on each axis, in the order of the mesh."""

LIMIT = 4096
"""The most states of one node."""


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
    useful = _without_idle(classes, _joint_strategies(problem, classes))
    return [_states(one, joints, seconds) for one, joints in zip(classes, useful, strict=True)]


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


def _joint_strategies(problem: Problem, classes: Sequence[AlikeNodes]) -> list[list[Joint]]:
    known: dict[StrategySource, list[Joint]] = {}
    found = []
    for one in classes:
        source = one.node.source
        if source not in known:
            known[source] = _legal(problem, source)
        found.append(known[source])
    return found


def _legal(problem: Problem, source: StrategySource) -> list[Joint]:
    """Return one strategy for each axis, those that are legal together: each beside those of the axes before it."""
    mesh = problem.mesh
    found: list[Joint] = [()]
    for axis, count in mesh.axes:
        longer: list[Joint] = []
        for joint in found:
            beside = shard_counts(zip(joint, mesh.sizes.values(), strict=False))
            legal = [s for s in source.strategies(axis, count, beside) if not _mixes_kinds(joint, s)]
            longer += [(*joint, s) for s in legal or source.strategies(axis, count, UNSHARDED)]
        found = longer
        if len(found) > LIMIT:
            raise UnsupportedError(
                f"certify looks at all mesh axes together, and a node may do more than {LIMIT} things on {mesh}; "
                "use it on fewer axes, or with more user annotations"
            )
    return found


def _mixes_kinds(joint: Joint, strategy: NodeStrategy) -> bool:
    """Return whether a value would have partial values of two kinds, as sums and maxima."""
    placed = [(*s.operands, *s.results) for s in (strategy, *joint)]
    kinds = [[placement.kind for placement in found] for found in placed]
    return any(map(any, kinds)) and any(len({*value} - {None}) > 1 for value in zip(*kinds, strict=True))


def _without_idle(classes: Sequence[AlikeNodes], joints: list[list[Joint]]) -> list[list[Joint]]:
    """Return `joints` without those that on some axis only pass on partial values that no node makes."""
    sources: list[dict[int, list[tuple[int, int]]]] = [{} for _ in classes]
    for index, one in enumerate(classes):
        for position, value in enumerate(one.results):
            for user, slot in (user for role in value.roles for user in role.users):
                sources[user].setdefault(slot, []).append((index, position))
    for axis in range(max((len(found[0]) for found in joints), default=0)):
        strategies = [dict.fromkeys(joint[axis] for joint in found) for found in joints]
        made: set[tuple[int, int, Placement]] = set()
        suspects: dict[tuple[int, NodeStrategy], None] = {}
        for index, found in enumerate(strategies):
            for strategy in found:
                if not strategy.factors and any(p.kind is not None for p in strategy.operands):
                    suspects[index, strategy] = None
                else:
                    made.update(_partial(index, strategy))
        changed = True
        while changed:
            changed = False
            for index, strategy in list(suspects):
                uses = sources[index].items()
                if any((*source, strategy.operands[slot]) in made for slot, found in uses for source in found):
                    del suspects[index, strategy]
                    made.update(_partial(index, strategy))
                    changed = True
        joints = [
            [joint for joint in found if (index, joint[axis]) not in suspects] or found
            for index, found in enumerate(joints)
        ]
    return joints


def _partial(index: int, strategy: NodeStrategy) -> list[tuple[int, int, Placement]]:
    return [(index, position, p) for position, p in enumerate(strategy.results) if p.kind is not None]
