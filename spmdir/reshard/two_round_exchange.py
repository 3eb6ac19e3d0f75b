"""The two-round exchange: chunks go to ranks that reduce them, in the first round, and send them on in the second.

In one round a rank that needs a sum is sent every partial value, and a rank that alone has a chunk sends it to all.
Here each chunk that is to move has a *reducer*: it is sent the partials in the first round, reduces them, and in the
second sends their sum to all that hold it in the end. Partials that can stay where they are stay, on the axes along
which the target is partial; those that move may be put together with any others.

Which ranks are reducers is one of POOLS, whichever moves fewest elements; they share the chunks evenly.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import attrs

from spmdir.core.mesh import Mesh
from spmdir.core.sharding import Sharding
from spmdir.reshard.conditions import refinement
from spmdir.reshard.exchange import Cell, cells_of, loads_of
from spmdir.reshard.moved_axes import two_round_axes
from spmdir.reshard.parts import Chunk, Loads, Part, Share, in_order, moved, shared, split


@attrs.frozen
class TwoRounds:
    """What the ranks of one group keep and send.

    Attributes:
        gathered: by partial, what reducers are sent and what they have of it themselves, in the first round.
        spread: what reducers send of the sums, and keep, in the second round.
        kept: what stays with its rank. Parts that a rank ends up with, kept and spread, are partials of a sum if they
            have different numbers.
    """

    gathered: tuple[Part, ...]
    spread: tuple[Part, ...]
    kept: tuple[Part, ...]


@functools.lru_cache(maxsize=4096)
def two_round_exchange(source: Sharding, target: Sharding, mesh: Mesh, shape: tuple[int, ...], rank: int) -> TwoRounds:
    """What the ranks of the group of `rank` give each other and keep."""
    fine = refinement(mesh, source, target)
    shares = _shares(source.refined(fine), target.refined(fine), fine, shape, rank)
    return TwoRounds(in_order(shares.gathered), in_order(shares.spread), in_order(shares.kept))


@attrs.frozen(eq=False)
class _Shares:
    """What will be the parts of a TwoRounds."""

    gathered: list[Share] = attrs.field(factory=list)
    spread: list[Share] = attrs.field(factory=list)
    kept: list[Share] = attrs.field(factory=list)

    def busiest(self, group: Sequence[int]) -> int:
        """Elements that the busiest rank sends or receives in one round and in the other."""
        return sum(max(map(max, moved(shares, group))) for shares in (self.gathered, self.spread))


@functools.lru_cache(maxsize=256)
def _shares(source: Sharding, target: Sharding, mesh: Mesh, shape: tuple[int, ...], rank: int) -> _Shares:
    group = mesh.group(rank, two_round_axes(source, target, mesh))
    partials, places = ([axis for axis, _ in side.partial] for side in (source, target))
    moves = [_Move.of(cell) for cell in cells_of(source, target, mesh, shape, group, partials, places)]
    choices = dict.fromkeys(tuple(move.reducers(pool) for move in moves) for pool in POOLS)
    return min((_in_two_rounds(moves, reducers) for reducers in choices), key=lambda shares: shares.busiest(group))


@functools.lru_cache(maxsize=4096)
def two_round_loads(source: Sharding, target: Sharding, mesh: Mesh, shape: tuple[int, ...]) -> list[Loads]:
    """(sender, receiver) → elements, in each of the two rounds of a two-round exchange."""
    axes = two_round_axes(source, target, mesh)
    rounds = (lambda *given: _shares(*given).gathered, lambda *given: _shares(*given).spread)
    return [loads_of(shares_of, axes, source, target, mesh, shape) for shares_of in rounds]


Pool = Callable[[set[int], set[int], set[int]], set[int]]

POOLS: tuple[Pool, ...] = (
    lambda holders, needers, near: holders & needers or holders,
    lambda holders, needers, near: near or holders & needers or holders,
    lambda holders, needers, near: holders,
)
"""(ranks that have a partial value, ranks that may have the sum, those of them that alone lack it) → reducers."""


@attrs.frozen(eq=False)
class _Move:
    """What there is to do with one cell.

    Attributes:
        homes: the partials that can stay, and the place of each.
        left: the partials that cannot.
        served: who holds the one partial value that moves, and needs no sum.
        lacking: for each place, the ranks that need the sum.
    """

    cell: Cell
    homes: dict[int, int]
    left: list[int]
    served: set[int]
    lacking: list[set[int]]

    @staticmethod
    def of(cell: Cell) -> _Move:
        homes = _homes(cell)
        left = [partial for partial in range(len(cell.holders)) if partial not in homes]
        served = set(cell.holders[left[0]]) if len(left) == 1 else set()
        return _Move(cell, homes, left, served, [set(place) - served for place in cell.places])

    def reducers(self, pool: Pool) -> tuple[int, ...]:
        """The ranks to which the partials go, none if all stay."""
        if not self.left:
            return ()
        fewest = min(map(len, self.lacking))
        near = {rank for ranks in self.lacking if self.served and len(ranks) == fewest for rank in ranks}
        holders = {rank for partial in self.left for rank in self.cell.holders[partial]}
        return tuple(sorted(pool(holders, {rank for place in self.cell.places for rank in place}, near)))


def _in_two_rounds(moves: Sequence[_Move], reducers: Sequence[tuple[int, ...]]) -> _Shares:
    shares = _Shares()
    for move, by in zip(moves, reducers, strict=True):
        cell, staying = move.cell, set(move.homes.values())
        shares.kept.extend(Share(rank, rank, 0, cell.chunk) for place in staying for rank in cell.places[place])
        chunks = list(split(cell.chunk, [(rank, 1) for rank in by]))
        for partial in move.left:
            own = cell.holders[partial]
            shares.gathered.extend(Share(rank, rank, partial, chunk) for chunk, rank in chunks if rank in own)
            shares.gathered.extend(shared(partial, [(rank, chunk) for chunk, rank in chunks if rank not in own], own))
        for chunk, rank in chunks:
            _spread(move, chunk, rank, staying, shares)
    return shares


def _spread(move: _Move, chunk: Chunk, by: int, staying: set[int], shares: _Shares) -> None:
    """Add what the reducer `by` sends on of `chunk`, and what stays instead: to the places that lack it least."""
    sent = [len(ranks) - (by in ranks) for ranks in move.lacking]
    best = [place for place, lack in enumerate(sent) if lack == min(sent)]
    for stretch, place in split(chunk, [(place, 1) for place in best]):
        partial = int(place in staying)
        kept = move.served.intersection(move.cell.places[place])
        shares.kept.extend(Share(rank, rank, partial, stretch) for rank in kept)
        shares.spread.extend(Share(by, rank, partial, stretch) for rank in move.lacking[place])


def _homes(cell: Cell) -> dict[int, int]:
    """The partials that can stay, and the place of each: all ranks there hold it."""
    homes: dict[int, int] = {}
    for place, ranks in enumerate(cell.places):
        for partial, own in enumerate(cell.holders):
            if set(ranks) <= set(own):
                homes.setdefault(partial, place)
    return homes
