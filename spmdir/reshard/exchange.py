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
    """Return the parts that the ranks of the group of `rank` send and keep, by receiver, partial and position."""
    fine = refinement(mesh, source, target)
    return sort_parts(_shares(source.refined(fine), target.refined(fine), fine, shape, rank))


@functools.lru_cache(maxsize=256)
def _shares(source: Sharding, target: Sharding, mesh: Mesh, shape: tuple[int, ...], rank: int) -> list[Share]:
    group = mesh.group(rank, exchanged_axes(source, target, mesh))
    made_axes = partial_axes(source, target)
    cells = find_cells(source, target, mesh, shape, group, reduced_axes(source, target), made_axes)
    nearest = _shares_of(cells, 0, {})
    if not made_axes:
        return nearest
    before = transfer_counts(nearest, group)
    received = dict(zip(group, before[1], strict=True))
    after = transfer_counts(_shares_of(cells, _PORTIONS, received), group)
    loads = {pair for sides in zip(before, after, strict=True) for pair in zip(*sides, strict=True)}
    diverted = min(range(_PORTIONS), key=lambda n: max((_PORTIONS - n) * a + n * b for a, b in loads))
    return _shares_of(cells, diverted, received) if diverted else nearest


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
    grids = {member: grid_of(source, shape, mesh, member) for member in group}
    shards = [sorted({grid[dim] for grid in grids.values()}) for dim in range(len(shape))]
    senders: dict[Grid, list[list[int]]] = {}
    receivers: dict[Grid, list[list[int]]] = {}
    for member in group:
        for by_grid, axes, grid in (
            (senders, source_partial, grids[member]),
            (receivers, target_partial, grid_of(target, shape, mesh, member)),
        ):
            ranks_by_partial = by_grid.setdefault(grid, [[] for _ in range(mesh.group_size(axes))])
            ranks_by_partial[mesh.index(member, axes)].append(member)
    return [
        Cell(Chunk.of(cell), senders[owner], ranks)
        for grid, ranks in receivers.items()
        for cell, owner in _cells(grid, shards)
    ]


_PORTIONS = 12
"""A cell is divided between the ranks that have it and other ranks in twelfths."""


def _shares_of(cells: Sequence[Cell], diverted: int, received: Mapping[int, int]) -> list[Share]:
    """Return the shares of all cells. A cell goes to the partial values of the target that fewest ranks lack.

    Args:
        diverted: twelfths of a cell that go to other partial values instead, if each has a rank that lacks the cell.
        received: rank → the elements that it receives if `diverted` is 0. The least loaded of the other partial
            values receive the diverted shares.
    """
    shares: list[Share] = []
    for cell in cells:
        for partial, senders in enumerate(cell.senders):
            sender_set = set(senders)
            lacking = [sum(member not in sender_set for member in members) for members in cell.receivers]
            fewest = min(lacking)
            near = [members for members, lacks in zip(cell.receivers, lacking, strict=True) if lacks == fewest]
            far_candidates = [members for members, lacks in zip(cell.receivers, lacking, strict=True) if lacks > fewest]
            far = _least_loaded(far_candidates, received) if diverted and fewest and far_candidates else []
            chosen = [(members, (_PORTIONS - diverted) * len(far) if far else 1) for members in near]
            chosen += [(members, diverted * len(near)) for members in far]
            for chunk, members in split_by_weight(cell.chunk, chosen):
                shares += [Share(member, member, partial, chunk) for member in members if member in sender_set]
                shares += share_among(
                    partial, [(member, chunk) for member in members if member not in sender_set], senders
                )
    return shares


def _least_loaded(candidates: Sequence[list[int]], received: Mapping[int, int]) -> list[list[int]]:
    most = [max(received[member] for member in members) for members in candidates]
    return [members for members, load in zip(candidates, most, strict=True) if load == min(most)]


@functools.lru_cache(maxsize=4096)
def exchange_loads(source: Sharding, target: Sharding, mesh: Mesh, shape: tuple[int, ...]) -> list[Loads]:
    """Return (sender, receiver) → elements, for the single round of an exchange."""
    return [loads_of(_shares, exchanged_axes(source, target, mesh), source, target, mesh, shape)]


def least_received(source: Sharding, target: Sharding, mesh: Mesh, shape: Sequence[int]) -> float:
    """Return a lower bound on the elements that some rank receives: all other partial values of its target shard."""
    fine = refinement(mesh, source, target)
    source, target = source.refined(fine), target.refined(fine)
    made_axes = partial_axes(source, target)
    partials = fine.group_size(axis for axis in reduced_axes(source, target) if axis not in made_axes)
    needed = math.prod(max(target.lengths(dim, size, fine)) for dim, size in enumerate(shape))
    return (partials - 1) * needed / fine.group_size(made_axes)


def loads_of(
    shares_of: Callable[[Sharding, Sharding, Mesh, tuple[int, ...], int], Iterable[Share]],
    axes: Sequence[str],
    source: Sharding,
    target: Sharding,
    mesh: Mesh,
    shape: tuple[int, ...],
) -> Loads:
    """Return (sender, receiver) → elements, over groups that represent all groups of the mesh.

    Args:
        shares_of: (source, target, mesh, shape, rank) → the shares of the group of the rank along `axes`.
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


def _cells(grid: Grid, shards: Sequence[Sequence[Ranges]]) -> Iterator[tuple[Grid, Grid]]:
    """Yield each cell of `grid` that is not empty, with the grid of its source shard.

    Args:
        shards: for each dimension, the ranges of all source shards.
    """
    if not grid:
        yield (), ()
        return
    for owner in shards[0]:
        if owner and grid[0] and (overlap := common(grid[0], owner)):
            for cell, owners in _cells(grid[1:], shards[1:]):
                yield (overlap, *cell), (owner, *owners)
