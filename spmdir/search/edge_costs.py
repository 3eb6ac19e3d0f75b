"""The cost of resharding each value of a program on one mesh axis: the edge costs that the search adds up.

Placements are indices into a catalogue here. The request of a user of a value is a placement's index plus the length of
the catalogue times the index of a size: a value has several sizes where another axis shards it for some users only.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from functools import cache, cached_property

import attrs

from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Placement
from spmdir.core.placement.reductions import REDUCTIONS
from spmdir.core.placement.standard import Partial, R, Shard
from spmdir.reshard.axis_price import axis_price, depends_on_shape
from spmdir.reshard.collective_spec import CollectiveSpec, Sizes
from spmdir.reshard.cost import NEIGHBOURS, cost, node_count
from spmdir.reshard.topology import Topology
from spmdir.search.problem import NodeStrategy
from spmdir.search.repeats import Quotient

_LARGE = 2.0**30
"""Bytes, many enough that the time to start a collective is little beside that to send them."""

_DIMS = 12
EVERYWHERE: tuple[Placement, ...] = (R, *map(Shard, range(_DIMS)), *map(Partial, REDUCTIONS))
"""The placements that the values of any program may have."""


@attrs.define(frozen=True, slots=False, eq=False)
class Catalogue:
    """The placements that values of a program may have, by number.

    Attributes:
        placements: the standard ones first, R being 0.
    """

    placements: tuple[Placement, ...]

    @cached_property
    def index(self) -> dict[Placement, int]:
        """Return placement → its number."""
        return {placement: index for index, placement in enumerate(self.placements)}

    @cached_property
    def kind(self) -> list[str | None]:
        """Return, by placement, the kind of its reduction if it does not commute with all others, else None."""
        return [p.kind for p in self.placements]

    @cached_property
    def gathers(self) -> list[list[int]]:
        """Return, by source and target placement, 1 if the reshard concatenates shards, else 0."""
        shard = [p.trait == "shard" for p in self.placements]
        return [[int(before and not after) for after in shard] for before in shard]

    @cached_property
    def shaped(self) -> list[list[int]]:
        """Return, by source placement, the targets to which the price depends on the shape."""

        def targets(source: Placement) -> list[int]:
            some = self.placements if source in plugins else plugins
            found = (target for target in some if target != source and depends_on_shape(source, target))
            return [self.index[target] for target in found]

        plugins = self.placements[len(EVERYWHERE) :]
        return [targets(source) if plugins else [] for source in self.placements]

    @cache  # noqa: B019  # catalogues live as long as the process
    def prices(
        self, count: int, nodes: int, collectives: tuple[CollectiveSpec, ...], topology: Topology
    ) -> tuple[list[list[float]], list[list[float]]]:
        """Return, by source and target placement, the seconds to start a reshard on `count` ranks, and those a byte.

        Those that depend on the shape are NaN.
        """

        def of(size: float) -> list[list[float]]:

            def price(source: Placement, target: Placement) -> float:
                return axis_price(source, target, size, count, collectives, None, topology, nodes).seconds

            return [[price(source, target) for target in self.placements] for source in self.placements]

        starts = of(0.0)
        large = [zip(*rows, strict=True) for rows in zip(of(_LARGE), starts, strict=True)]
        return starts, [[(end - start) / _LARGE if end < math.inf else 0.0 for end, start in row] for row in large]


@cache
def catalogue(plugin_placements: tuple[Placement, ...]) -> Catalogue:
    """Return the catalogue of the standard placements and of those of plug-ins."""
    return Catalogue((*EVERYWHERE, *plugin_placements))


class EdgeCosts:
    """The edge costs of one axis in seconds, the strategies of the other axes fixed.

    Attributes:
        offset: value → {(user, operand index): the difference between its requests and a placement's index}.
    """

    def __init__(self, mesh: Mesh, shared: Quotient, axis: str, others: Mapping[str, Sequence[NodeStrategy]]):
        count, nodes = mesh.sizes[axis], node_count((axis,), mesh)
        self.shared, self.mesh, self.count, self.others = shared, mesh, count, others
        self.catalogue = catalogue(shared.plugin_placements)
        self.width = len(self.catalogue.placements)
        self.nodes, self.topology = nodes, shared.topology
        self.start, self.price = self.catalogue.prices(count, nodes, shared.collectives, shared.topology)
        self.sizes: list[list[tuple[float, float]]] = []
        self.offset: list[dict[tuple[int, int], int]] = []
        for value in range(len(shared.values)):
            self._size(value)
        self.known: list[dict[int, list[float]]] = [{} for _ in shared.values]

    def all_reduce(self, size: float) -> float:
        """Return the seconds to all-reduce a value of `size` bytes inside an op."""
        source = self.catalogue.index[Partial("sum")]
        return self.price[source][0] * size + self.start[source][0]

    def send(self, size: float) -> float:
        """Return the seconds to send a neighbour `size` bytes inside an op."""
        return cost(NEIGHBOURS, Sizes(self.count, 0, 0, size), self.nodes, self.topology).seconds

    def _size(self, value: int) -> None:
        """Compute the bytes of a value that each of its users has to reshard, and number the distinct ones.

        Sizes are of the value on a rank with this axis replicated: (to be reduced or moved, to be gathered). Another
        axis makes it smaller for a gather if it still shards it afterwards, and for a reduction if it shards it
        before or after, since reductions come first.
        """
        node, position = self.shared.producer[value]
        unsharded = float(self.shared.values[value].bytes * self.shared.value_weight[value])
        shards = [
            (self.mesh.sizes[a], strategies[node].results[position].dim is not None)
            for a, strategies in self.others.items()
        ]
        known: dict[tuple[float, float], int] = {}
        offsets = {}
        for user, slot in self.shared.users[value]:
            gathered = reduced = unsharded
            for (size, before), strategies in zip(shards, self.others.values(), strict=True):
                after = strategies[user].operands[slot].dim is not None
                gathered /= size if after else 1
                reduced /= size if after or before else 1
            offsets[user, slot] = known.setdefault((reduced, gathered), len(known)) * self.width
        self.sizes.append(list(known))
        self.offset.append(offsets)

    def of(self, value: int, made: int) -> list[float]:
        """Return, for each request, the seconds to satisfy it from placement `made`."""
        per_request = self.known[value].get(made)
        if per_request is None:
            starts, prices, gathers = self.start[made], self.price[made], self.catalogue.gathers[made]
            weight = self.shared.value_weight[value]
            per_request = [
                p * sizes[g] + start * weight
                for sizes in self.sizes[value]
                for start, p, g in zip(starts, prices, gathers, strict=True)
            ]
            for target in self.catalogue.shaped[made]:
                for index, sizes in enumerate(self.sizes[value]):
                    price = self._shaped_price(value, made, target, sizes[gathers[target]])
                    per_request[index * self.width + target] = price
            if self.shared.copy_holding:
                self._add_holding(value, made, per_request)
            self.known[value][made] = per_request
        return per_request

    def _add_holding(self, value: int, made: int, per_request: list[float]) -> None:
        """Add to the cost of each request what holding the copy is worth."""
        price, placements = self.shared.copy_holding[value], self.catalogue.placements
        for index, (_, size) in enumerate(self.sizes[value]):
            for target, placement in enumerate(placements):
                if target != made:
                    shards = self.count if placement.dim is not None else 1
                    per_request[index * self.width + target] += price * size / shards

    def _shaped_price(self, value: int, made: int, target: int, size: float) -> float:
        """Return the seconds to take a value of `size` bytes to a placement where these depend on the shape."""
        node, position = self.shared.producer[value]
        weight, placements = self.shared.value_weight[value], self.catalogue.placements
        shape = list(self.shared.values[value].shape)
        for axis, strategies in self.others.items():
            dim = strategies[node].results[position].dim
            if dim is not None and dim < len(shape):
                shape[dim] = -(-shape[dim] // self.mesh.sizes[axis])
        local = attrs.evolve(self.shared.values[value], shape=tuple(shape))
        source, wanted = placements[made], placements[target]
        collectives, machine = self.shared.collectives, (self.topology, self.nodes)
        return axis_price(source, wanted, size / weight, self.count, collectives, local, *machine).seconds * weight

    def replicate_bound(self, value: int, per_request: Sequence[float], requests: Collection[int]) -> float:
        """Return the seconds to replicate a value, after which every request is free."""
        if len(self.sizes[value]) == 1:
            return per_request[0]
        return max((per_request[request - request % self.width] for request in requests), default=0.0)

    def cost_to_satisfy(self, value: int, made: int, requests: Collection[int]) -> float:
        """Return the seconds to satisfy all `requests` from placement `made`: one by one, or all from R."""
        per_request = self.of(value, made)
        direct = 0.0
        for request in requests:
            direct += per_request[request]
        return min(direct, self.replicate_bound(value, per_request, requests)) if direct else 0.0
