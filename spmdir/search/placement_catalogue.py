"""The placements that the values of a program may have on one axis, by number."""

from __future__ import annotations

import itertools
from functools import cached_property, lru_cache

import attrs
import numpy as np

from spmdir.core.placement.base import Placement, edge_between
from spmdir.core.placement.reductions import REDUCTIONS
from spmdir.core.placement.standard import Partial, R, Shard
from spmdir.reshard.axis_price import axis_price, depends_on_shape
from spmdir.reshard.collective_spec import CollectiveSpec
from spmdir.reshard.topology import Topology

LARGE = 2.0**30
"""Bytes of a message whose latency is negligible."""

Piece = tuple[float, float]
"""Two sizes in bytes. The time of a message is approximated by the line through its times at both sizes."""

LINEAR = (0.0, LARGE)
_CONCAVE = ((0.0, 2.0**10), (2.0**23, 1.01 * 2**23), (2.0**26, 1.01 * 2**26), (LARGE / 2, LARGE))


_CHORDS = tuple(itertools.pairwise((0.0, *(2.0**power for power in range(10, 31, 2)))))


def pieces(topology: Topology, is_bound: bool = False) -> tuple[Piece, ...]:
    """Return the pieces of the time of a message: the least of their lines is the time, or a lower bound.

    The time is the least over protocols, each of which is a line. So a piece between close sizes is the line of the
    protocol that is fastest there.
    """
    is_linear = topology.costs is not None or not (topology.protocols or topology.tree_efficiency)
    if is_linear:
        return (LINEAR,)
    # As the time is concave in the size, chords are below it.
    return _CHORDS if is_bound else _CONCAVE


MEASURED = tuple(4.0**power for power in range(3, 15))
"""Sizes in bytes at which measured times are sampled."""


@attrs.define(frozen=True, slots=False, eq=False)
class Catalogue:
    """The placements that values of a program may have, by number.

    Attributes:
        placements: the standard ones first, R being 0.
        plugins: those of plug-ins, which come last.
    """

    placements: tuple[Placement, ...]
    plugins: tuple[Placement, ...] = ()

    @cached_property
    def index(self) -> dict[Placement, int]:
        """Return placement → its number."""
        return {placement: index for index, placement in enumerate(self.placements)}

    @cached_property
    def kind(self) -> list[str | None]:
        """Return [placement], the kind of its reduction; None if it commutes with all others."""
        return [p.kind for p in self.placements]

    @cached_property
    def shaped(self) -> list[list[int]]:
        """Return [source placement], the targets for which the price depends on the shape."""

        def targets(source: Placement) -> list[int]:
            candidates = self.placements if source in self.plugins else self.plugins
            shaped_targets = (target for target in candidates if target != source and depends_on_shape(source, target))
            return [self.index[target] for target in shaped_targets]

        return [targets(source) if self.plugins else [] for source in self.placements]

    @cached_property
    def _distinct_pairs(self) -> tuple[list[tuple[Placement, Placement]], np.ndarray]:
        """Return pairs of placements with distinct prices, and [before, after], the index of a pair of equal price.

        Reductions that have an identity, and no edge to or from another placement, have equal prices.
        """
        pairs_with_edge = [pair for pair in itertools.product(self.placements, repeat=2) if edge_between(*pair)]
        with_edge = dict.fromkeys(itertools.chain(*pairs_with_edge))
        alike: dict[Placement, object] = {placement: placement for placement in self.placements}
        for placement in self.placements:
            if isinstance(placement, Partial) and placement.identity is not None and placement not in with_edge:
                alike[placement] = Partial
        rows: dict[object, int] = {}
        representatives, row_of_pair = [], np.zeros((len(self.placements),) * 2, dtype=np.intp)
        for (row, before), (column, after) in itertools.product(enumerate(self.placements), repeat=2):
            key = alike[before], alike[after], before == after
            if key not in rows:
                rows[key] = len(representatives)
                representatives.append((before, after))
            row_of_pair[row, column] = rows[key]
        return representatives, row_of_pair

    @lru_cache(maxsize=1024)  # noqa: B019  # catalogues are few, and small
    def latency_and_slope(
        self,
        count: int,
        nodes: int,
        collectives: tuple[CollectiveSpec, ...],
        topology: Topology,
        piece: Piece = LINEAR,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return [before, after], the latency in seconds and the seconds a byte of reshards on `count` ranks.

        They describe the line of `piece`. The latency is infinite for impossible reshards, and for those whose price
        depends on the shape. With measured costs, the line is a lower bound of all samples.
        """

        representatives, row_of_pair = self._distinct_pairs

        def seconds_of(size: float) -> np.ndarray:
            prices = [axis_price(a, b, size, count, collectives, None, topology, nodes) for a, b in representatives]
            return np.array([price.seconds for price in prices])[row_of_pair]

        small, large = piece
        latency, seconds_at_large = seconds_of(small), seconds_of(large)
        latency[np.isnan(latency)] = np.inf
        is_impossible = np.isinf(latency)
        latency, seconds_at_large = (
            np.where(is_impossible, 0.0, latency),
            np.where(is_impossible, 0.0, seconds_at_large),
        )
        per_byte = (seconds_at_large - latency) / (large - small)
        latency -= per_byte * small
        if topology.costs is not None:
            # Measured times are not linear in the size. The line is below them; exact prices of plans correct it.
            # The line from (0, latency) to (LARGE, seconds_at_large) must not exceed a sample.
            times = {size: np.where(is_impossible, 0.0, seconds_of(size)) for size in MEASURED}
            for size, sampled in times.items():
                latency = np.minimum(latency, (sampled - seconds_at_large * size / LARGE) / (1 - size / LARGE))
            latency = np.maximum(latency, 0.0)
            per_byte = np.minimum.reduce(
                [(sampled - latency) / size for size, sampled in (*times.items(), (LARGE, seconds_at_large))]
            )
        return np.where(is_impossible, np.inf, latency), per_byte


@lru_cache(maxsize=64)
def catalogue(rank: int, plugin_placements: tuple[Placement, ...]) -> Catalogue:
    """Return the catalogue of the standard placements of tensors of up to `rank` dimensions, and of plug-in ones."""
    standard = (R, *map(Shard, range(rank)), *map(Partial, REDUCTIONS))
    return Catalogue((*standard, *plugin_placements), plugin_placements)
