"""A node without some of its strategies, to find the decision of the search without them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import attrs

from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Placement
from spmdir.core.placement.sharding import Sharding
from spmdir.rules.strategies.strategy import ShardCounts, Strategy
from spmdir.search.problem import StrategySource
from spmdir.search.roofline import Work

Ends = tuple[tuple[Placement, ...], tuple[Placement, ...]]
"""The placements of a node's operands and results on one axis, which identify a strategy."""


def ends_of(strategy: Strategy) -> Ends:
    """Return the placements of the operands and of the results of a strategy."""
    return strategy.operands, strategy.results


@attrs.frozen(cache_hash=True)
class Restricted:
    """A source without some of its strategies on one axis. Nodes of equal sources remain interchangeable.

    Attributes:
        source: all strategies.
        axis: the mesh axis of the excluded strategies.
        excluded: the placements of the excluded strategies.
    """

    source: StrategySource
    axis: str
    excluded: frozenset[Ends]

    @property
    def work(self) -> Work:
        """Return the work of the unsharded op."""
        return self.source.work

    @property
    def annotations(self) -> Collection[Sharding]:
        """Return the user annotations of the source."""
        return self.source.annotations

    @property
    def majors(self) -> Mapping[int, Collection[int]]:
        """Return the majors of the source."""
        return self.source.majors

    def strategies(self, axis: str, count: int, sharded: ShardCounts) -> tuple[Strategy, ...]:
        """Return the strategies of the source that are not excluded; arguments as of `StrategySource`."""
        return self._allowed(axis, self.source.strategies(axis, count, sharded))

    def candidates(self, axis: str, count: int) -> tuple[Strategy, ...]:
        """Return the candidates of the source that are not excluded."""
        return self._allowed(axis, self.source.candidates(axis, count))

    def on(self, mesh: Mesh) -> Restricted:
        """Return this source on a mesh that splits axes.

        If the mesh splits `axis`, no strategy is excluded any more, because no axis of the mesh has this name.
        """
        return attrs.evolve(self, source=self.source.on(mesh))

    def _allowed(self, axis: str, strategies: Iterable[Strategy]) -> tuple[Strategy, ...]:
        """Return the strategies on an axis without the excluded ones."""
        if axis != self.axis:
            return tuple(strategies)
        return tuple([strategy for strategy in strategies if ends_of(strategy) not in self.excluded])
