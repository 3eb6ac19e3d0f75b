"""A node with fewer strategies, for the question what the search would decide without one of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import attrs

from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Placement
from spmdir.core.placement.sharding import Sharding
from spmdir.rules.strategies.strategy import ShardCounts, Strategy
from spmdir.search.problem import StrategySource
from spmdir.search.work import Work

Ends = tuple[tuple[Placement, ...], tuple[Placement, ...]]
"""The placements of a node's operands and results on one axis, which identify a strategy."""


def ends_of(strategy: Strategy) -> Ends:
    """Return the placements of the operands and of the results of a strategy."""
    return strategy.operands, strategy.results


@attrs.frozen(cache_hash=True)
class Restricted:
    """The strategies of a source but for some on one axis; nodes of equal sources stay interchangeable.

    Attributes:
        source: all strategies.
        axis: of which some are left out.
        without: the placements of those that are left out.
    """

    source: StrategySource
    axis: str
    without: frozenset[Ends]

    @property
    def work(self) -> Work:
        return self.source.work

    @property
    def annotations(self) -> Collection[Sharding]:
        return self.source.annotations

    @property
    def majors(self) -> Mapping[int, Collection[int]]:
        return self.source.majors

    def strategies(self, axis: str, count: int, sharded: ShardCounts) -> tuple[Strategy, ...]:
        return self._left(axis, self.source.strategies(axis, count, sharded))

    def candidates(self, axis: str, count: int) -> tuple[Strategy, ...]:
        return self._left(axis, self.source.candidates(axis, count))

    def on(self, mesh: Mesh) -> Restricted:
        return attrs.evolve(self, source=self.source.on(mesh))

    def _left(self, axis: str, strategies: Iterable[Strategy]) -> tuple[Strategy, ...]:
        if axis != self.axis:
            return tuple(strategies)
        return tuple([one for one in strategies if ends_of(one) not in self.without])
