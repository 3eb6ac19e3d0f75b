"""The two-round exchange: chunks go to ranks that reduce them, in the first round, and send them on in the second.

In one round a rank that needs a sum receives every partial value, and the only rank that has a chunk sends it to all.
Here each chunk that moves has a *reducer*, which receives its partial values in the first round, reduces them, and
sends the sum to all ranks that need it in the second. Where the target is partial too, partial values that are already
on the right ranks stay there; the sum of the others is added to any of them.

POOLS are the choices of reducers; the one that moves fewest elements is used. Reducers share the chunks evenly.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import attrs

from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.reshard.conditions import refinement
from spmdir.reshard.exchange import Cell, cells_of, loads_of
from spmdir.reshard.moved_axes import two_round_axes
from spmdir.reshard.parts import Chunk, Loads, Part, Share, in_order, moved, shared, split


@attrs.frozen
class TwoRounds:
    """The parts that the ranks of one group send and keep.

    Attributes:
        gathered: in the first round, the partial values that reducers receive or have themselves.
        spread: in the second round, the sums that reducers send or keep.
        kept: parts that stay on their rank. A rank adds the parts, kept and spread, that have different `partial`.
    """

    gathered: tuple[Part, ...]
    spread: tuple[Part, ...]
    kept: tuple[Part, ...]


@functools.lru_cache(maxsize=4096)
def two_round_exchange(source: Sharding, target: Sharding, mesh: Mesh, shape: tuple[int, ...], rank: int) -> TwoRounds:
    """Return the parts that the ranks of the group of `rank` send each other and keep."""
    fine = refinement(mesh, source, target)
    shares = _shares(source.refined(fine), target.refined(fine), fine, shape, rank)
    return TwoRounds(in_order(shares.gathered), in_order(shares.spread), in_order(shares.kept))


@attrs.frozen(eq=False)
class _Shares:
    """The parts of a TwoRounds whose positions are not computed yet."""

    gathered: list[Share] = attrs.field(factory=list)
    spread: list[Share] = attrs.field(factory=list)
    kept: list[Share] = attrs.field(factory=list)

    def busiest(self, group: Sequence[int]) -> int:
        """Return the elements that the busiest rank of each round sends or receives, added."""
        return sum(max(map(max, moved(shares, group))) for shares in (self.gathered, self.spread))


@functools.lru_cache(maxsize=256)
def _shares(source: Sharding, target: Sharding, mesh: Mesh, shape: tuple[int, ...], rank: int) -> _Shares:
    group = mesh.group(rank, two_round_axes(source, target, mesh))
    before, after = ([axis for axis, _ in side.partial] for side in (source, target))
    moves = [_Move.of(cell) for cell in cells_of(source, target, mesh, shape, group, before, after)]
    choices = dict.fromkeys(tuple(move.reducers(pool) for move in moves) for pool in POOLS)
    return min((_in_two_rounds(moves, reducers) for reducers in choices), key=lambda shares: shares.busiest(group))


@functools.lru_cache(maxsize=4096)
def two_round_loads(source: Sharding, target: Sharding, mesh: Mesh, shape: tuple[int, ...]) -> list[Loads]:
    """Return (sender, receiver) → elements, for each of the two rounds."""
    axes = two_round_axes(source, target, mesh)
    rounds = (lambda *group: _shares(*group).gathered, lambda *group: _shares(*group).spread)
    return [loads_of(shares_of, axes, source, target, mesh, shape) for shares_of in rounds]


Pool = Callable[[set[int], set[int], set[int]], set[int]]

POOLS: tuple[Pool, ...] = (
    lambda senders, receivers, near: senders & receivers or senders,
    lambda senders, receivers, near: near or senders & receivers or senders,
    lambda senders, receivers, near: senders,
)
"""(ranks that have a partial value, ranks that may need the sum, the fewest of these that lack it) → reducers."""


@attrs.frozen(eq=False)
class _Move:
    """The movement of one cell.

    Attributes:
        staying: partial value of the source that stays → the partial value of the target that it becomes.
        moving: the partial values of the source that move.
        served: the ranks that have the sum of these already, if it is one partial value.
        lacking: for each partial value of the target, the ranks that need the sum.
    """

    cell: Cell
    staying: dict[int, int]
    moving: list[int]
    served: set[int]
    lacking: list[set[int]]

    @staticmethod
    def of(cell: Cell) -> _Move:
        staying = _staying(cell)
        moving = [partial for partial in range(len(cell.senders)) if partial not in staying]
        served = set(cell.senders[moving[0]]) if len(moving) == 1 else set()
        return _Move(cell, staying, moving, served, [set(ranks) - served for ranks in cell.receivers])

    def reducers(self, pool: Pool) -> tuple[int, ...]:
        """Return the ranks that reduce the partial values that move; none if all stay."""
        if not self.moving:
            return ()
        fewest = min(map(len, self.lacking))
        near = {rank for ranks in self.lacking if self.served and len(ranks) == fewest for rank in ranks}
        senders = {rank for partial in self.moving for rank in self.cell.senders[partial]}
        return tuple(sorted(pool(senders, {rank for ranks in self.cell.receivers for rank in ranks}, near)))


def _in_two_rounds(moves: Sequence[_Move], reducers: Sequence[tuple[int, ...]]) -> _Shares:
    shares = _Shares()
    for move, by in zip(moves, reducers, strict=True):
        cell, staying = move.cell, set(move.staying.values())
        shares.kept.extend(Share(rank, rank, 0, cell.chunk) for index in staying for rank in cell.receivers[index])
        chunks = list(split(cell.chunk, [(rank, 1) for rank in by]))
        for partial in move.moving:
            own = cell.senders[partial]
            shares.gathered.extend(Share(rank, rank, partial, chunk) for chunk, rank in chunks if rank in own)
            shares.gathered.extend(shared(partial, [(rank, chunk) for chunk, rank in chunks if rank not in own], own))
        for chunk, rank in chunks:
            _spread(move, chunk, rank, staying, shares)
    return shares


def _spread(move: _Move, chunk: Chunk, by: int, staying: set[int], shares: _Shares) -> None:
    """Add to `shares` the sum of `chunk` that the reducer `by` sends, to the partial values that fewest ranks lack."""
    sent = [len(ranks) - (by in ranks) for ranks in move.lacking]
    best = [index for index, count in enumerate(sent) if count == min(sent)]
    for stretch, index in split(chunk, [(index, 1) for index in best]):
        partial = int(index in staying)
        kept = move.served.intersection(move.cell.receivers[index])
        shares.kept.extend(Share(rank, rank, partial, stretch) for rank in kept)
        shares.spread.extend(Share(by, rank, partial, stretch) for rank in move.lacking[index])


def _staying(cell: Cell) -> dict[int, int]:
    """Return the partial values of the source that all ranks of one of the target's have → the index of that one."""
    staying: dict[int, int] = {}
    for index, ranks in enumerate(cell.receivers):
        for partial, own in enumerate(cell.senders):
            if set(ranks) <= set(own):
                staying.setdefault(partial, index)
    return staying
