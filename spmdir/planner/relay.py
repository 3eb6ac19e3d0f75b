"""The relay: an exchange in two rounds, in the first of which pieces go to ranks that reduce them and send them on.

In one round a rank that needs a sum is sent every addend, and a rank that alone holds a piece sends it to everyone.
Here each piece that is to move has a *relay*: it is sent the addends in the first round, reduces them, and in the
second sends their sum to all that hold it in the end. Addends that can stay where they are stay, pending on the axes
that the target leaves pending; those that move may be put together with any others.

Which ranks are relays is one of POOLS, whichever moves fewest elements; they share the pieces evenly.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence

import attrs

from spmdir.mesh import Mesh
from spmdir.planner.exchange import Cell, Loads, Part, cells_of, in_order, loads_of, moved, shared, split
from spmdir.planner.steps import refinement, relayed_axes
from spmdir.sharding import Sharding


@attrs.frozen
class Relayed:
    """What the ranks of one group keep and send.

    Attributes:
        gathered: by addend, what relays are sent and what they have of it themselves, in the first round.
        spread: what relays send of the sums, and keep, in the second round.
        kept: what stays with its rank. Parts that a rank ends up with, kept and spread, are addends of a sum if they
            have different numbers.
    """

    gathered: tuple[Part, ...]
    spread: tuple[Part, ...]
    kept: tuple[Part, ...]

    def busiest(self, group: Sequence[int]) -> int:
        """Elements that the busiest rank sends or receives in one round and in the other."""
        rounds = (self.gathered, self.spread)
        return sum(max(max(moved(parts, group, side)) for side in ("sender", "receiver")) for parts in rounds)


@functools.lru_cache(maxsize=4096)
def relay(source: Sharding, target: Sharding, mesh: Mesh, shape: tuple[int, ...], rank: int) -> Relayed:
    """What the ranks of the group of `rank` give each other and keep."""
    fine = refinement(mesh, source, target)
    if fine is not mesh:
        return relay(source.refined(fine), target.refined(fine), fine, shape, rank)
    group = mesh.group(rank, relayed_axes(source, target, mesh))
    addends, places = ([axis for axis, _ in side.partial] for side in (source, target))
    cells = cells_of(source, target, mesh, shape, group, addends, places)
    return min((_relayed(cells, pool) for pool in POOLS), key=lambda relayed: relayed.busiest(group))


def relay_loads(source: Sharding, target: Sharding, mesh: Mesh, shape: tuple[int, ...]) -> list[Loads]:
    """(sender, receiver) → elements, in each of the two rounds of a relay."""
    axes = relayed_axes(source, target, mesh)
    rounds = (lambda *given: relay(*given).gathered, lambda *given: relay(*given).spread)
    return [loads_of(parts_of, axes, source, target, mesh, shape) for parts_of in rounds]


Pool = Callable[[set[int], set[int], set[int]], set[int]]

POOLS: tuple[Pool, ...] = (
    lambda holders, needers, near: holders & needers or holders,
    lambda holders, needers, near: near or holders & needers or holders,
    lambda holders, needers, near: holders,
)
"""(ranks that hold an addend, ranks that may hold the sum, those of them that alone lack the one addend) → relays."""


def _relayed(cells: Iterable[Cell], pool: Pool) -> Relayed:
    gathered: list[Part] = []
    spread: list[Part] = []
    kept: list[Part] = []
    for cell in cells:
        homes = _homes(cell)
        kept += [Part(rank, rank, 0, cell.grid) for place in homes.values() for rank in cell.places[place]]
        left = [addend for addend in range(len(cell.holders)) if addend not in homes]
        if not left:
            continue
        # Who holds the one addend that moves needs no sum.
        served = set(cell.holders[left[0]]) if len(left) == 1 else set()
        lacking = [set(place) - served for place in cell.places]
        fewest = min(map(len, lacking))
        near = {rank for ranks in lacking if served and len(ranks) == fewest for rank in ranks}
        holders = {rank for addend in left for rank in cell.holders[addend]}
        relays = sorted(pool(holders, {rank for place in cell.places for rank in place}, near))
        pieces = list(split(cell.grid, [(rank, 1) for rank in relays]))
        for addend in left:
            own = cell.holders[addend]
            gathered += [Part(rank, rank, addend, piece) for piece, rank in pieces if rank in own]
            gathered += shared(addend, [(rank, piece) for piece, rank in pieces if rank not in own], own)
        for piece, by in pieces:
            sent = [ranks - {by} for ranks in lacking]
            best = [place for place, ranks in enumerate(sent) if len(ranks) == min(map(len, sent))]
            for stretch, place in split(piece, [(place, 1) for place in best]):
                addend = int(place in homes.values())
                kept += [Part(rank, rank, addend, stretch) for rank in served.intersection(cell.places[place])]
                spread += [Part(by, rank, addend, stretch) for rank in lacking[place]]
    return Relayed(in_order(gathered), in_order(spread), in_order(kept))


def _homes(cell: Cell) -> dict[int, int]:
    """The addends that can stay, and the place of each: all ranks there hold it."""
    homes: dict[int, int] = {}
    for place, ranks in enumerate(cell.places):
        for addend, own in enumerate(cell.holders):
            if set(ranks) <= set(own):
                homes.setdefault(addend, place)
    return homes
