"""The strategies of a node that are legal together, one for each mesh axis.

The search and its certificate choose among the same ones, so that what the certificate bounds is all that the search
may decide.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

import attrs

from spmdir.core.placement.base import Placement
from spmdir.rules.strategies.strategy import Strategy, shard_counts
from spmdir.search.problem import StrategySource

Joint = tuple[Strategy, ...]
"""The strategy of a node on each axis."""

Axes = Sequence[tuple[str, int]]
"""Mesh axes, with the number of ranks on each."""

LIMIT = 8192
"""The most joint strategies of a node, legal or not, of which all are looked at."""


@attrs.frozen(eq=False)
class JointStrategies:
    """Joint strategies of a node.

    Attributes:
        by_axis: for each axis, the strategies that are looked at.
        chosen: which of these each joint strategy takes.
    """

    by_axis: tuple[Sequence[Strategy], ...]
    chosen: Sequence[tuple[int, ...]]

    def joints(self) -> list[Joint]:
        """Return the joint strategies one by one."""
        return [tuple([found[at] for found, at in zip(self.by_axis, row, strict=True)]) for row in self.chosen]


def joint_strategies(
    source: StrategySource,
    axes: Axes,
    idle: Sequence[frozenset[Strategy]],
    fixed: Sequence[Strategy | None] | None = None,
) -> JointStrategies:
    """Return the legal joint strategies of a node that has the fixed ones, without idle ones.

    A node to which `fixed` leaves none gives it up, and one that has no legal joint strategy at all, as where user
    annotations contradict each other, may do anything; there is none only if it has no strategy on some axis. So what
    is returned for some `fixed` is among what is returned for none, if that is at most `LIMIT`.

    Args:
        idle: by axis, see `idle_strategies`.
        fixed: by axis, the strategy that the node has, or None.
    """
    by_axis = free = tuple(source.candidates(axis, count) for axis, count in axes)
    if fixed is not None:
        by_axis = tuple(found if s is None else (s,) for s, found in zip(fixed, free, strict=True))
    legal = _legal(source, axes, by_axis, idle)
    if not legal and math.prod(map(len, free)) <= LIMIT:
        by_axis = free
        legal = _legal(source, axes, by_axis, idle)
    return JointStrategies(by_axis, legal or list(itertools.product(*[range(len(found)) for found in by_axis])))


def idle_strategies(
    by_node: Sequence[Sequence[Strategy]], makers: Sequence[Iterable[tuple[int, tuple[int, int]]]]
) -> list[frozenset[Strategy]]:
    """Return, by node, the strategies on one axis that only pass on partial values that no node makes.

    A node that has no replicated strategy, by which it could do the same, has no idle ones. Replicated and idle
    strategies shard no factor, so that others are legal beside the one where they are beside the other.

    Args:
        by_node: the strategies of each node.
        makers: for each node, (operand index, (node, result index) that makes it).
    """
    made: set[tuple[int, int, Placement]] = set()
    suspects: dict[int, list[Strategy]] = {}
    known: dict[int, tuple[list[Strategy], list[tuple[int, Placement]]]] = {}
    for node, strategies in enumerate(by_node):
        if id(strategies) not in known:
            known[id(strategies)] = _passing(strategies)
        passing, partial = known[id(strategies)]
        made.update([(node, position, placement) for position, placement in partial])
        if passing:
            suspects[node] = passing
    changed = True
    while changed:
        changed = False
        for node, strategies in list(suspects.items()):
            sources = list(makers[node])
            idle = [s for s in strategies if not any((*made_by, s.operands[at]) in made for at, made_by in sources)]
            if len(idle) < len(strategies):
                changed, suspects[node] = True, idle
                for strategy in strategies:
                    if strategy not in idle:
                        made.update([(node, position, placement) for position, placement in _partial(strategy)])
    return [frozenset(suspects.get(node, ())) for node in range(len(by_node))]


def _passing(strategies: Sequence[Strategy]) -> tuple[list[Strategy], list[tuple[int, Placement]]]:
    """Return the strategies that may be idle, and (result index, partial value) of what the others make."""
    whole = [s for s in strategies if not s.factors]
    passing = [s for s in whole if any(s.kinds[: len(s.operands)])] if any(not s.kinds for s in whole) else []
    others = [s for s in strategies if s.kinds and (s.factors or s not in passing)]
    return passing, list(dict.fromkeys(made for strategy in others for made in _partial(strategy)))


def _partial(strategy: Strategy) -> list[tuple[int, Placement]]:
    return [(position, p) for position, p in enumerate(strategy.results) if p.kind is not None]


def _legal(
    source: StrategySource,
    axes: Axes,
    by_axis: Sequence[Sequence[Strategy]],
    idle: Sequence[frozenset[Strategy]],
) -> list[tuple[int, ...]]:
    """Return which strategies of each axis are legal together and not idle.

    Each strategy is one that its source lists beside those of the axes before it. Where it matters which of two comes
    first, as a minor factor may be sharded once its major ones are, it is one that is listed beside all others.
    """
    is_ordered = bool(source.majors) or any(s.factor_placements or s.text for found in by_axis for s in found)
    counts = [count for _, count in axes]
    found: list[tuple[int, ...]] = [()]
    for (axis, count), strategies, left_out in zip(axes, by_axis, idle, strict=True):
        number = {s: index for index, s in enumerate(strategies) if s not in left_out}
        beside: dict[object, list[tuple[int, Strategy]]] = {}
        longer: list[tuple[int, ...]] = []
        for before in found:
            joint = [of[index] for of, index in zip(by_axis, before, strict=False)]
            key = None if is_ordered else tuple([strategy.factors for strategy in joint])
            if key not in beside:
                listed = number
                if not is_ordered:
                    listed = source.strategies(axis, count, shard_counts(zip(joint, counts, strict=False)))
                beside[key] = [(number[strategy], strategy) for strategy in listed if strategy in number]
            partial = [strategy.kinds for strategy in joint if strategy.kinds]
            longer += [
                (*before, index)
                for index, strategy in beside[key]
                if not partial or not strategy.kinds or not _mixes([strategy.kinds, *partial])
            ]
        found = longer
    if not is_ordered:
        return found
    return [
        row for row in found if is_listed(source, axes, [of[index] for of, index in zip(by_axis, row, strict=True)])
    ]


def _mixes(kinds: Sequence[tuple[str | None, ...]]) -> bool:
    """Return whether partial values of several kinds would be made of one value."""
    return any(len({*value} - {None}) > 1 for value in zip(*kinds, strict=True))


def is_listed(source: StrategySource, axes: Axes, joint: Sequence[Strategy]) -> bool:
    """Return whether each strategy of a node, one an axis, is listed beside all others."""
    for at, (axis, count) in enumerate(axes):
        others = [(joint[other], ranks) for other, (_, ranks) in enumerate(axes) if other != at]
        if joint[at] not in source.strategies(axis, count, shard_counts(others)):
            return False
    return True
