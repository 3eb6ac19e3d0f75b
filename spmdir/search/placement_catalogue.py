"""The placements that the values of a program may have on one axis, by number, and the price of each reshard on it.

The search computes the time of a collective as `latency + slope · bytes`, for all pairs of placements at once. For
example, on 8 ranks of the topology `flat`, S(0) → R is an all-gather of 7/8 of the value at 370 GB/s:

    latency 1e-8 s, slope 0.875 / 370e9 = 2.365e-12 s for each byte
"""

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
"""Two sizes in bytes. The line through the times of a message at both sizes approximates its times at all sizes."""

LINEAR = (0.0, LARGE)
"""The only piece, if the time is linear in the size."""

_TANGENTS = ((0.0, 2.0**10), (2.0**23, 1.01 * 2**23), (2.0**26, 1.01 * 2**26), (LARGE / 2, LARGE))
"""The pieces for estimates, if the time is concave. The least of their lines is at least the time."""

_CHORDS = tuple(itertools.pairwise((0.0, *(2.0**power for power in range(10, 31, 2)))))
"""The pieces for lower bounds, if the time is concave. The least of their lines is at most the time."""


def pieces(topology: Topology, is_bound: bool = False) -> tuple[Piece, ...]:
    """Return the pieces of the time of a message. The least of their lines approximates the time.

    The time of a message is the least over protocols, and the time of a protocol is linear in the size. So the time is
    concave. A piece between close sizes is the line of the protocol that is fastest there. Measured times count as
    linear, because `Catalogue.latency_and_slope` lowers their line below all samples.

    Args:
        is_bound: whether the result must be at most the time for all sizes up to `LARGE`.
    """
    is_linear = topology.costs is not None or not (topology.protocols or topology.tree_efficiency)
    if is_linear:
        return (LINEAR,)
    return _CHORDS if is_bound else _TANGENTS


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
        """Return for each placement the kind of its reduction; None if it commutes with all others."""
        return [p.kind for p in self.placements]

    @cached_property
    def shaped(self) -> list[list[int]]:
        """Return for each source placement the numbers of the targets for which the price depends on the shape.

        Only steps that a plug-in placement declares depend on it, so the source or the target is a plug-in's.
        """
        if not self.plugins:
            return [[] for _ in self.placements]
        shaped = []
        for source in self.placements:
            candidates = self.placements if source in self.plugins else self.plugins
            targets = [target for target in candidates if target != source and depends_on_shape(source, target)]
            shaped.append([self.index[target] for target in targets])
        return shaped

    @cached_property
    def _distinct_pairs(self) -> tuple[list[tuple[Placement, Placement]], np.ndarray]:
        """Return pairs of placements that need separate prices, and [before, after], the pair with the same price.

        For example, P(sum) → R and P(max) → R cost the same, so only one of both is in the list. Partial placements
        have equal prices if their reduction has an identity and no edge leads to or from them.
        """
        pairs_with_edge = [pair for pair in itertools.product(self.placements, repeat=2) if edge_between(*pair)]
        placements_with_edge = dict.fromkeys(itertools.chain(*pairs_with_edge))
        price_class: dict[Placement, object] = {placement: placement for placement in self.placements}
        for placement in self.placements:
            has_edge = placement in placements_with_edge
            if isinstance(placement, Partial) and placement.identity is not None and not has_edge:
                price_class[placement] = Partial
        index_of_key: dict[object, int] = {}
        representatives, index_of_pair = [], np.zeros((len(self.placements),) * 2, dtype=np.intp)
        for (row, before), (column, after) in itertools.product(enumerate(self.placements), repeat=2):
            # P(sum) → P(sum) is free, and P(sum) → P(max) is not, although the classes are the same.
            key = price_class[before], price_class[after], before == after
            if key not in index_of_key:
                index_of_key[key] = len(representatives)
                representatives.append((before, after))
            index_of_pair[row, column] = index_of_key[key]
        return representatives, index_of_pair

    @lru_cache(maxsize=1024)  # noqa: B019  # catalogues are few, and small
    def latency_and_slope(
        self,
        count: int,
        nodes: int,
        collectives: tuple[CollectiveSpec, ...],
        topology: Topology,
        piece: Piece = LINEAR,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return two arrays [before, after] for reshards on one axis: the latency in seconds, and the seconds per byte.

        A reshard takes about `latency + per_byte · bytes`, for the bytes of the local tensor as if the axis were
        replicated. The latency is infinite for impossible reshards, and for those whose price depends on the shape.

        Args:
            count: the number of ranks on the axis.
            nodes: the number of nodes that a group of the axis spans.
            piece: the two sizes in bytes at which the line equals the price. With measured costs, it must be `LINEAR`,
                and the line is at most the price at all samples.
        """

        representatives, index_of_pair = self._distinct_pairs

        def prices_at(size: float) -> np.ndarray:
            """Return an array [before, after]: the seconds of reshards of a local tensor of `size` bytes."""
            costs = [
                axis_price(before, after, size, count, collectives, None, topology, nodes)
                for before, after in representatives
            ]
            return np.array([cost.seconds for cost in costs])[index_of_pair]

        small, large = piece
        price_at_small, price_at_large = prices_at(small), prices_at(large)
        is_impossible = np.isnan(price_at_small) | np.isinf(price_at_small)
        price_at_small = np.where(is_impossible, 0.0, price_at_small)
        price_at_large = np.where(is_impossible, 0.0, price_at_large)
        per_byte = (price_at_large - price_at_small) / (large - small)
        latency = price_at_small - per_byte * small
        if topology.costs is not None:
            # Measured times are not linear in the size. The line stays below them, and exact prices of plans correct it
            # later. First lower the latency: the line from (0, latency) to (LARGE, price_at_large) must not exceed a
            # sample. A latency may not be negative, so then lower the slope.
            samples = {size: np.where(is_impossible, 0.0, prices_at(size)) for size in MEASURED}
            for size, price in samples.items():
                latency = np.minimum(latency, (price - price_at_large * size / LARGE) / (1 - size / LARGE))
            latency = np.maximum(latency, 0.0)
            per_byte = np.minimum.reduce(
                [(price - latency) / size for size, price in (*samples.items(), (LARGE, price_at_large))]
            )
        return np.where(is_impossible, np.inf, latency), per_byte


@lru_cache(maxsize=64)
def catalogue(rank: int, plugin_placements: tuple[Placement, ...]) -> Catalogue:
    """Return the catalogue of the standard placements of tensors of up to `rank` dimensions, and of plug-in ones.

    The numbers are 0 for R, then S(0) to S(rank − 1), then one partial placement for each reduction, then plug-ins.
    """
    standard = (R, *map(Shard, range(rank)), *map(Partial, REDUCTIONS))
    return Catalogue((*standard, *plugin_placements), plugin_placements)
