"""What moving each value of a program costs on one mesh axis: the edge costs that the search adds up.

Placements are indices into a catalogue here. What a user of a value requests is a placement's index plus the length of
the catalogue times the number of its sizes: another axis that divides a value for one user and not for another makes
different sizes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cache, cached_property

import attrs

from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Placement
from spmdir.core.placement.reductions import REDUCTIONS
from spmdir.core.placement.standard import Partial, R, Shard
from spmdir.reshard.axis_price import axis_price
from spmdir.reshard.collective_spec import CollectiveSpec
from spmdir.reshard.collectives import planned
from spmdir.reshard.topology import FLAT
from spmdir.search.problem import NodeStrategy
from spmdir.search.repeats import Quotient

START_BYTES = FLAT.base_latency * FLAT.intra_bandwidth
"""What starting a collective is worth in bytes on the wire, as where reshards are planned."""

_DIMS = 12
EVERYWHERE: tuple[Placement, ...] = (R, *map(Shard, range(_DIMS)), *map(Partial, REDUCTIONS))
"""The placements that every program may have."""


@attrs.define(frozen=True, slots=False, eq=False)
class Catalogue:
    """The placements that values of a program may have, by number.

    Attributes:
        placements: the standard ones first, R being 0.
    """

    placements: tuple[Placement, ...]

    @cached_property
    def index(self) -> dict[Placement, int]:
        """Placement → its number."""
        return {placement: index for index, placement in enumerate(self.placements)}

    @cached_property
    def kind(self) -> list[str | None]:
        """Per placement its kind, of those that do not commute with all."""
        return [p.kind for p in self.placements]

    @cached_property
    def gathers(self) -> list[list[int]]:
        """Per two placements, whether going from one to the other puts pieces together."""
        shard = [p.trait == "shard" for p in self.placements]
        return [[int(before and not after) for after in shard] for before in shard]

    @cache  # noqa: B019  # catalogues live as long as the process
    def prices(self, count: int, collectives: tuple[CollectiveSpec, ...]) -> list[list[float]]:
        """Per two placements, the wire bytes of going from one to the other on `count` ranks, a byte."""
        return [[axis_price(a, b, 1.0, count, collectives) for b in self.placements] for a in self.placements]


@cache
def catalogue(extras: tuple[Placement, ...]) -> Catalogue:
    """The standard placements and those of plug-ins."""
    return Catalogue((*EVERYWHERE, *extras))


class EdgeCosts:
    """The edge costs of one axis of `count` ranks, the other axes' strategies given.

    Attributes:
        offset: value → {(user, operand index): what its requests add to a placement's index}.
    """

    def __init__(self, mesh: Mesh, shared: Quotient, count: int, others: Mapping[str, Sequence[NodeStrategy]]):
        self.shared, self.mesh, self.others = shared, mesh, others
        self.catalogue = catalogue(shared.extras)
        self.width = len(self.catalogue.placements)
        self.price = self.catalogue.prices(count, planned())
        self.sizes: list[list[tuple[float, float]]] = []
        self.offset: list[dict[tuple[int, int], int]] = []
        for value in range(len(shared.values)):
            self._size(value)
        self.known: list[dict[int, list[float]]] = [{} for _ in shared.values]

    def all_reduce(self, size: float) -> float:
        """Bytes to reduce a value of `size` bytes inside an op."""
        return self.price[self.catalogue.index[Partial("sum")]][0] * size + START_BYTES

    def _size(self, value: int) -> None:
        """Find the bytes that moving a value for each of its users takes, and number the different ones.

        Sizes are of the value on a rank with this axis replicated: (to be reduced or moved, to be gathered). Another
        axis makes it smaller for a gather if it still divides it afterwards, and for a reduction if it divides it
        before or after, since reductions come first.
        """
        node, position = self.shared.producer[value]
        whole = float(self.shared.values[value].bytes * self.shared.value_weight[value])
        divides = [
            (self.mesh.sizes[a], strategies[node].results[position].dim is not None)
            for a, strategies in self.others.items()
        ]
        known: dict[tuple[float, float], int] = {}
        offsets = {}
        for user, slot in self.shared.users[value]:
            gathered = reduced = whole
            for (size, before), strategies in zip(divides, self.others.values(), strict=True):
                after = strategies[user].operands[slot].dim is not None
                gathered /= size if after else 1
                reduced /= size if after or before else 1
            offsets[user, slot] = known.setdefault((reduced, gathered), len(known)) * self.width
        self.sizes.append(list(known))
        self.offset.append(offsets)

    def of(self, value: int, made: int) -> list[float]:
        """Return, for each request, the bytes to satisfy it from placement `made`."""
        per_request = self.known[value].get(made)
        if per_request is None:
            prices, gathers = self.price[made], self.catalogue.gathers[made]
            start = START_BYTES * self.shared.value_weight[value]
            per_request = [
                p * sizes[g] + start if p else 0.0
                for sizes in self.sizes[value]
                for p, g in zip(prices, gathers, strict=True)
            ]
            self.known[value][made] = per_request
        return per_request

    def replicate_bound(self, value: int, per_request: Sequence[float], requests: Collection[int]) -> float:
        """Return the bytes to replicate a value, after which every request is free."""
        if len(self.sizes[value]) == 1:
            return per_request[0]
        return max((per_request[request - request % self.width] for request in requests), default=0.0)

    def cost_to_satisfy(self, value: int, made: int, requests: Collection[int]) -> float:
        """Return the bytes to satisfy all `requests` from placement `made`: one by one, or all from R."""
        per_request = self.of(value, made)
        direct = 0.0
        for request in requests:
            direct += per_request[request]
        return min(direct, self.replicate_bound(value, per_request, requests)) if direct else 0.0
