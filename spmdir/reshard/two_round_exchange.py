"""The two-round exchange, for partial values: one round reduces each chunk on one rank, the other distributes it.

In an exchange of one round, each rank that needs a sum receives all partial values of it. Here each chunk that moves
has a *reducer*. In the first round, the reducer receives the partial values of the chunk and reduces them. In the
second round, it sends the sum to all ranks that need it. If the target is partial too, partial values that are already
on the right ranks stay there, and the sum of the others is added to one of them.

For example, four ranks on the mesh (a = 2, b = 2) reshard 8 elements from `a: P` to `b: S(0)`. Ranks 0 and 1 have the
first partial value, ranks 2 and 3 the second. Ranks 0 and 2 need the sum of elements 0-3, ranks 1 and 3 that of 4-7:

    reducers: rank 0 of 0-1, rank 2 of 2-3, rank 1 of 4-5, rank 3 of 6-7
    first round: rank 0 receives the second partial value of 0 from rank 2, and that of 1 from rank 3
    second round: rank 0 sends the sum of 0-1 to rank 2, and receives the sum of 2-3 from it

POOLS lists the possible sets of reducers. The set that moves the fewest elements is used. Reducers share the chunks
evenly. This is reduce-scatter and all-gather, as in the all-reduce of Rabenseifner, "Optimization of collective
reduction operations" (2004), for any source and target shards.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import attrs

from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.reshard.conditions import refinement
from spmdir.reshard.exchange import Cell, find_cells, loads_of
from spmdir.reshard.exchange_parts import (
    Chunk,
    Loads,
    Part,
    Share,
    share_among,
    sort_parts,
    split_by_weight,
    transfer_counts,
)
from spmdir.reshard.moved_axes import two_round_axes


@attrs.frozen
class TwoRounds:
    """The parts that the ranks of one group send and keep.

    Attributes:
        first_round: the partial values that reducers receive in the first round, or already have.
        second_round: the sums that reducers send in the second round, or keep.
        stationary: partial values that stay on their rank. A rank adds its stationary parts to its parts of the second
            round if their `partial` differs.
    """

    first_round: tuple[Part, ...]
    second_round: tuple[Part, ...]
    stationary: tuple[Part, ...]


@functools.lru_cache(maxsize=4096)
def two_round_exchange(source: Sharding, target: Sharding, mesh: Mesh, shape: tuple[int, ...], rank: int) -> TwoRounds:
    """Return the parts that the ranks of the group of `rank` send and keep."""
    fine = refinement(mesh, source, target)
    shares = _shares(source.refined(fine), target.refined(fine), fine, shape, rank)
    return TwoRounds(sort_parts(shares.first_round), sort_parts(shares.second_round), sort_parts(shares.stationary))


@attrs.frozen(eq=False)
class _Shares:
    """The parts of a TwoRounds, before their positions are computed."""

    first_round: list[Share] = attrs.field(factory=list)
    second_round: list[Share] = attrs.field(factory=list)
    stationary: list[Share] = attrs.field(factory=list)

    def busiest(self, group: Sequence[int]) -> int:
        """Return the elements that the busiest rank sends or receives, summed over both rounds."""
        return sum(max(map(max, transfer_counts(shares, group))) for shares in (self.first_round, self.second_round))


@functools.lru_cache(maxsize=256)
def _shares(source: Sharding, target: Sharding, mesh: Mesh, shape: tuple[int, ...], rank: int) -> _Shares:
    """Return the shares of the group of `rank`, with the reducers from POOLS that move the fewest elements."""
    group = mesh.group(rank, two_round_axes(source, target, mesh))
    source_partial, target_partial = ([axis for axis, _ in side.partial] for side in (source, target))
    moves = [_Move.of(cell) for cell in find_cells(source, target, mesh, shape, group, source_partial, target_partial)]
    reducer_choices = dict.fromkeys(tuple(move.reducers(pool) for move in moves) for pool in POOLS)
    candidates = (_assign_shares(moves, reducers) for reducers in reducer_choices)
    return min(candidates, key=lambda shares: shares.busiest(group))


@functools.lru_cache(maxsize=4096)
def two_round_loads(source: Sharding, target: Sharding, mesh: Mesh, shape: tuple[int, ...]) -> list[Loads]:
    """Return (sender, receiver) → elements, for each of the two rounds."""
    axes = two_round_axes(source, target, mesh)
    rounds = (lambda *group: _shares(*group).first_round, lambda *group: _shares(*group).second_round)
    return [loads_of(shares_of, axes, source, target, mesh, shape) for shares_of in rounds]


Pool = Callable[[set[int], set[int], set[int]], set[int]]
"""(senders, receivers, fewest_missing) → reducers, all sets of ranks; see POOLS and `_Move.reducers`."""


def _senders_that_receive(senders: set[int], receivers: set[int], fewest_missing: set[int]) -> set[int]:
    """Return the senders that need the sum themselves; all senders if none does."""
    return senders & receivers or senders


def _ranks_with_fewest_missing(senders: set[int], receivers: set[int], fewest_missing: set[int]) -> set[int]:
    """Return `fewest_missing`; if it is empty, the same as `_senders_that_receive`."""
    return fewest_missing or _senders_that_receive(senders, receivers, fewest_missing)


def _all_senders(senders: set[int], receivers: set[int], fewest_missing: set[int]) -> set[int]:
    """Return all senders, so that the most ranks share the reduction."""
    return senders


POOLS: tuple[Pool, ...] = (_senders_that_receive, _ranks_with_fewest_missing, _all_senders)
"""Choices of reducers: (senders, receivers, fewest_missing) → ranks.

Senders have a partial value, and receivers may need the sum. A partial value of the target is missing on some of its
ranks. `fewest_missing` are the ranks of those partial values of the target that are missing on the fewest ranks.
"""


@attrs.frozen(eq=False)
class _Move:
    """The movement of one cell. Partial values are numbered by their position along the partial axes.

    For example, the first and second partial values of the source are at the ranks 0 and 1, and at 2 and 3. The only
    partial value of the target is at the ranks 2 and 3. Then the second value stays at 2 and 3, the first moves, the
    ranks 0 and 1 have its sum already, and the ranks 2 and 3 lack it.

    Attributes:
        staying: source partial value that stays → the target partial value that it becomes.
        moving: the source partial values that move.
        ranks_with_sum: the ranks that already have the sum of `moving`; empty if several partial values move.
        ranks_without_sum: for each target partial value, its ranks that need the sum.
    """

    cell: Cell
    staying: dict[int, int]
    moving: list[int]
    ranks_with_sum: set[int]
    ranks_without_sum: list[set[int]]

    @staticmethod
    def of(cell: Cell) -> _Move:
        """Return the movement of `cell`."""
        staying = _find_staying(cell)
        moving = [partial for partial in range(len(cell.senders)) if partial not in staying]
        ranks_with_sum = set(cell.senders[moving[0]]) if len(moving) == 1 else set()
        ranks_without_sum = [set(ranks) - ranks_with_sum for ranks in cell.receivers]
        return _Move(cell, staying, moving, ranks_with_sum, ranks_without_sum)

    def reducers(self, pool: Pool) -> tuple[int, ...]:
        """Return the reducers of the partial values that move; none if all stay.

        For example, ranks 0 and 1 already have the sum. The target has two partial values: the first is needed by
        ranks 0 to 2 and is missing on rank 2, the second is needed by ranks 3 to 5 and is missing on all of them. Then
        `fewest_missing` is {2}: one send completes the first partial value.
        """
        if not self.moving:
            return ()
        fewest_missing: set[int] = set()  # stays empty if no rank has the sum yet
        if self.ranks_with_sum:
            fewest = min(map(len, self.ranks_without_sum))
            fewest_missing.update(*(ranks for ranks in self.ranks_without_sum if len(ranks) == fewest))
        senders = {rank for partial in self.moving for rank in self.cell.senders[partial]}
        receivers = {rank for ranks in self.cell.receivers for rank in ranks}
        return tuple(sorted(pool(senders, receivers, fewest_missing)))


def _assign_shares(moves: Sequence[_Move], reducers_of_moves: Sequence[tuple[int, ...]]) -> _Shares:
    """Return the shares of all moves. The reducers of a move divide its cell evenly.

    For example, the cell of elements 0-3 has the reducers 0 and 2. Rank 0 receives all partial values of 0-1 in the
    first round, and sends the sum to all ranks that need it in the second round. Rank 2 does the same with 2-3.

    Args:
        reducers_of_moves: for each move, the ranks that reduce its partial values; empty if all partial values stay.
    """
    shares = _Shares()
    for move, reducers in zip(moves, reducers_of_moves, strict=True):
        cell = move.cell
        for target_partial in set(move.staying.values()):
            # 0 is the number of a partial value that stays; see `_add_second_round`.
            shares.stationary.extend(Share(rank, rank, 0, cell.chunk) for rank in cell.receivers[target_partial])
        chunks = list(split_by_weight(cell.chunk, [(reducer, 1) for reducer in reducers]))
        for partial in move.moving:
            senders = cell.senders[partial]
            kept = [Share(reducer, reducer, partial, chunk) for chunk, reducer in chunks if reducer in senders]
            lacking = [(reducer, chunk) for chunk, reducer in chunks if reducer not in senders]
            shares.first_round.extend(kept)
            shares.first_round.extend(share_among(partial, lacking, senders))
        for chunk, reducer in chunks:
            _add_second_round(move, chunk, reducer, shares)
    return shares


def _add_second_round(move: _Move, chunk: Chunk, reducer: int, shares: _Shares) -> None:
    """Add to `shares` the sends of a sum from its reducer, to the target partial values that require the fewest sends.

    The sum becomes part of one partial value of the target. For example, the target has two partial values, at the
    ranks 0 and 1 and at the ranks 2 and 3, and rank 0 reduced the sum. The first takes one send, to rank 1, and the
    second takes two. So the sum becomes part of the first. If both take equally many, each gets half of the elements.
    """
    send_counts = [len(ranks) - (reducer in ranks) for ranks in move.ranks_without_sum]
    fewest = min(send_counts)
    nearest_partials = [partial for partial, count in enumerate(send_counts) if count == fewest]
    for piece, target_partial in split_by_weight(chunk, [(partial, 1) for partial in nearest_partials]):
        # Ranks add up shares with different numbers. A partial value that stays has number 0, so the sum needs another.
        number = 1 if target_partial in move.staying.values() else 0
        receivers_with_sum = move.ranks_with_sum.intersection(move.cell.receivers[target_partial])
        receivers_without_sum = move.ranks_without_sum[target_partial]
        shares.stationary.extend(Share(rank, rank, number, piece) for rank in receivers_with_sum)
        shares.second_round.extend(Share(reducer, rank, number, piece) for rank in receivers_without_sum)


def _find_staying(cell: Cell) -> dict[int, int]:
    """Return source partial value → target partial value, if all ranks of the target partial value already have it."""
    staying: dict[int, int] = {}
    for target_partial, receivers in enumerate(cell.receivers):
        for source_partial, senders in enumerate(cell.senders):
            if set(receivers) <= set(senders):
                staying.setdefault(source_partial, target_partial)
    return staying
