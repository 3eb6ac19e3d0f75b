"""The relay: an exchange in two rounds, in the first of which pieces go to ranks that reduce them and send them on.

In one round a rank that needs a sum is sent every addend, and a rank that alone holds a piece sends it to everyone.
Here each piece that is to move has a *relay*: it is sent the addends in the first round, reduces them, and in the
second sends their sum to all that hold it in the end. Addends that can stay where they are stay, pending on the axes
that the target leaves pending; those that move may be put together with any others.

Which ranks are relays is one of POOLS, whichever moves fewest elements; they share the pieces evenly.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import attrs

from spmdir.core.mesh import Mesh
from spmdir.core.sharding import Sharding
from spmdir.reshard.conditions import refinement
from spmdir.reshard.exchange import Cell, cells_of, loads_of
from spmdir.reshard.moved_axes import relayed_axes
from spmdir.reshard.parts import Loads, Part, Piece, Share, in_order, moved, shared, split


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


@functools.lru_cache(maxsize=4096)
def relay(source: Sharding, target: Sharding, mesh: Mesh, shape: tuple[int, ...], rank: int) -> Relayed:
    """What the ranks of the group of `rank` give each other and keep."""
    fine = refinement(mesh, source, target)
    shares = _shares(source.refined(fine), target.refined(fine), fine, shape, rank)
    return Relayed(in_order(shares.gathered), in_order(shares.spread), in_order(shares.kept))


@attrs.frozen(eq=False)
class _Shares:
    """What will be the parts of a Relayed."""

    gathered: list[Share] = attrs.field(factory=list)
    spread: list[Share] = attrs.field(factory=list)
    kept: list[Share] = attrs.field(factory=list)

    def busiest(self, group: Sequence[int]) -> int:
        """Elements that the busiest rank sends or receives in one round and in the other."""
        return sum(max(map(max, moved(shares, group))) for shares in (self.gathered, self.spread))


@functools.lru_cache(maxsize=256)
def _shares(source: Sharding, target: Sharding, mesh: Mesh, shape: tuple[int, ...], rank: int) -> _Shares:
    group = mesh.group(rank, relayed_axes(source, target, mesh))
    addends, places = ([axis for axis, _ in side.partial] for side in (source, target))
    moves = [_Move.of(cell) for cell in cells_of(source, target, mesh, shape, group, addends, places)]
    choices = dict.fromkeys(tuple(move.relays(pool) for move in moves) for pool in POOLS)
    return min((_relayed(moves, relays) for relays in choices), key=lambda shares: shares.busiest(group))


@functools.lru_cache(maxsize=4096)
def relay_loads(source: Sharding, target: Sharding, mesh: Mesh, shape: tuple[int, ...]) -> list[Loads]:
    """(sender, receiver) → elements, in each of the two rounds of a relay."""
    axes = relayed_axes(source, target, mesh)
    rounds = (lambda *given: _shares(*given).gathered, lambda *given: _shares(*given).spread)
    return [loads_of(shares_of, axes, source, target, mesh, shape) for shares_of in rounds]


Pool = Callable[[set[int], set[int], set[int]], set[int]]

POOLS: tuple[Pool, ...] = (
    lambda holders, needers, near: holders & needers or holders,
    lambda holders, needers, near: near or holders & needers or holders,
    lambda holders, needers, near: holders,
)
"""(ranks that hold an addend, ranks that may hold the sum, those of them that alone lack the one addend) → relays."""


@attrs.frozen(eq=False)
class _Move:
    """What there is to do with one cell.

    Attributes:
        homes: the addends that can stay, and the place of each.
        left: the addends that cannot.
        served: who holds the one addend that moves, and needs no sum.
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
        left = [addend for addend in range(len(cell.holders)) if addend not in homes]
        served = set(cell.holders[left[0]]) if len(left) == 1 else set()
        return _Move(cell, homes, left, served, [set(place) - served for place in cell.places])

    def relays(self, pool: Pool) -> tuple[int, ...]:
        """The ranks to which the addends go, none if all stay."""
        if not self.left:
            return ()
        fewest = min(map(len, self.lacking))
        near = {rank for ranks in self.lacking if self.served and len(ranks) == fewest for rank in ranks}
        holders = {rank for addend in self.left for rank in self.cell.holders[addend]}
        return tuple(sorted(pool(holders, {rank for place in self.cell.places for rank in place}, near)))


def _relayed(moves: Sequence[_Move], relays: Sequence[tuple[int, ...]]) -> _Shares:
    shares = _Shares()
    for move, by in zip(moves, relays, strict=True):
        cell, staying = move.cell, set(move.homes.values())
        shares.kept.extend(Share(rank, rank, 0, cell.piece) for place in staying for rank in cell.places[place])
        pieces = list(split(cell.piece, [(rank, 1) for rank in by]))
        for addend in move.left:
            own = cell.holders[addend]
            shares.gathered.extend(Share(rank, rank, addend, piece) for piece, rank in pieces if rank in own)
            shares.gathered.extend(shared(addend, [(rank, piece) for piece, rank in pieces if rank not in own], own))
        for piece, rank in pieces:
            _spread(move, piece, rank, staying, shares)
    return shares


def _spread(move: _Move, piece: Piece, by: int, staying: set[int], shares: _Shares) -> None:
    """Add what the relay `by` sends on of `piece`, and what stays instead: to the places that lack it least."""
    sent = [len(ranks) - (by in ranks) for ranks in move.lacking]
    best = [place for place, lack in enumerate(sent) if lack == min(sent)]
    for stretch, place in split(piece, [(place, 1) for place in best]):
        addend = int(place in staying)
        kept = move.served.intersection(move.cell.places[place])
        shares.kept.extend(Share(rank, rank, addend, stretch) for rank in kept)
        shares.spread.extend(Share(by, rank, addend, stretch) for rank in move.lacking[place])


def _homes(cell: Cell) -> dict[int, int]:
    """The addends that can stay, and the place of each: all ranks there hold it."""
    homes: dict[int, int] = {}
    for place, ranks in enumerate(cell.places):
        for addend, own in enumerate(cell.holders):
            if set(ranks) <= set(own):
                homes.setdefault(addend, place)
    return homes
