"""The exchange, a generalised all-to-all: missing elements come directly from their owners, in one round.

Each target shard is split into *cells*: its intersections with the source shards. The ranks that have a cell share the
sending evenly, so a cell may arrive in several parts.

For example, four ranks on the mesh (a = 2, b = 2) reshard 8 elements from `b: S(0)` to `a: S(0)`:

    rank 0 (a0 b0): has 0-3, needs 0-3            rank 2 (a1 b0): has 0-3, needs 4-7
    rank 1 (a0 b1): has 4-7, needs 0-3            rank 3 (a1 b1): has 4-7, needs 4-7
    Ranks 0 and 2 have the cell 0-3 and share the sending: rank 0 sends 0-1 to rank 1, and rank 2 sends 2-3.
    In the same way, rank 1 sends 4-5 to rank 2, and rank 3 sends 6-7.

Partial values:

- Source partial, target not: a rank receives all partial values of a cell and reduces them.
- Target partial, source not: a cell becomes part of one or several of the target's partial values. The others have the
  identity of the reduction there. The choice is the same for all ranks along the other axes, which remain replicas.
  Partial values whose ranks already have the cell come first. Others receive a part of it if that balances the load.

If shards are even and nothing is partial, the busiest rank moves no more bytes than the lower bound.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import attrs

from spmdir.core.intervals import Ranges, common
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.reshard.conditions import refinement
from spmdir.reshard.equal_shard_runs import representatives
from spmdir.reshard.exchange_parts import (
    Chunk,
    Grid,
    Loads,
    Part,
    Share,
    share_among,
    sort_parts,
    split_by_weight,
    transfer_counts,
)
from spmdir.reshard.moved_axes import exchanged_axes


def reduced_axes(source: Sharding, target: Sharding) -> tuple[str, ...]:
    """Return the axes whose partial values an exchange reduces."""
    return tuple(axis for axis, op in source.partial if (axis, op) not in target.partial)


def partial_axes(source: Sharding, target: Sharding) -> tuple[str, ...]:
    """Return the axes along which an exchange creates partial values."""
    return tuple(axis for axis, op in target.partial if (axis, op) not in source.partial)


@functools.lru_cache(maxsize=4096)
def exchange(source: Sharding, target: Sharding, mesh: Mesh, shape: tuple[int, ...], rank: int) -> tuple[Part, ...]:
    """Return the parts that the ranks of the group of `rank` send and keep, sorted by receiver, partial and position.

    `partial` of a part is the number of the source's partial value.
    """
    fine = refinement(mesh, source, target)
    return sort_parts(_shares(source.refined(fine), target.refined(fine), fine, shape, rank))


@functools.lru_cache(maxsize=256)
def _shares(source: Sharding, target: Sharding, mesh: Mesh, shape: tuple[int, ...], rank: int) -> list[Share]:
    """Return the shares of the group of `rank`: the chunks that its ranks send each other and keep.

    If the exchange creates partial values, a cell may become part of any of them. It goes to the *near* ones, whose
    ranks have it already, because this sends least in total. If that makes one rank very busy, some portions of each
    cell are *diverted* to far ones. The load of a rank is linear in the portions, so the loads with no portion and with
    all 12 portions diverted determine the best number. For example, one rank receives 600 elements with none diverted
    and 0 with all, and another rank 0 and 300. With 8 portions, both receive 200: the least load of the busiest rank.
    """
    group = mesh.group(rank, exchanged_axes(source, target, mesh))
    created_axes = partial_axes(source, target)
    cells = find_cells(source, target, mesh, shape, group, reduced_axes(source, target), created_axes)
    undiverted_shares = _shares_of(cells, 0, {})
    if not created_axes:
        return undiverted_shares
    sent, received = transfer_counts(undiverted_shares, group)
    received_by_rank = dict(zip(group, received, strict=True))
    sent_if_diverted, received_if_diverted = transfer_counts(_shares_of(cells, _PORTIONS, received_by_rank), group)
    # (elements with no portion diverted, elements with all diverted) that a rank sends, or that it receives
    loads = {*zip(sent, sent_if_diverted, strict=True), *zip(received, received_if_diverted, strict=True)}

    def busiest_load(portions: int) -> int:
        """Return the elements that the busiest rank sends or receives with diverted `portions`, times _PORTIONS."""
        return max((_PORTIONS - portions) * undiverted + portions * diverted for undiverted, diverted in loads)

    portions = min(range(_PORTIONS), key=busiest_load)
    return _shares_of(cells, portions, received_by_rank) if portions else undiverted_shares


@attrs.frozen
class Cell:
    """The intersection of a source shard and a target shard.

    Attributes:
        chunk: its elements.
        senders: for each partial value of the source, the ranks that have it.
        receivers: for each partial value of the target, the ranks that receive it.
    """

    chunk: Chunk
    senders: list[list[int]]
    receivers: list[list[int]]


def find_cells(
    source: Sharding,
    target: Sharding,
    mesh: Mesh,
    shape: tuple[int, ...],
    group: Sequence[int],
    source_partial: Sequence[str],
    target_partial: Sequence[str],
) -> list[Cell]:
    """Return the cells of the shards of a `group` of ranks.

    Args:
        source_partial, target_partial: the axes along which partial values differ, before and after.
    """
    senders = _ranks_by_grid(source, mesh, shape, group, source_partial)
    receivers = _ranks_by_grid(target, mesh, shape, group, target_partial)
    source_ranges = [sorted({grid[dim] for grid in senders}) for dim in range(len(shape))]
    return [
        Cell(Chunk.of(cell), senders[source_grid], ranks)
        for target_grid, ranks in receivers.items()
        for cell, source_grid in _cells(target_grid, source_ranges)
    ]


def _ranks_by_grid(
    sharding: Sharding, mesh: Mesh, shape: tuple[int, ...], group: Sequence[int], partial_axes: Sequence[str]
) -> dict[Grid, list[list[int]]]:
    """Return grid of a shard → for each partial value along `partial_axes`, the ranks of `group` that have it there."""
    ranks_by_grid: dict[Grid, list[list[int]]] = {}
    for rank in group:
        grid = grid_of(sharding, shape, mesh, rank)
        ranks_by_partial = ranks_by_grid.setdefault(grid, [[] for _ in range(mesh.group_size(partial_axes))])
        ranks_by_partial[mesh.index(rank, partial_axes)].append(rank)
    return ranks_by_grid


_PORTIONS = 12
"""A cell is divided between the ranks that have it and other ranks in twelfths."""


def _shares_of(cells: Sequence[Cell], portions: int, received: Mapping[int, int]) -> list[Share]:
    """Return the shares of all cells: each cell is sent to the ranks of one or several partial values of the target.

    Args:
        portions, received: as of `_weigh_receivers`.
    """
    shares: list[Share] = []
    for cell in cells:
        for partial, senders in enumerate(cell.senders):
            sender_set = set(senders)
            weighted_receivers = _weigh_receivers(cell.receivers, sender_set, portions, received)
            for chunk, ranks in split_by_weight(cell.chunk, weighted_receivers):
                shares += [Share(rank, rank, partial, chunk) for rank in ranks if rank in sender_set]
                lacking = [(rank, chunk) for rank in ranks if rank not in sender_set]
                shares += share_among(partial, lacking, senders)
    return shares


def _weigh_receivers(
    receivers: Sequence[list[int]], senders: set[int], portions: int, received: Mapping[int, int]
) -> list[tuple[list[int], int]]:
    """Return (ranks, weight) for the partial values of the target that receive a cell; weights are parts of the cell.

    For example, a cell of 12 elements is at rank 0. The partial values of the target are at the ranks 0 and 1, and at
    2 and 3. One rank of the first lacks the cell, and two of the second. So the first partial value is *near* and the
    second is *far*. With 3 diverted portions, 9 elements go to the first and 3 to the second.

    Args:
        receivers: for each partial value of the target, its ranks.
        senders: the ranks that have the cell.
        portions: twelfths of a cell that go to far partial values, if each near one has a rank that lacks the cell.
        received: rank → the elements that it receives if nothing is diverted. The least loaded of the far partial
            values receive the diverted portions.
    """
    lacking_counts = [sum(rank not in senders for rank in ranks) for ranks in receivers]
    fewest = min(lacking_counts)
    near = [ranks for ranks, count in zip(receivers, lacking_counts, strict=True) if count == fewest]
    if not (portions and fewest):
        return [(ranks, 1) for ranks in near]
    far_candidates = [ranks for ranks, count in zip(receivers, lacking_counts, strict=True) if count > fewest]
    if not far_candidates:
        return [(ranks, 1) for ranks in near]
    far = _least_loaded(far_candidates, received)
    # Together, near partial values get `_PORTIONS - portions` twelfths, and far ones get `portions`. Each weight is
    # multiplied by the length of the other list, so that the weights are integers.
    near_weight, far_weight = (_PORTIONS - portions) * len(far), portions * len(near)
    return [*((ranks, near_weight) for ranks in near), *((ranks, far_weight) for ranks in far)]


def _least_loaded(candidates: Sequence[list[int]], received: Mapping[int, int]) -> list[list[int]]:
    """Return the groups of ranks whose busiest rank receives the fewest elements."""
    loads = [max(received[rank] for rank in ranks) for ranks in candidates]
    return [ranks for ranks, load in zip(candidates, loads, strict=True) if load == min(loads)]


@functools.lru_cache(maxsize=4096)
def exchange_loads(source: Sharding, target: Sharding, mesh: Mesh, shape: tuple[int, ...]) -> list[Loads]:
    """Return (sender, receiver) → elements, for the single round of an exchange."""
    return [loads_of(_shares, exchanged_axes(source, target, mesh), source, target, mesh, shape)]


def least_received(source: Sharding, target: Sharding, mesh: Mesh, shape: Sequence[int]) -> float:
    """Return a lower bound on the elements that some rank receives: all other partial values of its target shard."""
    fine = refinement(mesh, source, target)
    source, target = source.refined(fine), target.refined(fine)
    created_axes = partial_axes(source, target)
    partial_count = fine.group_size(axis for axis in reduced_axes(source, target) if axis not in created_axes)
    target_numel = math.prod(max(target.lengths(dim, size, fine)) for dim, size in enumerate(shape))
    # Each rank along the created axes may receive an equal part of the elements, and have the identity elsewhere.
    return (partial_count - 1) * target_numel / fine.group_size(created_axes)


def loads_of(
    shares_of: Callable[[Sharding, Sharding, Mesh, tuple[int, ...], int], Iterable[Share]],
    axes: Sequence[str],
    source: Sharding,
    target: Sharding,
    mesh: Mesh,
    shape: tuple[int, ...],
) -> Loads:
    """Return (sender, receiver) → elements, over groups that represent all groups of the mesh.

    Elements that stay on their rank are not counted.

    Args:
        shares_of: (source, target, mesh, shape, rank) → the shares of the group of the rank along `axes`.
        axes: the axes of the group.
    """
    fine = refinement(mesh, source, target)
    if fine is not mesh:
        parts = [part for axis in axes for part in fine.parts(axis)]
        return loads_of(shares_of, parts, source.refined(fine), target.refined(fine), fine, shape)
    loads: Loads = {}
    for rank in representatives(axes, mesh, shape, source, target):
        for share in shares_of(source, target, mesh, shape, rank):
            if share.sender != share.receiver and share.chunk.numel:
                pair = share.sender, share.receiver
                loads[pair] = loads.get(pair, 0) + share.chunk.numel
    return loads


def grid_of(sharding: Sharding, shape: Sequence[int], mesh: Mesh, rank: int) -> Grid:
    """Return the grid of the shard of `rank` of a tensor of global `shape`. Each dimension is in local order."""
    coordinate = mesh.coordinate(rank)
    return tuple(sharding.local_ranges(dim, size, mesh, coordinate) for dim, size in enumerate(shape))


def _cells(target_grid: Grid, source_ranges: Sequence[Sequence[Ranges]]) -> Iterator[tuple[Grid, Grid]]:
    """Yield each cell of `target_grid` that is not empty, with the grid of its source shard.

    For example, the target grid 0-7 of one dimension has two cells with the source ranges 0-4, 5-9 and 10-14:
    0-4 of the first, and 5-7 of the second.

    Args:
        source_ranges: for each dimension, the ranges of all source shards.
    """
    if not target_grid:
        yield (), ()
        return
    for ranges in source_ranges[0]:
        if ranges and target_grid[0] and (overlap := common(target_grid[0], ranges)):
            for inner_cell, inner_grid in _cells(target_grid[1:], source_ranges[1:]):
                yield (overlap, *inner_cell), (ranges, *inner_grid)
