"""The placements that the values of a program may have on one axis, by number."""

from __future__ import annotations

from functools import cached_property, lru_cache

import attrs
import numpy as np

from spmdir.core.placement.base import Placement
from spmdir.core.placement.reductions import REDUCTIONS
from spmdir.core.placement.standard import Partial, R, Shard
from spmdir.reshard.axis_price import axis_price, depends_on_shape
from spmdir.reshard.collective_spec import CollectiveSpec
from spmdir.reshard.topology import Topology

LARGE = 2.0**30
"""Bytes, many enough that the time to start a collective is little beside that to send them."""


MEASURED = tuple(4.0**power for power in range(3, 15))
"""Sizes in bytes at which measured times are looked at."""


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
        """Return, by placement, the kind of its reduction if it does not commute with all others, else None."""
        return [p.kind for p in self.placements]

    @cached_property
    def shaped(self) -> list[list[int]]:
        """Return, by source placement, the targets to which the price depends on the shape."""

        def targets(source: Placement) -> list[int]:
            some = self.placements if source in self.plugins else self.plugins
            found = (target for target in some if target != source and depends_on_shape(source, target))
            return [self.index[target] for target in found]

        return [targets(source) if self.plugins else [] for source in self.placements]

    @lru_cache(maxsize=256)  # noqa: B019  # catalogues are few, and small
    def prices(
        self, count: int, nodes: int, collectives: tuple[CollectiveSpec, ...], topology: Topology
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return, [before, after], the seconds to start a reshard on `count` ranks, and those a byte.

        Reshards that there are not take infinitely long to start; those whose cost depends on the shape count as such.
        Where times are measured, no sampled one is less.
        """

        def of(size: float) -> np.ndarray:
            return np.array(
                [
                    [axis_price(a, b, size, count, collectives, None, topology, nodes).seconds for b in self.placements]
                    for a in self.placements
                ]
            )

        start, large = of(0.0), of(LARGE)
        start[np.isnan(start)] = np.inf
        never = np.isinf(start)
        start, large = np.where(never, 0.0, start), np.where(never, 0.0, large)
        each = (large - start) / LARGE
        if topology.costs is not None:
            # Measured times lie on no line: one below them leaves it to plans to say which reshard takes longer.
            times = {size: np.where(never, 0.0, of(size)) for size in MEASURED}
            for size, found in times.items():
                start = np.minimum(start, (found - large * size / LARGE) / (1 - size / LARGE))
            start = np.maximum(start, 0.0)
            each = np.minimum.reduce([(found - start) / size for size, found in (*times.items(), (LARGE, large))])
        return np.where(never, np.inf, start), each


@lru_cache(maxsize=64)
def catalogue(rank: int, plugin_placements: tuple[Placement, ...]) -> Catalogue:
    """Return the catalogue of the standard placements of tensors of up to `rank` dimensions, and of plug-in ones."""
    standard = (R, *map(Shard, range(rank)), *map(Partial, REDUCTIONS))
    return Catalogue((*standard, *plugin_placements), plugin_placements)
